"""Every object of two jobs, as committed. A change that is meant: `python -m tests.unit.build.goldens`."""

import pytest

from rljob_cli.kubernetes_objects import as_yaml
from tests.unit.build.goldens import FOLDER, GOLDENS


@pytest.mark.parametrize("name", GOLDENS)
def test_manifests_are_as_committed(name: str) -> None:
    assert as_yaml(GOLDENS[name]()) == (FOLDER / name).read_text()
