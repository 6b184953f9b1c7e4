"""What crosses a process: JSON schemas of all messages, and the routes of all servers.

Titles and docstrings are left out, and so is the manifest, which the CRD pins. The servers are made as their processes
make them, and asked for their routes; nothing listens, and no Redis is there.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import pkgutil
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import httpx
import redis
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.routing import Route
from starlette.types import ASGIApp

from rljob_api import wire
from rljob_api.spec import RLJob
from rljob_api.wire.identity import Endpoints
from rljob_operator.cluster.health_server import metrics_pages, probe_pages
from rljob_workers.dcs.coordinator import records
from rljob_workers.dcs.coordinator.app import build_app
from rljob_workers.dcs.coordinator.context import CoordinatorContext, Notifier
from rljob_workers.dcs.coordinator.coordinator import Coordinator
from rljob_workers.dcs.coordinator.router import Router, TokenGuard
from rljob_workers.dcs.coordinator.serial_executor import SerialExecutor
from rljob_workers.dcs.coordinator.server_gate import ON_ONE_MACHINE
from rljob_workers.dcs.weights import chunk_transfer
from rljob_workers.engines.torch_engine import dialect
from rljob_workers.engines.torch_engine.server import HttpApi
from rljob_workers.kept_logs import RetainedLogs
from rljob_workers.launcher import probes
from rljob_workers.pipeline import queue_shape
from rljob_workers.transfer_queue.admin import QueueAdmin
from tests.recorded.canonical import Json, text_of
from tests.recorded.renames import RENAMES, Recording, renamed_within

FILE = Path(__file__).parent / "data/wire.json"

_MANIFEST = "RLJob"

_NOWHERE = "redis://127.0.0.1:1/0"

_JOB = RLJob.model_validate(
    {
        "metadata": {"name": "test"},
        "spec": {
            "model": {"config": {}},
            "data": {"prompts": "prompts.jsonl"},
            "rollout": {"numRollouts": 4, "batchSize": 2, "samplesPerPrompt": 2},
            "training": {"globalBatchSize": 4, "microBatchSize": 2},
        },
    }
)
_ENDPOINTS = Endpoints(
    job="test",
    coordinator="http://127.0.0.1:1",
    token="of the job",
    control_redis=_NOWHERE,
    storage_units=[_NOWHERE],
    run_dir="/nowhere",
    weights_dir="/nowhere",
)

NONSENSE = ({"params": {"wait": "never", "after": "x", "limit": "x", "lineage": "x"}}, {"content": b'{"nonsense": 1}'})
"""Queries and bodies that no route takes."""
REACHED_SECONDS = 0.2
"""A request that is not refused by then is carried out, which nothing here does."""


def wire_today() -> dict[str, Json]:
    """Everything by its section and name."""
    return {
        "messages": cast("Json", _schemas()),
        "coordinator": cast("Json", asyncio.run(_coordinator())),
        "engine": cast("Json", _engine()),
        "launcher": {path: ["GET"] for path in probes.PATHS},
        "operator": {path: ["GET"] for path in _operator_pages()},
    }


def record() -> None:
    """A line for each message and each route."""
    sections = []
    for section, entries in wire_today().items():
        assert isinstance(entries, dict)
        lines = ",\n".join(f"{json.dumps(name)}: {text_of(entry)}" for name, entry in sorted(entries.items()))
        sections.append(f"{json.dumps(section)}: {{\n{lines}\n}}")
    FILE.write_text("{\n" + ",\n".join(sections) + "\n}\n")


def recorded() -> dict[str, Json]:
    """As `wire_today` gave it, by today's names."""
    found = renamed_within(json.loads(FILE.read_text()), RENAMES[Recording.WIRE])
    assert isinstance(found, dict)
    return found


def _modules() -> Iterator[ModuleType]:
    for found in pkgutil.iter_modules(wire.__path__):
        yield importlib.import_module(f"{wire.__name__}.{found.name}")
    yield from (chunk_transfer, dialect, records)


