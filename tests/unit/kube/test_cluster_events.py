"""What the cluster's Events say of an object: its last word, asked for late and seldom."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from rljob_operator.core.observed import Blocker
from rljob_operator.kube.api import Api
from rljob_operator.kube.blockers import (
    ASK_AGAIN_SECONDS,
    EVENTS_PATIENCE_SECONDS,
    ClusterEvents,
    Suspect,
    last_trouble,
)
from rljob_operator.kube.errors import ApiUnreachable
from rljob_operator.kube.kinds import EVENTS
from rljob_operator.kube.views import JobKey
from tests.unit.kube.fake_api import ApiOfAnswers

KEY, POD = JobKey("ns", "job"), Suspect("Pod", "job-actor-0", "u1")


def event(
    minute: int, reason: str, kind: str = "Warning", uid: str = "u1", version: int | None = None, **more: Any
) -> dict[str, Any]:
    at = f"2026-11-21T12:{minute:02}:00Z"
    return {
        "metadata": {"creationTimestamp": at, "resourceVersion": str(version if version is not None else minute)},
        "involvedObject": {"uid": uid},
        "type": kind,
        "reason": reason,
        "message": f"{reason}\n  of {minute}",
        "lastTimestamp": at,
        **more,
    }


MOUNTED = Blocker("FailedMount", "FailedMount of 1")
MOUNT, PULLING = event(1, "FailedMount"), event(2, "Pulling", "Normal")
AGAIN = event(0, "FailedMount", version=3, lastTimestamp=None, series={"lastObservedTime": "2026-11-21T12:03:00.5Z"})


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param([], None, id="nothing is said"),
        pytest.param([MOUNT], MOUNTED, id="a warning, on one line"),
        pytest.param([MOUNT, PULLING], None, id="it was cured since"),
        pytest.param([PULLING, AGAIN], Blocker("FailedMount", "FailedMount of 0"), id="it was told again since"),
        pytest.param([event(4, "FailedMount", uid="u0"), PULLING], None, id="that was another pod of this name"),
        pytest.param([MOUNT, event(5, "FailedScheduling")], MOUNTED, id="a condition has it"),
        pytest.param([event(3, "Scheduled", "Normal"), MOUNT], MOUNTED, id="no cure"),
        pytest.param(
            [event(1, "SuccessfulCreate", "Normal", version=4), event(1, "FailedCreate", version=5)],
            Blocker("FailedCreate", "FailedCreate of 1"),
            id="of the same second the one that was written last counts",
        ),
        pytest.param(
            [event(59, "Scheduled", "Normal", version=4), event(1, "FailedMount", version=10)],
            MOUNTED,
            id="a kubelet whose clock is an hour behind the scheduler's reports last",
        ),
    ],
)
def test_the_last_message(events: list[dict[str, Any]], expected: Blocker | None) -> None:
    assert last_trouble(events, "u1") == expected


class Setting:
    """The Events of one job's objects, and the time."""

    def __init__(self, answer: Any, on_ask: Callable[[str], None] = lambda path: None) -> None:
        self.api, self.now = ApiOfAnswers({EVENTS.path("ns"): answer}, on_ask), 100.0
        self.events = ClusterEvents(cast(Api, self.api), KEY, lambda: self.now)

    def after(self, seconds: float, *suspects: Suspect) -> dict[Suspect, Blocker]:
        self.now += seconds
        return dict(asyncio.run(self.events.about(suspects)))


def test_it_is_asked_after_a_while_then_later_each_time_and_what_was_received_stays() -> None:
    context, message = Setting({"items": [MOUNT]}), {POD: MOUNTED}
    assert context.after(0, POD) == {}
    assert context.api.asked == []
    assert context.after(EVENTS_PATIENCE_SECONDS, POD) == message
    assert context.after(ASK_AGAIN_SECONDS[0] - 1, POD) == message
    assert len(context.api.asked) == 1
    for times, seconds in enumerate((1, 2 * ASK_AGAIN_SECONDS[0], 4 * ASK_AGAIN_SECONDS[0]), 2):
        assert context.after(seconds, POD) == message
        assert len(context.api.asked) == times


def test_who_is_no_suspect_any_more_is_forgotten() -> None:
    context = Setting({"items": [MOUNT]})
    context.after(0, POD)
    context.after(EVENTS_PATIENCE_SECONDS, POD)
    assert context.after(1) == {}
    assert context.after(1, POD) == {}


def test_an_operator_without_the_right_to_read_them_works_on() -> None:
    context = Setting(403)
    context.after(0, POD)
    assert context.after(EVENTS_PATIENCE_SECONDS, POD) == {}
    assert len(context.api.asked) == 1


def test_a_server_that_does_not_answer_is_waited_for_once_in_a_turn() -> None:
    def silent(_: str) -> None:
        raise ApiUnreachable("no answer in 15 s")

    context, others = Setting({"items": []}, silent), [Suspect("Pod", f"job-actor-{n}", f"u{n}") for n in range(4)]
    context.after(0, *others)
    context.after(EVENTS_PATIENCE_SECONDS, *others)
    assert len(context.api.asked) == 1
