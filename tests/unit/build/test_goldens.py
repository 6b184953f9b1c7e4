"""Every object of two jobs, as committed. A change that is meant: `python -m tests.unit.build.goldens`."""

from tests.unit.build.goldens import FILE, text


def test_manifests_are_as_committed() -> None:
    assert text() == FILE.read_text()
