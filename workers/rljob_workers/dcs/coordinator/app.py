"""The coordinator's HTTP routes and long polls. Each carries out one method of `Coordinator` at the executor.

`serving` builds it; `asgi_layers` answers what every pod asks all the time. Logs are written in a thread of their own,
so that a slow volume delays no beat. Translates; decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, TypeVar

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.types import ASGIApp

from rljob_api.base import ApiModel
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
from rljob_workers.dcs.coordinator.asgi_layers import LONGEST_WAIT_SECONDS, HotRoutes, TokenGuard
from rljob_workers.dcs.coordinator.context import Refused, Topic, bad_request, invalid, not_open
from rljob_workers.dcs.coordinator.metrics import exposition
from rljob_workers.dcs.coordinator.queue_room import PeekRequest
from rljob_workers.dcs.coordinator.serial_executor import SerialExecutor
from rljob_workers.kept_logs import RetainedLogs

M = TypeVar("M", bound=ApiModel)

Wait = Annotated[float, Query(ge=0, le=LONGEST_WAIT_SECONDS)]


def as_json(model: ApiModel | None) -> Response:
    """The whole answer; null where there is none."""
    body = "null" if model is None else model.model_dump_json()
    return Response(body, media_type="application/json")


def add_requests(app: FastAPI, executor: SerialExecutor) -> None:
    """Every route that carries out one method in the thread, with the request's body, and answers what that returns."""
    coordinator, progress = executor.coordinator, executor.coordinator.progress
    when_usable = partial(_add_request, app, executor.do_when_usable)
    when_usable("POST", "/v1/epoch", EpochRequest, coordinator.raise_epoch)
    when_usable("POST", "/v1/failures", Failure, coordinator.report_failure)
    when_usable("POST", "/v1/failures/acknowledge", FailureAcknowledgement, progress.acknowledge)
    when_open = partial(_add_request, app, executor.do_when_open)
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
    app: FastAPI,
    do: Callable[[Callable[[], ApiModel | None]], Awaitable[ApiModel | None]],
    method: str,
    path: str,
    model: type[M],
    work: Callable[[M], ApiModel | None],
) -> None:
    async def carry_out(request: M) -> Response:
        return as_json(await do(partial(work, request)))

    carry_out.__annotations__ = {"request": model, "return": Response}  # by which FastAPI checks the body
    app.add_api_route(path, carry_out, methods=[method])


def _add_checkpoint_routes(app: FastAPI, executor: SerialExecutor) -> None:
    @app.get("/v1/checkpoints/attempts/{folder}")
    async def attempt(folder: str, wait: Wait = 0.0) -> Response:
        progress = executor.coordinator.progress
        whole = await executor.await_answer(Topic.CHECKPOINTS, partial(progress.whole_attempt, folder), wait)
        return as_json(whole or executor.read(partial(progress.attempt, folder)))


_LOG = logging.getLogger("rljob.coordinator")


def add_log_routes(app: FastAPI, logs: RetainedLogs) -> None:
    """`/v1/logs`."""
    one_write = asyncio.Lock()
    unkept: set[str] = set()

    @app.put("/v1/logs")
    async def keep(tail: LogTail) -> Response:
        async with one_write:
            try:
                await asyncio.to_thread(logs.retain, tail)
            except OSError as error:  # a full volume must not end the job: its checkpoints report it
                if tail.name not in unkept:
                    _LOG.warning("the log of %s is not kept: %s", tail.name, error)
                unkept.add(tail.name)
        return as_json(None)

    @app.get("/v1/logs")
    async def retained(role: Role | None = None, previous: bool = False) -> Response:
        return as_json(await asyncio.to_thread(partial(logs.read, role, previous=previous)))


def add_queue_routes(app: FastAPI, executor: SerialExecutor) -> None:
    """`/v1/queue` and what is below it."""
    room = executor.coordinator.queue

    @app.get("/v1/queue")
    async def stats() -> Response:
        return as_json(await executor.do_when_open(room.stats))

    @app.get("/v1/queue/rows")
    async def rows(
        partition: Annotated[int | None, Query(ge=0)] = None,
        task: str | None = None,
        state: RowState | None = None,
        field: str | None = None,
        first: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_PEEK_ROWS)] = 10,
        values: Annotated[int, Query(ge=0, le=MAX_PEEK_VALUES)] = 8,
    ) -> Response:
        request = PeekRequest(partition, task, state, field, first, limit, values)
        return as_json(await executor.do_when_open(partial(room.peek, request)))

    one_check = asyncio.Lock()

    @app.get("/v1/queue/check")
    async def check() -> Response:
        # Step by step, one check at a time: beats and polls are served in between.
        async with one_check:
            number, steps = await executor.do_when_open(room.check_steps)
            broken = [line for step in steps for line in await executor.do_when_open(step)]
        return as_json(QueueCheck(partitions=number, broken=list(dict.fromkeys(broken))))

    @app.get("/v1/queue/drain")
    async def drain_state() -> Response:
        return as_json(await executor.do_when_open(room.drain_state))


MAX_REPORTED_FAILURES = 100
"""At a time, oldest first: the supervisor acknowledges them, and asks again. It does not take an endless answer."""


