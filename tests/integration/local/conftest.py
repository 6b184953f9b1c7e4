"""Runs that end with their test."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pytest

from tests.integration.local.job_run import JobRun


class StartRun(Protocol):
    """Starts `rljob run`."""

    def __call__(
        self, manifest: Path, out: Path, options: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> JobRun:
        """The run."""


@pytest.fixture
def start_run() -> Iterator[StartRun]:
    """`start_run(manifest, out)`; whatever still runs after the test is killed."""
    runs: list[JobRun] = []

    def start(
        manifest: Path, out: Path, options: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> JobRun:
        runs.append(JobRun(manifest, out, options, environment))
        return runs[-1]

    yield start
    for run in runs:
        run.close()
