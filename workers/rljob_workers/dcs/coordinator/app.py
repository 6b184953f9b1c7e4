"""The coordinator's HTTP routes and long polls. Each carries out one method of `Coordinator` at the executor.

`serving` builds it; `hot_routes` has what every pod asks all the time. Logs are written in a thread of their own, so
that a slow volume delays no beat. Translates; decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, TypeVar

from pydantic import Field
from starlette.types import ASGIApp

from rljob_api.base import ApiModel, WireModel
from rljob_api.names import Role
from rljob_api.wire.checkpoints import (
    CheckpointBegin,
    CheckpointGiveUp,
    CheckpointPartRequest,
    CheckpointRequest,
    DamageRequest,
)
from rljob_api.wire.epochs import DesiredState, EpochRequest
from rljob_api.wire.failures import Failure, FailureAcknowledgement
from rljob_api.wire.inputs import InputReport
from rljob_api.wire.launchers import LauncherHello, ReplicaAnswer
from rljob_api.wire.logs import LogTail
from rljob_api.wire.observation import ServerState
from rljob_api.wire.queue import MAX_PEEK_ROWS, MAX_PEEK_VALUES, DrainRequest, QueueCheck, RowState
from rljob_api.wire.ranks import Notice, RankHello, Rendezvous, StepReport
from rljob_api.wire.turns import TurnRequest
from rljob_api.wire.weights import PartRequest, SourceRequest
from rljob_workers.dcs.coordinator.context import Topic, bad_request, not_open
from rljob_workers.dcs.coordinator.hot_routes import LONGEST_WAIT_SECONDS, HotRoutes
from rljob_workers.dcs.coordinator.metrics import exposition
from rljob_workers.dcs.coordinator.queue_room import PeekRequest
from rljob_workers.dcs.coordinator.router import NOTHING, Answer, Request, Router, TokenGuard, as_json
from rljob_workers.dcs.coordinator.serial_executor import SerialExecutor
from rljob_workers.kept_logs import RetainedLogs

M = TypeVar("M", bound=ApiModel)


class _Waits(WireModel):
    """The query of a long poll."""

    wait: Annotated[float, Field(ge=0, le=LONGEST_WAIT_SECONDS)] = 0.0


def add_requests(router: Router, executor: SerialExecutor) -> None:
    """Every route that carries out one method in the thread, with the request's body, and answers what that returns."""
    coordinator, progress = executor.coordinator, executor.coordinator.progress
    when_usable = partial(_add_request, router, executor.do_when_usable)
    when_usable("POST", "/v1/epoch", EpochRequest, coordinator.raise_epoch)
    when_usable("POST", "/v1/failures", Failure, coordinator.report_failure)
    when_usable("POST", "/v1/failures/acknowledge", FailureAcknowledgement, progress.acknowledge)
    when_open = partial(_add_request, router, executor.do_when_open)
    when_open("PUT", "/v1/desired", DesiredState, coordinator.order)
    when_open("POST", "/v1/ranks", RankHello, coordinator.register_rank)
    when_open("POST", "/v1/notices", Notice, progress.take_notice)
    when_open("POST", "/v1/inputs", InputReport, coordinator.inputs.take)
    when_open("POST", "/v1/steps", StepReport, coordinator.report_step)
    when_open("POST", "/v1/weights/parts", PartRequest, coordinator.weights.take_part)
    when_open("POST", "/v1/weights/sources", SourceRequest, coordinator.weights.add_source)
    when_open("POST", "/v1/checkpoints/begin", CheckpointBegin, progress.begin_attempt)
    when_open("POST", "/v1/checkpoints/parts", CheckpointPartRequest, progress.take_part)
    when_open("POST", "/v1/checkpoints/give-up", CheckpointGiveUp, progress.give_up)
    when_open("POST", "/v1/checkpoints/damaged", DamageRequest, coordinator.restoring.take_report)
    when_open("POST", "/v1/checkpoints", CheckpointRequest, coordinator.record)
    when_open("PUT", "/v1/queue/drain", DrainRequest, coordinator.queue.drain)


def _add_request(
    router: Router,
    do: Callable[[Callable[[], ApiModel | None]], Awaitable[ApiModel | None]],
    method: str,
    path: str,
    model: type[M],
    work: Callable[[M], ApiModel | None],
) -> None:
    async def carry_out(request: Request) -> Answer:
        return as_json(await do(partial(work, await request.stated(model, "body"))))

    router.add(method, path, carry_out)


