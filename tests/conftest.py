"""Marks every test by the folder it lies in, so that `-m unit` and `tests/unit` mean the same."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before anything imports torch. Models of tests are tiny: two threads that wait for each other on a busy machine take a
# hundred times as long as one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No test asserts on time: on a loaded machine an example takes as long as it takes. What the profile that CI is given
# says beside that stays: its examples are the same in every run.
settings.register_profile("untimed", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

_KINDS = frozenset({"unit", "integration", "cluster"})
_TESTS = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives each test the marker named as its first folder."""
    for item in items:
        kind = item.path.relative_to(_TESTS).parts[0]
        if kind in _KINDS:
            item.add_marker(kind)
