"""The coordinator's HTTP side: routes, the token, long polls. Translates; decides nothing.

Built by `__main__`. Every route carries out one method of `Coordinator` at the executor.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError

from rljob_api.base import ApiModel
from rljob_api.names import Lineage, WeightVersion
from rljob_api.wire.epochs import DesiredState, EpochRequest
from rljob_api.wire.failures import Failure, FailureAcknowledgement
from rljob_api.wire.identity import WeightId
from rljob_api.wire.launchers import LauncherAnswer, LauncherHello, LauncherPoll, ReplicaAnswer
from rljob_api.wire.observation import EventPage, ServerState
from rljob_api.wire.ranks import Beat, RankHello, Rendezvous, StepReport
from rljob_api.wire.weights import PartRequest, SourceRequest, Stream, WeightOffer
from rljob_workers.dcs.coordinator.checkpoint_routes import add_checkpoint_routes
from rljob_workers.dcs.coordinator.metrics import exposition
from rljob_workers.dcs.coordinator.notifier import Topic
from rljob_workers.dcs.coordinator.queue_routes import add_queue_routes
from rljob_workers.dcs.coordinator.refusals import Refused, bad_request, not_found, not_open
from rljob_workers.dcs.coordinator.serial_executor import SerialExecutor
from rljob_workers.dcs.coordinator.weight_parts import is_newer

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
"""Probes and scrapes carry no secret, and are told none."""
LONGEST_WAIT_SECONDS = 30.0

Wait = Annotated[float, Query(ge=0, le=LONGEST_WAIT_SECONDS)]
UNAUTHORIZED = 401


def build_app(executor: SerialExecutor, token: str) -> FastAPI:
    """The application."""
    app = FastAPI(title="RLJob coordinator", openapi_url=None)
    _guard(app, token)
    _supervisor_routes(app, executor)
    _launcher_routes(app, executor)
    _rank_routes(app, executor)
    _weight_routes(app, executor)
    add_checkpoint_routes(app, executor)
    add_queue_routes(app, executor)
    _probe_routes(app, executor)
    return app


def _nothing() -> None:
    """What is done once the control Redis is open."""


def _json(model: ApiModel | None, status: int = 200) -> Response:
    body = "null" if model is None else model.model_dump_json()
    return Response(body, status, media_type="application/json")


def _guard(app: FastAPI, token: str) -> None:
    """The token on every request, compared in constant time; refusals as answers."""
    expected = token.encode()

    @app.middleware("http")
    async def check_token(request: Request, proceed: Callable[[Request], Awaitable[Response]]) -> Response:
        given = request.headers.get("x-rljob-token", "").encode()
        if request.url.path in OPEN_PATHS or hmac.compare_digest(given, expected):
            return await proceed(request)
        refused = bad_request("X-RLJob-Token is missing or wrong. Send the job's token.")
        return _json(refused.refusal, UNAUTHORIZED)

    @app.exception_handler(Refused)
    async def answer_refusal(_: Request, refused: Refused) -> Response:
        return _json(refused.refusal, refused.status)

    @app.exception_handler(RequestValidationError)
    async def answer_invalid(_: Request, error: RequestValidationError) -> Response:
        problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        refused = bad_request(problems)
        return _json(refused.refusal, refused.status)


def _supervisor_routes(app: FastAPI, executor: SerialExecutor) -> None:
    coordinator = executor.coordinator

    @app.post("/v1/epoch")
    async def raise_epoch(request: EpochRequest) -> Response:
        return _json(await executor.do_when_usable(partial(coordinator.raise_epoch, request)))

    @app.put("/v1/desired")
    async def order(desired: DesiredState) -> Response:
        await executor.do_when_open(partial(coordinator.order, desired))
        return _json(None)

    @app.get("/v1/status")
    async def status() -> Response:
        return _json(await executor.do(coordinator.status))

    @app.get("/v1/events")
    async def events(
        after: Annotated[int, Query(ge=0)] = 0,
        wait: Wait = 0.0,
        quiet: Annotated[list[str], Query()] = [],  # noqa: B006 - FastAPI copies it
    ) -> Response:
        """All events after `after`; those of a `quiet` kind are not a reason to answer before the wait is over."""

        def look() -> EventPage | None:
            return coordinator.events(after) if coordinator.has_event(after, quiet) else None

        page = await executor.await_answer(Topic.EVENTS, look, wait)
        return _json(page or await executor.do(partial(coordinator.events, after)))

    @app.post("/v1/failures")
    async def report_failure(failure: Failure) -> Response:
        await executor.do_when_usable(partial(coordinator.report_failure, failure))
        return _json(None)

    @app.post("/v1/failures/acknowledge")
    async def acknowledge(acknowledgement: FailureAcknowledgement) -> Response:
        await executor.do_when_usable(partial(coordinator.progress.acknowledge, acknowledgement.ids))
        return _json(None)


def _launcher_routes(app: FastAPI, executor: SerialExecutor) -> None:
    coordinator = executor.coordinator

    @app.post("/v1/launchers")
    async def register(hello: LauncherHello) -> Response:
        coordinator.pods.hear_hello(hello)
        executor.notifier.notify(Topic.SERVER)
        await executor.do_when_open(partial(coordinator.pods.register_launcher, hello))
        return _json(None)

    @app.get("/v1/replicas/{pod_uid}")
    async def replica(pod_uid: str, wait: Wait = 0.0) -> Response:
        def look() -> ReplicaAnswer | None:
            coordinator.gate.require_open()
            pod = coordinator.epochs.replica_of(pod_uid)
            return None if pod is None else ReplicaAnswer(pod=pod)

        await executor.do_when_open(_nothing)
        return _json(await executor.await_answer(Topic.ORDERS, look, wait) or ReplicaAnswer(pod=None))

    @app.post("/v1/launchers/{launcher}/poll")
    async def poll(launcher: str, poll: LauncherPoll) -> Response:
        coordinator.pods.hear_poll(launcher, poll)
        executor.notifier.notify(Topic.SERVER)

        def look() -> LauncherAnswer | None:
            coordinator.gate.require_open()
            answer = coordinator.pods.answer(launcher, poll.carried)
            return answer if answer.order != poll.carried and answer.order is not None else None

        await executor.do_when_open(_nothing)  # a closed server is not asked again and again
        answer = await executor.await_answer(Topic.ORDERS, look, poll.wait_seconds)
        coordinator.pods.note_answered(launcher)
        return _json(answer or await executor.do(partial(coordinator.pods.answer, launcher, poll.carried)))


def _rank_routes(app: FastAPI, executor: SerialExecutor) -> None:
    coordinator = executor.coordinator

    @app.post("/v1/ranks")
    async def register(hello: RankHello) -> Response:
        return _json(await executor.do_when_open(partial(coordinator.register_rank, hello)))

    @app.post("/v1/ranks/beat")
    async def beat(beat: Beat) -> Response:
        coordinator.pods.hear_beat(beat)
        return _json(await executor.do_when_open(partial(coordinator.beat, beat)))

    @app.put("/v1/rendezvous/{group}")
    async def offer_rendezvous(group: str, rendezvous: Rendezvous) -> Response:
        if rendezvous.group != group:
            raise bad_request(f"rendezvous: the path says {group}, the body {rendezvous.group}. Say the same in both.")
        await executor.do_when_open(partial(coordinator.rendezvous.offer, rendezvous))
        return _json(None)

    @app.get("/v1/rendezvous/{group}")
    async def find_rendezvous(group: str, epoch: int, generation: int, wait: Wait = 0.0) -> Response:
        look = partial(coordinator.rendezvous.find, group, epoch, generation)
        rendezvous = await executor.await_answer(Topic.RENDEZVOUS, look, wait)
        if rendezvous is None:
            raise not_found(f"rendezvous {group}: rank 0 of epoch {epoch}, generation {generation} has not said where.")
        return _json(rendezvous)

    @app.post("/v1/steps")
    async def report_step(report: StepReport) -> Response:
        await executor.do_when_open(partial(coordinator.progress.report_step, report))
        return _json(None)


def _weight_routes(app: FastAPI, executor: SerialExecutor) -> None:
    coordinator = executor.coordinator

    @app.post("/v1/weights/parts")
    async def take_part(request: PartRequest) -> Response:
        await executor.do_when_open(partial(coordinator.weights.take_part, request))
        return _json(None)

    @app.post("/v1/weights/sources")
    async def add_source(request: SourceRequest) -> Response:
        await executor.do_when_open(partial(coordinator.weights.add_source, request))
        return _json(None)

    @app.get("/v1/weights/{stream}")
    async def newest(stream: Stream, lineage: int = -1, version: int = -1, wait: Wait = 0.0) -> Response:
        held = WeightId(lineage=Lineage(lineage), version=WeightVersion(version))

        def look() -> WeightOffer | None:
            offer = coordinator.weights.newest(stream)
            return offer if offer is not None and is_newer(offer.id, held) else None

        return _json(await executor.await_answer(Topic.WEIGHTS, look, wait))


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
