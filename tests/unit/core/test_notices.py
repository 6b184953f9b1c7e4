"""Every reason is in one list, in the docs, and with both sinks: a run's journal and a cluster's Events."""

import asyncio
import re
import time
from pathlib import Path
from typing import Any, cast

import pytest

from rljob_api.names import Epoch, Role, Scope
from rljob_api.status import RestartStatus, RLJobStatus
from rljob_api.wire.observation import CoordinatorEvent, EventKind
from rljob_operator.coordinator_client.link import CoordinatorRefused, CoordinatorUnreachable
from rljob_operator.core import PodEnding, Reason
from rljob_operator.core.notices import REPLAY_SECONDS, REPORTED, end_of, replayed_decisions, reported
from rljob_operator.kube.api import Api
from rljob_operator.kube.errors import refusal
from rljob_operator.kube.events import Events, record_of
from rljob_operator.kube.kinds import EVENTS
from rljob_operator.kube.views import JobKey
from rljob_operator.local.journal import Journal
from rljob_operator.local.run_record import read_lines
from rljob_operator.local.view import View
from tests.unit.core.cluster import make_cluster
from tests.unit.core.worlds import key

DOCS = Path(__file__).parents[3] / "docs"

DECIDED: frozenset[str] = frozenset(
    {
        EventKind.FAILURE_REPORTED,
        EventKind.STATE_LOST,
        EventKind.ROWS_DROPPED,
        EventKind.QUEUE_DRAINS,
        EventKind.TICKETS_GIVEN,
        EventKind.EPOCH_OPENED,
    }
)
"""A turn sees these in the coordinator's status, or carries them out, and reports them itself."""
PROGRESS: frozenset[str] = frozenset(
    {
        EventKind.ROLE_READY,
        EventKind.STEP_TRAINED,
        EventKind.PUBLISHED,
        EventKind.RECORDED,
        EventKind.POD_CHANGED,
    }
)


def table(page: str, heading: str) -> set[str]:
    """The words in the first column of a table of a page."""
    section = (DOCS / page).read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return {text for row in re.findall(r"^\|(.*?)\|", section, re.MULTILINE) for text in re.findall("`(.*?)`", row)}


def test_every_kind_of_the_coordinator_is_reported_or_decided_on_or_progress() -> None:
    assert set(EventKind) == set(REPORTED) | DECIDED | PROGRESS
    assert not set(REPORTED) & (DECIDED | PROGRESS)


def test_every_reason_is_in_the_docs_and_the_table_of_events_names_no_other() -> None:
    events, waits = table("monitoring.md", "Events"), table("monitoring.md", "What a job waits for")
    of_scaling = {Reason.ACTOR_STARVED, Reason.ROLLOUTS_IDLE, Reason.BOUNDS_CHANGED}  # in the status, and no Events
    assert of_scaling <= table("running.md", "Autoscaling of the rollouts") - events
    assert {reason.value for reason in Reason} - of_scaling - events - waits == set()
    assert events - {reason.value for reason in Reason} == set()


def event(kind: str, at: float, number: int = 7) -> CoordinatorEvent:
    return CoordinatorEvent(id=number, kind=kind, at=at, epoch=Epoch(2), message="said", pod=key(Role.ROLLOUT))


class Shown:
    """A view that retains the events that it gets."""

    def __init__(self) -> None:
        self.shown: list[dict[str, Any]] = []

    def event(self, line: dict[str, Any]) -> None:
        self.shown.append(line)


class Server:
    """An API server that keeps events by name."""

    def __init__(self) -> None:
        self.events: dict[str, dict[str, Any]] = {}

    async def create(self, resource: object, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        assert resource is EVENTS
        name = body["metadata"]["name"]
        if name in self.events:
            raise refusal("create events", 409, "AlreadyExists", name)
        self.events[name] = body
        return body


JOB = {"metadata": {"uid": "u1", "name": "job"}}
KEY = JobKey("ns", "job")


@pytest.mark.parametrize("kind", sorted(REPORTED))
def test_both_sinks_report_what_the_coordinator_reports(kind: str, tmp_path: Path) -> None:
    now = time.time()
    view, server = Shown(), Server()
    journal = Journal(tmp_path, cast(View, view), RLJobStatus())
    journal.record(event(kind, now + 1))
    ours = reported(event(kind, now + 1), RLJobStatus())
    assert ours is not None
    asyncio.run(Events(cast(Api, server), "o", time.time).emit(KEY, JOB, record_of(ours), ours.once))

    (line,), (body,) = read_lines(tmp_path / "events.jsonl"), server.events.values()
    assert (line["reason"], line["message"], line["role"]) == (kind, "said", "rollout")
    assert view.shown == [line]
    type_ = "Normal" if kind in (EventKind.EVALUATED, EventKind.EVALUATION_UNFINISHED) else "Warning"
    assert (body["reason"], body["message"], body["type"]) == (kind, "said", type_)


def test_what_an_operator_reported_the_next_one_does_not_report_again() -> None:
    server = Server()
    for number in (7, 7, 8):
        ours = reported(event(EventKind.UNIT_LOST, 1.0, number), RLJobStatus())
        assert ours is not None
        asyncio.run(Events(cast(Api, server), "o", time.time).emit(KEY, JOB, record_of(ours), ours.once))
    assert len(server.events) == 2


def test_a_refusal_has_the_same_reason_everywhere() -> None:
    assert CoordinatorRefused.__name__ == Reason.COORDINATOR_REFUSED.value
    assert CoordinatorUnreachable.__name__ == Reason.COORDINATOR_UNREACHABLE.value


def test_a_restart_and_an_end_are_replayed_under_the_same_name_as_long_as_they_are_recent() -> None:
    world = make_cluster()
    world.end(world.pod(Role.ACTOR), PodEnding.EVICTED)
    (first,) = (each for each in world.turn().events if each.scope is Scope.GLOBAL)
    (again,) = replayed_decisions(world.status, world.now + 1)
    assert (again.reason, again.scope, again.once) == (first.reason, first.scope, first.once)
    assert again.once
    assert replayed_decisions(world.status, world.now + REPLAY_SECONDS) == ()

    world.settle()
    world.recorded = 100
    (first,) = world.turn(REPLAY_SECONDS).events
    (again,) = replayed_decisions(world.status, world.now + 1)
    assert (again.reason, again.message, again.once) == (Reason.SUCCEEDED, first.message, first.once)
    assert first.once == end_of(world.status)


@pytest.mark.parametrize(
    ("epoch", "scope", "is_reported"),
    [
        pytest.param(3, None, False, id="of the epochs before a resume: units keep nothing over that"),
        pytest.param(4, None, True, id="in the epoch that was resumed"),
        pytest.param(3, Scope.GLOBAL, True, id="before a restart that something made necessary"),
    ],
)
def test_an_empty_storage_unit_is_no_alarm_of_a_resume(epoch: int, scope: Scope | None, is_reported: bool) -> None:
    status = RLJobStatus(restart=RestartStatus(epoch=Epoch(4), scope=scope))
    lost = event(EventKind.UNIT_LOST, 1.0).model_copy(update={"epoch": Epoch(epoch)})
    assert (reported(lost, status) is not None) == is_reported
