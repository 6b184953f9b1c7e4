"""What the status shows of a job's trackers, which nothing of the job waits for."""

from dataclasses import replace

import pytest

from rljob_api.status import ConditionType
from rljob_operator.core import TrackerFact, decide
from rljob_operator.core.conditions import find, is_true
from rljob_operator.core.derived_status import with_trackers
from tests.unit.core.worlds import START, make_running

FED = TrackerFact("tensorboard", runs=True)
COMING = TrackerFact("wandb", runs=False)
NO_SECRET = TrackerFact(
    "wandb", False, "CreateContainerConfigError", 'CreateContainerConfigError: secret "k" not found'
)
ENDED = TrackerFact("tensorboard", True, "TrackerFailed", "its process ended with -9: without output")
HEAD, TAIL = "telemetry.reportTo: wandb: ", ". The job does not wait for it."
MISSING = ("False", "CreateContainerConfigError", f'{HEAD}CreateContainerConfigError: secret "k" not found{TAIL}')

ROWS = [
    pytest.param([None], None, id="a job without trackers"),
    pytest.param([()], None, id="no pod is there yet"),
    pytest.param([(FED, COMING)], None, id="one starts"),
    pytest.param([(FED,)], ("True", "Fed", "the processes of tensorboard run"), id="all run"),
    pytest.param([(FED, NO_SECRET)], MISSING, id="a Secret is missing"),
    pytest.param([(FED, NO_SECRET), (FED, COMING)], MISSING, id="it was made, and the pod starts"),
    pytest.param(
        [(NO_SECRET,), (replace(COMING, runs=True),)], ("True", "Fed", "the processes of wandb run"), id="it runs then"
    ),
    pytest.param([(NO_SECRET,), None], None, id="the job reports to none any more"),
    pytest.param(
        [(ENDED, NO_SECRET)],
        ("False", "TrackerFailed", f"{ENDED.sentence} {NO_SECRET.sentence}"),
        id="two of them, in the order of their names",
    ),
]


@pytest.mark.parametrize(("seen", "expected"), ROWS)
def test_trackers(seen: list[tuple[TrackerFact, ...] | None], expected: tuple[str, str, str] | None) -> None:
    observed = make_running()
    status = observed.status
    for facts in seen:
        status = with_trackers(replace(observed, trackers=facts), status, START)
    found = find(status, ConditionType.TRACKERS_FED)
    assert (found and (found.status, found.reason, found.message)) == expected


def test_a_job_whose_tracker_lacks_its_secret_is_ready_and_nothing_is_done() -> None:
    observed = make_running()
    without, decided = decide(observed, START), decide(replace(observed, trackers=(NO_SECRET,)), START)
    assert is_true(decided.status, ConditionType.READY)
    assert find(decided.status, ConditionType.TRACKERS_FED) is not None
    assert (decided.actions, decided.events, decided.next_turn_at) == (
        without.actions,
        without.events,
        without.next_turn_at,
    )
    assert decided.status.phase == without.status.phase
    assert decided.status.reason == without.status.reason