def build_app(executor: SerialExecutor, token: str, logs: RetainedLogs) -> ASGIApp:
    """The application."""
    app = FastAPI(title="RLJob coordinator", openapi_url=None)
    _answer_refusals(app)
    _supervisor_routes(app, executor)
    _launcher_routes(app, executor)
    _rank_routes(app, executor)
    add_requests(app, executor)
    _add_checkpoint_routes(app, executor)
    add_queue_routes(app, executor)
    add_log_routes(app, logs)
    _probe_routes(app, executor)
    return TokenGuard(HotRoutes(app, executor), token)


def _answer_refusals(app: FastAPI) -> None:
    @app.exception_handler(Refused)
    async def answer_refusal(_: Request, refused: Refused) -> Response:
        return Response(refused.body, refused.status, media_type="application/json")

    @app.exception_handler(RequestValidationError)
    async def answer_invalid(_: Request, error: RequestValidationError) -> Response:
        return await answer_refusal(_, invalid(error.errors()))


def _supervisor_routes(app: FastAPI, executor: SerialExecutor) -> None:
    coordinator = executor.coordinator

    @app.get("/v1/status")
    async def status() -> Response:
        status = await executor.do(coordinator.status)
        return as_json(status.model_copy(update={"failures": status.failures[:MAX_REPORTED_FAILURES]}))

    @app.get("/v1/events")
    async def events(
        after: Annotated[int, Query(ge=0)] = 0,
        wait: Wait = 0.0,
        quiet: Annotated[list[str], Query()] = [],  # noqa: B006 - FastAPI copies it
    ) -> Response:
        """All events after `after`; those of a `quiet` kind are not a reason to answer before the wait is over."""
        store = coordinator.store
        if after > store.last_event:
            await executor.do(partial(store.raise_event_id, after))
        page = await executor.await_answer(Topic.EVENTS, partial(store.news, after, quiet), wait)
        return as_json(page or executor.read(partial(store.events_after, after)))


def _launcher_routes(app: FastAPI, executor: SerialExecutor) -> None:
    coordinator = executor.coordinator

    @app.post("/v1/launchers")
    async def register(hello: LauncherHello) -> Response:
        coordinator.launchers.receive_hello(hello)
        await executor.do_when_open(partial(coordinator.launchers.register, hello))
        return as_json(None)

    @app.get("/v1/replicas/{pod_uid}")
    async def replica(pod_uid: str, wait: Wait = 0.0) -> Response:
        def reading() -> ReplicaAnswer | None:
            coordinator.gate.require_open()
            pod = coordinator.epochs.replica_of(pod_uid)
            return None if pod is None else ReplicaAnswer(pod=pod)

        await executor.wait_open()
        return as_json(await executor.await_answer(Topic.REPLICAS, reading, wait) or ReplicaAnswer(pod=None))


def _rank_routes(app: FastAPI, executor: SerialExecutor) -> None:
    coordinator = executor.coordinator

    @app.put("/v1/rendezvous/{group}")
    async def offer_rendezvous(group: str, rendezvous: Rendezvous) -> Response:
        if rendezvous.group != group:
            raise bad_request(f"rendezvous: the path says {group}, the body {rendezvous.group}. Say the same in both.")
        await executor.do_when_open(partial(coordinator.rendezvous.offer, rendezvous))
        return as_json(None)

    @app.get("/v1/rendezvous/{group}")
    async def find_rendezvous(group: str, epoch: int, generation: int, incarnation: str, wait: Wait = 0.0) -> Response:
        await executor.do_when_open(partial(coordinator.rendezvous.come, group, incarnation))
        complete = partial(coordinator.rendezvous.find_complete, group, epoch, generation)
        rendezvous = await executor.await_answer(Topic.RENDEZVOUS, complete, wait)
        waits_for = partial(coordinator.rendezvous.waits_for, group, incarnation)
        return as_json(executor.read(waits_for) if rendezvous is None else rendezvous)

    @app.get("/v1/roles/{role}/first-rank")
    async def first_rank(role: Role, epoch: int, incarnation: str, wait: Wait = 0.0) -> Response:
        await executor.wait_open()
        registered = partial(coordinator.ranks.registered_first_of, role, epoch, incarnation)
        answer = await executor.await_answer(Topic.RANKS, registered, wait, role.value)
        return as_json(answer or executor.read(partial(coordinator.ranks.first_of, role, epoch, incarnation)))

    @app.post("/v1/turns")
    async def take_turn(request: TurnRequest, wait: Wait = 0.0) -> Response:
        await executor.do_when_open(partial(coordinator.turns.take, request))
        decided = await executor.await_answer(Topic.TURNS, partial(coordinator.turns.decided, request), wait)
        return as_json(decided or executor.read(partial(coordinator.turns.answer, request)))


def _probe_routes(app: FastAPI, executor: SerialExecutor) -> None:
    coordinator = executor.coordinator

    @app.get("/healthz")
    async def healthz() -> Response:
        return Response("ok")

    @app.get("/readyz")
    async def readyz() -> Response:
        if coordinator.gate.state is ServerState.OPENING:
            raise not_open(f"The coordinator waits for {coordinator.gate.waiting_for}.")
        return Response("ready")

    @app.get("/metrics")
    async def metrics() -> Response:
        text = await executor.do(partial(exposition, coordinator))
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
