"""The bound on staleness is exact, and above 0 generation really runs ahead of training."""

import json
from pathlib import Path
from typing import Any

import pytest

from .job import RunningJob, make_simulated

Span = tuple[float, float]
STEPS = 24
PACE = {"generation": {"secondsPerToken": 0.01}, "training": {"secondsPerRow": 0.001}}
"""Neither takes nothing beside the other."""


def spans(timeline: list[dict[str, Any]], name: str, rollout_id: int) -> list[Span]:
    """Begin and end, in microseconds, of every span `name` of one rollout."""
    chosen = [event for event in timeline if event["name"] == name and event.get("args", {}).get("r") == rollout_id]
    return [(event["ts"], event["ts"] + event["dur"]) for event in chosen]


def overlaps(left: list[Span], right: list[Span]) -> bool:
    """Whether any of `left` runs while any of `right` does."""
    return any(a[0] < b[1] and b[0] < a[1] for a in left for b in right)


@pytest.mark.parametrize("bound", [0, *(pytest.param(bound, marks=pytest.mark.long) for bound in (1, 2)), 4])
def test_no_trained_sample_is_staler_than_the_bound(tmp_path: Path, bound: int) -> None:
    manifest = make_simulated(tmp_path, rollout={"maxStaleness": bound, "numRollouts": STEPS})
    manifest["spec"]["simulation"] = PACE
    with RunningJob(tmp_path, manifest) as job:
        report = job.assert_succeeded()
        timeline = json.loads((job.out / "timeline.json").read_text())
    assert report.max_staleness <= bound
    # With a larger bound the rollout in generation is mostly further ahead than the next one.
    later = {
        r: [span for ahead in range(1, 5) for span in spans(timeline, "generate", r + ahead)] for r in range(STEPS)
    }
    overlapped = [r for r in range(STEPS) if overlaps(later[r], spans(timeline, "train", r))]
    if bound == 0:
        assert report.max_staleness == 0
        assert overlapped == []
    else:
        assert overlapped, "generation never ran while an earlier rollout was trained on"
