"""Short jobs of each kind ask Redis for what they asked for when this was recorded, and leave the same files."""

from pathlib import Path

import pytest

from tests.recorded.jobs import recording
from tests.recorded.jobs.kinds import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_a_short_job_does_what_it_did(kind: str, tmp_path: Path) -> None:
    found = recording.differences_of(kind, tmp_path)
    assert not found, "\n".join([f"{len(found)} differences of a {kind} job:", *found[:40]])
