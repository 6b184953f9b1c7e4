"""The cause of a wait is an Event once it lasts, and again before the API server forgets it."""

from rljob_api.status import Condition, ConditionType, RLJobStatus
from rljob_operator.kube.events import AGAIN_SECONDS, PATIENCE_SECONDS, WaitEvents


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def status(reason: str, text: str = "False", message: str = "no node", *, over: bool = False) -> RLJobStatus:
    kinds = {ConditionType.READY: text, **({ConditionType.FAILED: "True"} if over else {})}
    return RLJobStatus(
        conditions=[
            Condition(type=kind, status=each, reason=reason, message=message, last_transition_time="")
            for kind, each in kinds.items()
        ]
    )


def reported(*steps: tuple[float, RLJobStatus]) -> list[tuple[float, str]]:
    """When what is emitted, if a status is looked at at these times."""
    return [(at, reason) for at, reason, _ in notes(*steps)]


def notes(*steps: tuple[float, RLJobStatus]) -> list[tuple[float, str, str]]:
    """The same with the sentences."""
    clock = Clock()
    waits, found = WaitEvents(clock), []
    for clock.now, seen in steps:
        record = waits.of(seen)
        if record is not None:
            assert record.type == "Warning"
            found.append((clock.now, record.reason, record.note))
    return found


def lacks(what: str, *, of: int = 3) -> RLJobStatus:
    message = f"waiting for rollout-{of} (0/{of} nodes are available: {of} Insufficient {what})"
    return status("Unschedulable", message=message)


def test_a_cause_is_emitted_once_it_has_lasted_and_again_much_later() -> None:
    retained, at = status("Unschedulable"), PATIENCE_SECONDS
    assert reported((0.0, retained), (at - 1, retained)) == []
    assert reported((0.0, retained), (at, retained), (at + 1, retained)) == [(at, "Unschedulable")]
    later = at + AGAIN_SECONDS
    assert reported((0.0, retained), (at, retained), (later, retained)) == [
        (at, "Unschedulable"),
        (later, "Unschedulable"),
    ]


def test_another_cause_has_its_own_patience() -> None:
    one, other = status("Unschedulable"), status("ImagePullBackOff")
    assert reported((0.0, one), (9.0, other), (12.0, other), (19.0, other)) == [(19.0, "ImagePullBackOff")]
    assert reported((0.0, one), (9.0, status("Ready", "True")), (12.0, one)) == []


def test_another_sentence_of_the_same_cause_is_emitted_once_it_has_lasted() -> None:
    cpu, gpu = lacks("cpu"), lacks("nvidia.com/gpu")
    found = notes((0.0, cpu), (10.0, cpu), (20.0, gpu), (29.0, gpu), (30.0, gpu), (31.0, gpu))
    assert [(at, "nvidia" in note) for at, _, note in found] == [(10.0, False), (30.0, True)]
    assert [at for at, _ in reported(*((float(at), cpu) for at in range(0, 1600, 5)))] == [10.0, 10.0 + AGAIN_SECONDS]


def test_numbers_and_what_goes_back_and_forth_are_no_news() -> None:
    assert reported(*((float(at), lacks("cpu", of=at)) for at in range(100))) == [(10.0, "Unschedulable")]
    cpu, gpu = lacks("cpu"), lacks("nvidia.com/gpu")
    back = [(0.0, cpu), (10.0, cpu), (20.0, gpu), (25.0, cpu), (40.0, cpu)]
    assert reported(*back) == [(10.0, "Unschedulable")], "it did not last"
    turns = [(float(at), (cpu, gpu)[at // 15 % 2]) for at in range(0, 1000, 5)]
    assert reported(*turns) == [(10.0, "Unschedulable"), (25.0, "Unschedulable")]


def test_what_is_no_cause_or_has_an_event_of_its_own_is_not_emitted() -> None:
    for reason in ("Starting", "Restarting", "BackingOff", "Scaling", "ObjectRefused", "Draining", "Suspended"):
        assert reported((0.0, status(reason)), (1000.0, status(reason))) == []
    assert reported((0.0, status("Unschedulable", over=True)), (1000.0, status("Unschedulable", over=True))) == []


def test_the_job_is_looked_at_when_there_is_something_to_emit() -> None:
    clock = Clock()
    waits = WaitEvents(clock)
    assert waits.due_in is None
    waits.of(status("Unschedulable"))
    assert waits.due_in == PATIENCE_SECONDS
    waits.of(status("Ready", "True"))
    assert waits.due_in is None
