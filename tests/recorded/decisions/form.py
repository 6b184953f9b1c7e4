"""The recorded form of a turn and of what was decided, and the way from there to today's types.

Inside, the form is that of messages and of the status in Kubernetes; outside, it is `Observed`, `Decision` and the
actions as they were when this was recorded. Where a type takes another shape, the functions here translate, and the
data stays.
"""

from __future__ import annotations

from typing import TypeVar, get_args

from pydantic import TypeAdapter

from rljob_api.status import RLJobStatus
from rljob_operator.core import Decision, Event, Observed, decide
from rljob_operator.core.decision import Action
from rljob_operator.core.deletion import deletion_event, with_deletion
from tests.recorded.canonical import Json
from tests.recorded.decisions.world import DeletedTurn, Turn

T = TypeVar("T")

_OBSERVED = TypeAdapter(Observed)
_STATUS = TypeAdapter(RLJobStatus)
_EVENT = TypeAdapter(Event)
_ACTIONS: dict[str, TypeAdapter[Action]] = {kind.__name__: TypeAdapter(kind) for kind in get_args(Action)}


def form_of(turn: Turn | DeletedTurn) -> dict[str, Json]:
    """A turn's inputs: the status, what was observed beside it, and the time."""
    match turn:
        case Turn(observed, now):
            written = _written(_OBSERVED, observed)
            assert isinstance(written, dict)
            status = written.pop("status")
            processes: list[Json] = [*sorted(observed.processes)]
            return {"now": now, "status": status, "observed": {**written, "processes": processes}}
        case DeletedTurn(status, finalizers, has_pods, now):
            deletion: Json = {"finalizers": list(finalizers), "has_pods": has_pods}
            return {"now": now, "status": _written(_STATUS, status), "deletion": deletion}


def decided(form: dict[str, Json]) -> dict[str, Json]:
    """The form of what today's core decides of a turn in this form."""
    now, deletion = form["now"], form.get("deletion")
    assert isinstance(now, float | int)
    if isinstance(deletion, dict):
        return _decided_of_deletion(form["status"], deletion, now)
    observed = form["observed"]
    assert isinstance(observed, dict)
    decision = decide(_OBSERVED.validate_python({**observed, "status": form["status"]}), now)
    return _form_of_decision(decision)


def _form_of_decision(decision: Decision) -> dict[str, Json]:
    return {
        "status": _written(_STATUS, decision.status),
        "actions": [_form_of_action(action) for action in decision.actions],
        "events": [_written(_EVENT, event) for event in decision.events],
        "next_turn_at": decision.next_turn_at,
    }


def _form_of_action(action: Action) -> Json:
    name = type(action).__name__
    fields = _written(_ACTIONS[name], action)
    assert isinstance(fields, dict)
    return {"action": name, **fields}


def _decided_of_deletion(status: Json, deletion: dict[str, Json], now: float) -> dict[str, Json]:
    finalizers = TypeAdapter(tuple[str, ...]).validate_python(deletion["finalizers"])
    before = _STATUS.validate_python(status)
    after = with_deletion(before, finalizers, now, has_pods=bool(deletion["has_pods"]))
    event = _written(_EVENT, deletion_event(finalizers, now))
    return {"status": _written(_STATUS, after), "actions": [], "events": [event]}


def _written(adapter: TypeAdapter[T], value: T) -> Json:
    written: Json = adapter.dump_python(value, mode="json", by_alias=True)
    return written
