"""Most jobs of these tests are forked from a preloaded interpreter; some begin as a user's do."""

import pytest

from .job import RunningJob, preloaded

BEGUN_AGAIN = frozenset({"test_a_job_trains_to_its_end_and_is_then_finished"})
"""Tests whose jobs are started by the command, with every process of theirs an interpreter of its own."""


@pytest.fixture(autouse=True)
def _start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.name not in BEGUN_AGAIN:
        monkeypatch.setattr(RunningJob, "begin", staticmethod(preloaded))
