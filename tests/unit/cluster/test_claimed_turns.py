"""Turns by claim: a job has one where its namespace is this release's; elsewhere an Event says why not."""

import asyncio
from typing import Any, cast

import pytest

from rljob_operator.cluster.claimed_turns import ClaimedTurns
from rljob_operator.cluster.reconcile import Reconciler
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.events import EventRecord, Events
from rljob_operator.kube.namespace_claims import NamespaceClaims
from rljob_operator.kube.views import JobKey
from rljob_operator.kube.work_queue import NextTurn

KEY = JobKey("a", "job")
NEXT = NextTurn(7.0)


class Rooms:
    """A claim that a test moves, and what is done about jobs."""

    release = "rl/one"

    def __init__(self) -> None:
        self.seconds = 0.0
        self.holder = ""
        self.done: list[str] = []
        self.cache = Cache(lambda key, urgency: None)
        self.turns = ClaimedTurns(cast(Reconciler, self), cast(NamespaceClaims, self), self.cache, cast(Events, self))

    def held_for(self, namespace: str) -> float:
        return self.seconds

    def other_holder(self, namespace: str) -> str:
        return self.holder

    async def turn(self, key: JobKey) -> NextTurn:
        self.done.append("turn")
        if self.seconds < 1:
            await asyncio.Event().wait()
        return NEXT

    async def forget(self, key: JobKey) -> None:
        self.done.append("forget")

    async def emit(self, key: JobKey, raw: dict[str, Any], record: EventRecord, once: str) -> None:
        self.done.append(f"{record.reason}: {record.note}")

    def put(self, uid: str = "uid", **spec: Any) -> None:
        metadata = {"namespace": KEY.namespace, "name": KEY.name, "uid": uid, "resourceVersion": "1"}
        self.cache.put_job({"metadata": metadata, "spec": spec})

    def after_a_turn(self) -> tuple[NextTurn | None, list[str]]:
        self.done.clear()
        return asyncio.run(self.turns.turn(KEY)), list(self.done)


TEXT = (
    "OtherOperator: the operator rl/one leaves this job alone: rl/two takes care of namespace a by the Lease"
    " jobs.rljob.dev. Let one of the two serve it (`namespaces` of the chart), or uninstall rl/two: 90 s after its last"
    " renewal this operator takes over"
)


def test_a_job_is_brought_on_where_the_claim_is_held_and_forgotten_where_it_is_not_yet() -> None:
    rooms = Rooms()
    rooms.put()
    assert rooms.after_a_turn() == (None, ["forget"])
    rooms.seconds = 60.0
    assert rooms.after_a_turn() == (NEXT, ["turn"])


def test_an_event_names_the_other_release_once_for_each_job_and_holder() -> None:
    rooms = Rooms()
    rooms.put()
    rooms.holder = "rl/two"
    assert rooms.after_a_turn() == (None, ["forget", TEXT])
    assert rooms.after_a_turn() == (None, ["forget"])
    rooms.holder = "rl/three"
    assert rooms.after_a_turn() == (None, ["forget", TEXT.replace("rl/two", "rl/three")])
    rooms.put(uid="another")
    assert rooms.after_a_turn() == (None, ["forget", TEXT.replace("rl/two", "rl/three")])
    rooms.seconds, rooms.holder = 60.0, ""
    assert rooms.after_a_turn() == (NEXT, ["turn"])
    rooms.seconds, rooms.holder = 0.0, "rl/three"
    assert rooms.after_a_turn() == (None, ["forget", TEXT.replace("rl/two", "rl/three")])


def test_a_job_that_is_gone_or_managed_by_another_operator_gets_no_event() -> None:
    rooms = Rooms()
    rooms.holder = "rl/two"
    assert rooms.after_a_turn() == (None, ["forget"])
    rooms.put(managedBy="example.org/other")
    assert rooms.after_a_turn() == (None, ["forget"])


def test_a_turn_that_would_outlive_the_claim_is_given_up() -> None:
    rooms = Rooms()
    rooms.put()
    rooms.seconds = 0.01
    with pytest.raises(TimeoutError):
        rooms.after_a_turn()