def _add_checkpoint_routes(router: Router, executor: SerialExecutor) -> None:
    async def attempt(request: Request) -> Answer:
        progress, folder, wait = executor.coordinator.progress, request.name, request.asked(_Waits, "query").wait
        whole = await executor.await_answer(Topic.CHECKPOINTS, partial(progress.whole_attempt, folder), wait)
        return as_json(whole or executor.read(partial(progress.attempt, folder)))

    router.add("GET", "/v1/checkpoints/attempts/{folder}", attempt)


_LOG = logging.getLogger("rljob.coordinator")


class _LogsAsked(WireModel):
    role: Role | None = None
    previous: bool = False


def add_log_routes(router: Router, logs: RetainedLogs) -> None:
    """`/v1/logs`."""
    one_write = asyncio.Lock()
    unkept: set[str] = set()

    async def keep(request: Request) -> Answer:
        tail = await request.stated(LogTail, "body")
        async with one_write:
            try:
                await asyncio.to_thread(logs.retain, tail)
            except OSError as error:  # a full volume must not end the job: its checkpoints report it
                if tail.name not in unkept:
                    _LOG.warning("the log of %s is not kept: %s", tail.name, error)
                unkept.add(tail.name)
        return NOTHING

    async def retained(request: Request) -> Answer:
        asked = request.asked(_LogsAsked, "query")
        return as_json(await asyncio.to_thread(partial(logs.read, asked.role, previous=asked.previous)))

    router.add("PUT", "/v1/logs", keep)
    router.add("GET", "/v1/logs", retained)


class _RowsAsked(WireModel):
    partition: int | None = Field(default=None, ge=0)
    task: str | None = None
    state: RowState | None = None
    field: str | None = None
    first: int = Field(default=0, ge=0)
    limit: int = Field(default=10, ge=1, le=MAX_PEEK_ROWS)
    values: int = Field(default=8, ge=0, le=MAX_PEEK_VALUES)


def add_queue_routes(router: Router, executor: SerialExecutor) -> None:
    """`/v1/queue` and what is below it."""
    room = executor.coordinator.queue
    one_check = asyncio.Lock()

    async def stats(_: Request) -> Answer:
        return as_json(await executor.do_when_open(room.stats))

    async def rows(request: Request) -> Answer:
        asked = request.asked(_RowsAsked, "query")
        peek = PeekRequest(
            asked.partition, asked.task, asked.state, asked.field, asked.first, asked.limit, asked.values
        )
        return as_json(await executor.do_when_open(partial(room.peek, peek)))

    async def check(_: Request) -> Answer:
        # Step by step, one check at a time: beats and polls are served in between.
        async with one_check:
            number, steps = await executor.do_when_open(room.check_steps)
            broken = [line for step in steps for line in await executor.do_when_open(step)]
        return as_json(QueueCheck(partitions=number, broken=list(dict.fromkeys(broken))))

    async def drain_state(_: Request) -> Answer:
        return as_json(await executor.do_when_open(room.drain_state))

    router.add("GET", "/v1/queue", stats)
    router.add("GET", "/v1/queue/rows", rows)
    router.add("GET", "/v1/queue/check", check)
    router.add("GET", "/v1/queue/drain", drain_state)


MAX_REPORTED_FAILURES = 100
"""At a time, oldest first: the supervisor acknowledges them, and asks again. It does not take an endless answer."""


def build_app(executor: SerialExecutor, token: str, logs: RetainedLogs) -> ASGIApp:
    """The application."""
    router = Router()
    HotRoutes(executor).add_to(router)
    _supervisor_routes(router, executor)
    _launcher_routes(router, executor)
    _rank_routes(router, executor)
    add_requests(router, executor)
    _add_checkpoint_routes(router, executor)
    add_queue_routes(router, executor)
    add_log_routes(router, logs)
    _probe_routes(router, executor)
    return TokenGuard(router, token)


class _EventsAsked(_Waits):
    after: int = Field(default=0, ge=0)
    quiet: list[str] = Field(default_factory=list)


def _supervisor_routes(router: Router, executor: SerialExecutor) -> None:
    coordinator = executor.coordinator

    async def status(_: Request) -> Answer:
        status = await executor.do(coordinator.status)
        return as_json(status.model_copy(update={"failures": status.failures[:MAX_REPORTED_FAILURES]}))

    async def events(request: Request) -> Answer:
        """All events after `after`; those of a `quiet` kind are not a reason to answer before the wait is over."""
        asked, store = request.asked(_EventsAsked, "query"), coordinator.store
        if asked.after > store.last_event:
            await executor.do(partial(store.raise_event_id, asked.after))
        page = await executor.await_answer(Topic.EVENTS, partial(store.news, asked.after, asked.quiet), asked.wait)
        return as_json(page or executor.read(partial(store.events_after, asked.after)))

    router.add("GET", "/v1/status", status)
    router.add("GET", "/v1/events", events)


