"""What is wrong with a tracker's pod is said once, until it is another thing."""

from typing import Any

import pytest

from rljob_operator.core import TrackerFact
from rljob_operator.kube.tracker_pods import PATIENCE_SECONDS, TrackerNews, tracker_facts
from rljob_operator.kube.views import view_pod
from tests.unit.kube.objects import NOW_SECONDS, make_pod, running, terminated, waiting

HEAD, TAIL = "telemetry.reportTo: wandb: ", ". The job does not wait for it."
UNPLACED = {"PodScheduled": ("False", "Unschedulable", "0/1 nodes are available.")}


def of_tracker(state: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return make_pod(state, component="tracker-wandb", role="", name="job-tracker-wandb-0", **fields)


@pytest.mark.parametrize(
    ("pod", "seconds", "what"),
    [
        pytest.param(of_tracker(running()), 0.0, None, id="it runs"),
        pytest.param(
            of_tracker(waiting("CreateContainerConfigError", 'secret "keys" not found'), phase="Pending"),
            0.0,
            'CreateContainerConfigError: secret "keys" not found. Make the Secret that telemetry.keysFrom.secretName'
            " names",
            id="no Secret",
        ),
        pytest.param(
            of_tracker(waiting("CrashLoopBackOff"), last=terminated(64, message="a\nthe image has no wandb.\n")),
            0.0,
            "its process ended with 64: the image has no wandb",
            id="no package",
        ),
        pytest.param(
            of_tracker(running(), last=terminated(137)), 0.0, "its process ended with -9: without output", id="killed"
        ),
        pytest.param(of_tracker(terminated(0, "Completed")), 0.0, None, id="it has ended as it was asked to"),
        pytest.param(of_tracker(waiting("CrashLoopBackOff", "x"), deleting=True), 0.0, None, id="it goes"),
        pytest.param(
            of_tracker(phase="Pending", conditions=UNPLACED, node=""), 1.0, None, id="the actor has no node yet"
        ),
        pytest.param(
            of_tracker(phase="Pending", conditions=UNPLACED, node=""),
            PATIENCE_SECONDS,
            "Unschedulable: 0/1 nodes are available.",
            id="no place for long",
        ),
        pytest.param(
            make_pod(waiting("CrashLoopBackOff"), last=terminated(1)), 0.0, None, id="another pod is none of its own"
        ),
    ],
)
def test_what_is_wrong(pod: dict[str, Any], seconds: float, what: str | None) -> None:
    seen = TrackerNews()
    facts = tracker_facts([view_pod(pod)], {}, NOW_SECONDS + seconds)
    assert seen.of(facts) == ([] if what is None else [f"{HEAD}{what.rstrip('.')}{TAIL}"])
    assert seen.of(facts) == []


def test_an_end_counts_until_the_process_has_run_for_a_while_since() -> None:
    """By when that was seen: the clock of its node may be another."""
    pod, up_at = view_pod(of_tracker(running(), last=terminated(137))), {"u1/0": NOW_SECONDS + 3600}
    soon, late = (
        tracker_facts([pod], up_at, NOW_SECONDS + 3600 + after) for after in (PATIENCE_SECONDS - 1, PATIENCE_SECONDS)
    )
    assert soon == (TrackerFact("wandb", True, "TrackerFailed", "its process ended with -9: without output"),)
    assert late == (TrackerFact("wandb", True),)


def test_the_same_trouble_that_comes_again_is_no_news() -> None:
    seen = TrackerNews()
    bad, well = TrackerFact("wandb", False, "TrackerFailed", "it ended"), TrackerFact("wandb", True)
    assert [len(seen.of([fact])) for fact in (bad, well, bad)] == [1, 0, 0]
