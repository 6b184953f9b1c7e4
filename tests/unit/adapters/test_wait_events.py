"""The cause of a wait is an Event once it lasts, and again before the API server forgets it."""

from rljob_api.status import Condition, ConditionType, RLJobStatus
from rljob_operator.adapters.wait_events import AGAIN_SECONDS, PATIENCE_SECONDS, WaitEvents


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def status(reason: str, word: str = "False", *, over: bool = False) -> RLJobStatus:
    kinds = {ConditionType.READY: word, **({ConditionType.FAILED: "True"} if over else {})}
    return RLJobStatus(
        conditions=[
            Condition(type=kind, status=each, reason=reason, message="no node", last_transition_time="")
            for kind, each in kinds.items()
        ]
    )


def told(*steps: tuple[float, RLJobStatus]) -> list[tuple[float, str]]:
    """When what is emitted, if a status is looked at at these times."""
    clock = Clock()
    waits, found = WaitEvents(clock), []
    for clock.now, seen in steps:
        record = waits.of(seen)
        if record is not None:
            assert (record.type, record.note) == ("Warning", "no node")
            found.append((clock.now, record.reason))
    return found


def test_a_cause_is_emitted_once_it_has_lasted_and_again_much_later() -> None:
    kept, at = status("Unschedulable"), PATIENCE_SECONDS
    assert told((0.0, kept), (at - 1, kept)) == []
    assert told((0.0, kept), (at, kept), (at + 1, kept)) == [(at, "Unschedulable")]
    later = at + AGAIN_SECONDS
    assert told((0.0, kept), (at, kept), (later, kept)) == [(at, "Unschedulable"), (later, "Unschedulable")]


def test_another_cause_has_its_own_patience() -> None:
    one, other = status("Unschedulable"), status("ImagePullBackOff")
    assert told((0.0, one), (9.0, other), (12.0, other), (19.0, other)) == [(19.0, "ImagePullBackOff")]
    assert told((0.0, one), (9.0, status("Ready", "True")), (12.0, one)) == []


def test_what_is_no_cause_or_has_an_event_of_its_own_is_not_emitted() -> None:
    for reason in ("Starting", "Restarting", "BackingOff", "Scaling", "ObjectRefused"):
        assert told((0.0, status(reason)), (1000.0, status(reason))) == []
    assert told((0.0, status("Unschedulable", over=True)), (1000.0, status("Unschedulable", over=True))) == []


def test_the_job_is_looked_at_when_there_is_something_to_emit() -> None:
    clock = Clock()
    waits = WaitEvents(clock)
    assert waits.look_again_at is None
    waits.of(status("Unschedulable"))
    assert waits.look_again_at == PATIENCE_SECONDS
    waits.of(status("Ready", "True"))
    assert waits.look_again_at is None
