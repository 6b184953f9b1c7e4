"""The coordinator's HTTP side: routes and long polls. Translates; decides nothing.

Built by `serving`. Every route carries out one method of `Coordinator` at the executor; what every pod asks all the
time is in `hot_routes`.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.types import ASGIApp

from rljob_api.wire.epochs import DesiredState, EpochRequest
from rljob_api.wire.failures import Failure, FailureAcknowledgement
from rljob_api.wire.launchers import LauncherHello, ReplicaAnswer
from rljob_api.wire.observation import EventPage, ServerState
from rljob_api.wire.ranks import Notice, RankHello, Rendezvous, StepReport
from rljob_api.wire.weights import PartRequest, SourceRequest
from rljob_workers.dcs.coordinator.answers import Wait, as_json
from rljob_workers.dcs.coordinator.checkpoint_routes import add_checkpoint_routes
from rljob_workers.dcs.coordinator.hot_routes import HotRoutes
from rljob_workers.dcs.coordinator.log_routes import add_log_routes
from rljob_workers.dcs.coordinator.metrics import exposition
from rljob_workers.dcs.coordinator.notifier import Topic
from rljob_workers.dcs.coordinator.queue_routes import add_queue_routes
from rljob_workers.dcs.coordinator.refusals import Refused, bad_request, invalid, not_found, not_open
from rljob_workers.dcs.coordinator.serial_executor import SerialExecutor
from rljob_workers.dcs.coordinator.token_guard import TokenGuard
from rljob_workers.kept_logs import KeptLogs

MAX_TOLD_FAILURES = 100
"""At a time, oldest first: the supervisor acknowledges them, and asks again. It does not take an endless answer."""


def build_app(executor: SerialExecutor, token: str, logs: KeptLogs) -> ASGIApp:
    """The application."""
    app = FastAPI(title="RLJob coordinator", openapi_url=None)
    _answer_refusals(app)
    _supervisor_routes(app, executor)
    _launcher_routes(app, executor)
    _rank_routes(app, executor)
    _weight_routes(app, executor)
    add_checkpoint_routes(app, executor)
    add_queue_routes(app, executor)
    add_log_routes(app, logs)
    _probe_routes(app, executor)
    return TokenGuard(HotRoutes(app, executor), token)


def _nothing() -> None:
    """What is done once the control Redis is open."""


def _answer_refusals(app: FastAPI) -> None:
    @app.exception_handler(Refused)
    async def answer_refusal(_: Request, refused: Refused) -> Response:
        return Response(refused.body, refused.status, media_type="application/json")

    @app.exception_handler(RequestValidationError)
    async def answer_invalid(_: Request, error: RequestValidationError) -> Response:
        return await answer_refusal(_, invalid(error.errors()))


def _supervisor_routes(app: FastAPI, executor: SerialExecutor) -> None:
    coordinator = executor.coordinator

    @app.post("/v1/epoch")
    async def raise_epoch(request: EpochRequest) -> Response:
        return as_json(await executor.do_when_usable(partial(coordinator.raise_epoch, request)))

    @app.put("/v1/desired")
    async def order(desired: DesiredState) -> Response:
        await executor.do_when_open(partial(coordinator.order, desired))
        return as_json(None)

    @app.get("/v1/status")
    async def status() -> Response:
        status = await executor.do(coordinator.status)
        return as_json(status.model_copy(update={"failures": status.failures[:MAX_TOLD_FAILURES]}))

    @app.get("/v1/events")
    async def events(
        after: Annotated[int, Query(ge=0)] = 0,
        wait: Wait = 0.0,
        quiet: Annotated[list[str], Query()] = [],  # noqa: B006 - FastAPI copies it
    ) -> Response:
        """All events after `after`; those of a `quiet` kind are not a reason to answer before the wait is over."""

        def look() -> EventPage | None:
            return coordinator.events(after) if coordinator.has_event(after, quiet) else None

        if after > coordinator.last_event:
            await executor.do(partial(coordinator.has_read, after))
        page = await executor.await_answer(Topic.EVENTS, look, wait)
        return as_json(page or executor.look(partial(coordinator.events, after)))

    @app.post("/v1/failures")
    async def report_failure(failure: Failure) -> Response:
        await executor.do_when_usable(partial(coordinator.report_failure, failure))
        return as_json(None)

    @app.post("/v1/failures/acknowledge")
    async def acknowledge(acknowledgement: FailureAcknowledgement) -> Response:
        await executor.do_when_usable(partial(coordinator.progress.acknowledge, acknowledgement.ids))
        return as_json(None)


def _launcher_routes(app: FastAPI, executor: SerialExecutor) -> None:
    coordinator = executor.coordinator

    @app.post("/v1/launchers")
    async def register(hello: LauncherHello) -> Response:
        coordinator.launchers.hear_hello(hello)
        await executor.do_when_open(partial(coordinator.launchers.register, hello))
        return as_json(None)

    @app.get("/v1/replicas/{pod_uid}")
    async def replica(pod_uid: str, wait: Wait = 0.0) -> Response:
        def look() -> ReplicaAnswer | None:
            coordinator.gate.require_open()
            pod = coordinator.epochs.replica_of(pod_uid)
            return None if pod is None else ReplicaAnswer(pod=pod)

        await executor.do_when_open(_nothing)
        return as_json(await executor.await_answer(Topic.REPLICAS, look, wait) or ReplicaAnswer(pod=None))


def _rank_routes(app: FastAPI, executor: SerialExecutor) -> None:
    coordinator = executor.coordinator

    @app.post("/v1/ranks")
    async def register(hello: RankHello) -> Response:
        return as_json(await executor.do_when_open(partial(coordinator.register_rank, hello)))

    @app.put("/v1/rendezvous/{group}")
    async def offer_rendezvous(group: str, rendezvous: Rendezvous) -> Response:
        if rendezvous.group != group:
            raise bad_request(f"rendezvous: the path says {group}, the body {rendezvous.group}. Say the same in both.")
        await executor.do_when_open(partial(coordinator.rendezvous.offer, rendezvous))
        return as_json(None)

    @app.get("/v1/rendezvous/{group}")
    async def find_rendezvous(
        group: str, epoch: int, generation: int, wait: Wait = 0.0, incarnation: str = ""
    ) -> Response:
        if incarnation:
            await executor.do_when_open(partial(coordinator.rendezvous.come, group, incarnation))
            complete = partial(coordinator.rendezvous.find_complete, group, epoch, generation)
            rendezvous = await executor.await_answer(Topic.RENDEZVOUS, complete, wait)
            waits_for = partial(coordinator.rendezvous.waits_for, group, incarnation)
            return as_json(executor.look(waits_for) if rendezvous is None else rendezvous)
        # Release 0.1.0 asks so, and waits for the others at the address.
        look = partial(coordinator.rendezvous.find, group, epoch, generation)
        rendezvous = await executor.await_answer(Topic.RENDEZVOUS, look, wait)
        if rendezvous is None:
            raise not_found(f"rendezvous {group}: rank 0 of epoch {epoch}, generation {generation} has not said where.")
        return as_json(rendezvous)

    @app.post("/v1/notices")
    async def take_notice(notice: Notice) -> Response:
        await executor.do_when_open(partial(coordinator.progress.take_notice, notice))
        return as_json(None)

    @app.post("/v1/steps")
    async def report_step(report: StepReport) -> Response:
        await executor.do_when_open(partial(coordinator.progress.report_step, report))
        return as_json(None)


def _weight_routes(app: FastAPI, executor: SerialExecutor) -> None:
    coordinator = executor.coordinator

    @app.post("/v1/weights/parts")
    async def take_part(request: PartRequest) -> Response:
        await executor.do_when_open(partial(coordinator.weights.take_part, request))
        return as_json(None)

    @app.post("/v1/weights/sources")
    async def add_source(request: SourceRequest) -> Response:
        await executor.do_when_open(partial(coordinator.weights.add_source, request))
        return as_json(None)


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
