"""Every object of two jobs, as committed. A change that is meant: `python -m tests.unit.build.goldens`."""

import pytest

from tests.unit.build.goldens import FOLDER, GOLDENS, text


@pytest.mark.parametrize("name", GOLDENS)
def test_manifests_are_as_committed(name: str) -> None:
    assert text(GOLDENS[name]()) == (FOLDER / name).read_text()
