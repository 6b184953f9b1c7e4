"""Marks every test by the folder it lies in, so that `-m unit` and `tests/unit` mean the same."""

from pathlib import Path

import pytest

_KINDS = frozenset({"unit", "integration", "cluster"})
_TESTS = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives each test the marker named as its first folder."""
    for item in items:
        kind = item.path.relative_to(_TESTS).parts[0]
        if kind in _KINDS:
            item.add_marker(kind)