def _launcher_routes(router: Router, executor: SerialExecutor) -> None:
    coordinator = executor.coordinator

    async def register(request: Request) -> Answer:
        hello = await request.stated(LauncherHello, "body")
        coordinator.launchers.receive_hello(hello)
        await executor.do_when_open(partial(coordinator.launchers.register, hello))
        return NOTHING

    async def replica(request: Request) -> Answer:
        wait = request.asked(_Waits, "query").wait

        def reading() -> ReplicaAnswer | None:
            coordinator.gate.require_open()
            pod = coordinator.epochs.replica_of(request.name)
            return None if pod is None else ReplicaAnswer(pod=pod)

        await executor.wait_open()
        return as_json(await executor.await_answer(Topic.REPLICAS, reading, wait) or ReplicaAnswer(pod=None))

    router.add("POST", "/v1/launchers", register)
    router.add("GET", "/v1/replicas/{pod_uid}", replica)


class _RendezvousAsked(_Waits):
    epoch: int
    generation: int
    incarnation: str


class _FirstRankAsked(_Waits):
    role: Role
    epoch: int
    incarnation: str


def _rank_routes(router: Router, executor: SerialExecutor) -> None:
    coordinator = executor.coordinator

    async def offer_rendezvous(request: Request) -> Answer:
        group, rendezvous = request.name, await request.stated(Rendezvous, "body")
        if rendezvous.group != group:
            raise bad_request(f"rendezvous: the path says {group}, the body {rendezvous.group}. Say the same in both.")
        await executor.do_when_open(partial(coordinator.rendezvous.offer, rendezvous))
        return NOTHING

    async def find_rendezvous(request: Request) -> Answer:
        group, asked = request.name, request.asked(_RendezvousAsked, "query")
        await executor.do_when_open(partial(coordinator.rendezvous.come, group, asked.incarnation))
        complete = partial(coordinator.rendezvous.find_complete, group, asked.epoch, asked.generation)
        rendezvous = await executor.await_answer(Topic.RENDEZVOUS, complete, asked.wait)
        waits_for = partial(coordinator.rendezvous.waits_for, group, asked.incarnation)
        return as_json(executor.read(waits_for) if rendezvous is None else rendezvous)

    async def first_rank(request: Request) -> Answer:
        asked, ranks = request.asked(_FirstRankAsked, "query", role=request.name), coordinator.ranks
        await executor.wait_open()
        registered = partial(ranks.registered_first_of, asked.role, asked.epoch, asked.incarnation)
        answer = await executor.await_answer(Topic.RANKS, registered, asked.wait, asked.role.value)
        first = partial(ranks.first_of, asked.role, asked.epoch, asked.incarnation)
        return as_json(answer or executor.read(first))

    async def take_turn(request: Request) -> Answer:
        wait, turn = request.asked(_Waits, "query").wait, await request.stated(TurnRequest, "body")
        await executor.do_when_open(partial(coordinator.turns.take, turn))
        decided = await executor.await_answer(Topic.TURNS, partial(coordinator.turns.decided, turn), wait)
        return as_json(decided or executor.read(partial(coordinator.turns.answer, turn)))

    router.add("PUT", "/v1/rendezvous/{group}", offer_rendezvous)
    router.add("GET", "/v1/rendezvous/{group}", find_rendezvous)
    router.add("GET", "/v1/roles/{role}/first-rank", first_rank)
    router.add("POST", "/v1/turns", take_turn)


PLAIN = b"text/plain; charset=utf-8"


EXPOSITION = b"text/plain; version=0.0.4; charset=utf-8"
"""The format of Prometheus."""


def _probe_routes(router: Router, executor: SerialExecutor) -> None:
    coordinator = executor.coordinator

    async def healthz(_: Request) -> Answer:
        return Answer(b"ok", PLAIN)

    async def readyz(_: Request) -> Answer:
        if coordinator.gate.state is ServerState.OPENING:
            raise not_open(f"The coordinator waits for {coordinator.gate.waiting_for}.")
        return Answer(b"ready", PLAIN)

    async def metrics(_: Request) -> Answer:
        text = await executor.do(partial(exposition, coordinator))
        return Answer(text.encode(), EXPOSITION)

    router.add("GET", "/healthz", healthz)
    router.add("GET", "/readyz", readyz)
    router.add("GET", "/metrics", metrics)