def _models() -> list[type[BaseModel]]:
    found = [(module, each) for module in _modules() for each in vars(module).values()]
    return [
        each
        for module, each in found
        if isinstance(each, type) and issubclass(each, BaseModel) and each.__module__ == module.__name__
    ]


def _schemas() -> dict[str, Any]:
    """Of all messages, and of what they are made of."""
    asked = [(model, mode) for model in _models() for mode in ("validation", "serialization")]
    _, schemas = models_json_schema(asked)  # type: ignore[arg-type]  # a list of either mode
    models: dict[str, Any] = {**schemas["$defs"], _MANIFEST: {"pinned by": "crds/rljob.dev_rljobs.yaml"}}
    used = {model.__name__ for model in _models()}
    ends = {name for name in models if name.rpartition("__")[2].partition("-")[0] in used}
    return {name: _bare(models[name]) for name in _reached(models, ends)}


def _reached(models: Mapping[str, Any], names: set[str]) -> set[str]:
    """With all that they refer to; the manifest refers to nothing."""
    reached: set[str] = set()
    while names - reached:
        name = (names - reached).pop()
        reached.add(name)
        names = names | set(_references(models[name]))
    return reached


def _references(schema: object) -> Iterator[str]:
    match schema:
        case {"$ref": str(reference)}:
            yield reference.rpartition("/")[2]
        case dict():
            for each in schema.values():
                yield from _references(each)
        case list():
            for each in schema:
                yield from _references(each)


def _bare(schema: Json) -> Json:
    """Without what only people read; a field may have such a name."""
    match schema:
        case dict():
            texts = {"title", "description"}
            return {k: _bare(v) for k, v in schema.items() if k not in texts or not isinstance(v, str)}
        case list():
            return [_bare(each) for each in schema]
        case _:
            return schema


async def _coordinator() -> dict[str, Any]:
    with closing(QueueAdmin(_ENDPOINTS, queue_shape(_JOB.spec))) as admin:
        context = CoordinatorContext(
            job=_JOB,
            store=records.Store(redis.Redis.from_url(_NOWHERE)),
            admin=admin,
            clock=time.monotonic,
            wall=time.time,
            notify=lambda topic, keys=None: None,
        )
        coordinator = Coordinator(context, Path(_ENDPOINTS.run_dir), ON_ONE_MACHINE)
        executor = SerialExecutor(coordinator, Notifier(asyncio.get_running_loop()))
        app = build_app(executor, _ENDPOINTS.token, RetainedLogs(Path(_ENDPOINTS.run_dir)))
        return {name: await _refusals(app, *name.split(" ")) for name in _routes(app)}


def _routes(app: ASGIApp) -> list[str]:
    """`METHOD path` of every endpoint."""
    router = cast("Router", cast("TokenGuard", app)._app)
    named = {"{}".join(parts): methods for parts, methods in router._named.items()}
    return [f"{method} {path}" for path, methods in {**router._fixed, **named}.items() for method in methods]


async def _refusals(app: ASGIApp, method: str, path: str) -> list[str]:
    """Of a request without the token, and of nonsense with it."""
    transport = httpx.ASGITransport(app=cast("Any", app), raise_app_exceptions=False)
    token = {"x-rljob-token": _ENDPOINTS.token}
    found = []
    async with httpx.AsyncClient(transport=transport, base_url="http://coordinator") as client:
        for given in ({}, *({"headers": token, **each} for each in NONSENSE)):
            try:
                async with asyncio.timeout(REACHED_SECONDS):
                    answer = await client.request(method, path.format("nonsense"), **cast("Any", given))
            except TimeoutError:
                found.append("reached")
                continue
            is_refused = answer.status_code in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED)
            found.append(f"{answer.status_code} {answer.json()['message']}" if is_refused else "reached")
    return found


def _engine() -> dict[str, Any]:
    none = cast("Any", None)  # handlers use it, and none is called
    routes = [route for route in HttpApi(none, none, "0" * 12).app().routes if isinstance(route, Route)]
    return {route.path: sorted(route.methods or ()) for route in routes}


def _operator_pages() -> list[str]:
    none = cast("Any", None)
    return [*probe_pages(none), *metrics_pages(none, none)]
