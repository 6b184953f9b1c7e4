"""The coordinator's HTTP side of checkpoints: begin, parts, giving up, the record."""

from __future__ import annotations

from functools import partial

from fastapi import FastAPI, Response

from rljob_api.wire.checkpoints import CheckpointBegin, CheckpointGiveUp, CheckpointPartRequest, DamageRequest
from rljob_api.wire.weights import CheckpointRequest
from rljob_workers.dcs.coordinator.answers import Wait, as_json
from rljob_workers.dcs.coordinator.notifier import Topic
from rljob_workers.dcs.coordinator.serial_executor import SerialExecutor


def add_checkpoint_routes(app: FastAPI, executor: SerialExecutor) -> None:
    """What the ranks of trainers say of checkpoints."""
    coordinator = executor.coordinator

    @app.post("/v1/checkpoints/begin")
    async def begin(request: CheckpointBegin) -> Response:
        await executor.do_when_open(partial(coordinator.checkpoints.begin, request))
        return as_json(None)

    @app.post("/v1/checkpoints/parts")
    async def take_part(request: CheckpointPartRequest) -> Response:
        return as_json(await executor.do_when_open(partial(coordinator.checkpoints.take_part, request)))

    @app.get("/v1/checkpoints/attempts/{folder}")
    async def attempt(folder: str, wait: Wait = 0.0) -> Response:
        look = partial(coordinator.checkpoints.whole, folder)
        return as_json(await executor.await_answer(Topic.CHECKPOINTS, look, wait))

    @app.post("/v1/checkpoints/give-up")
    async def give_up(request: CheckpointGiveUp) -> Response:
        await executor.do_when_open(partial(coordinator.checkpoints.give_up, request))
        return as_json(None)

    @app.post("/v1/checkpoints/damaged")
    async def take_damage(request: DamageRequest) -> Response:
        await executor.do_when_open(partial(coordinator.restoring.take_report, request))
        return as_json(None)

    @app.post("/v1/checkpoints")
    async def record(request: CheckpointRequest) -> Response:
        return as_json(await executor.do_when_open(partial(coordinator.progress.record, request)))
