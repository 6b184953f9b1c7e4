"""Makes the coordinator out of the job's files and serves it: uvicorn, background duties, clean end.

Called by `__main__` only.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import redis
import redis.asyncio
import uvloop
from redis.backoff import NoBackoff
from redis.retry import Retry
from starlette.types import ASGIApp

from rljob_api.spec import RLJob
from rljob_api.wire.identity import Endpoints
from rljob_api.wire.observation import ServerState
from rljob_workers.bounded_http import BoundedServer
from rljob_workers.dcs.coordinator.app import build_app
from rljob_workers.dcs.coordinator.context import CoordinatorContext, Notifier, Refused, Topic
from rljob_workers.dcs.coordinator.coordinator import Coordinator
from rljob_workers.dcs.coordinator.records import Store
from rljob_workers.dcs.coordinator.serial_executor import SerialExecutor
from rljob_workers.dcs.coordinator.server_gate import ON_ONE_MACHINE, TICK_SECONDS, OpeningPatience
from rljob_workers.dcs.coordinator.written_record import WrittenRecord
from rljob_workers.dcs.membership.rank_context import checkpoint_dir
from rljob_workers.kept_logs import RetainedLogs
from rljob_workers.pipeline import queue_shape
from rljob_workers.sockets import redis_options
from rljob_workers.transfer_queue.admin import QueueAdmin, QueueAdminTiming

REDIS_TIMEOUT_SECONDS = 2.0
CHECK_SECONDS = 0.25
"""Between two checks of an open control Redis; a request that fails closes it sooner."""
OPENING_CHECK_SECONDS = 0.02
TIMING = QueueAdminTiming(patience_seconds=0.3)
"""The one thread must not wait long inside a call: what opens a restarted server runs in it too."""
UNITS_SECONDS = 0.5
SWEEP_SECONDS = 2.0
RECORD_WAIT_SECONDS = 5.0
"""A store that is read from the control Redis sends no notices."""
RECORD_PAUSE_SECONDS = 5.0
"""After an error of the volume that trackers read from."""
CARE_SHARE = 0.1
"""Largest share of the thread's time that each may take: units which do not answer, and sweeps of a hundred thousand
chunks."""

_ONCE = Retry(NoBackoff(), 0)
"""The one thread must not sleep in a client: the client asks again, and the watch checks often."""

_LOG = logging.getLogger("rljob.coordinator")


def serve(listener: socket.socket, endpoints_file: Path, manifest: Path) -> None:
    """Serves until the process is ended."""
    endpoints = Endpoints.model_validate_json(endpoints_file.read_bytes())
    job = RLJob.model_validate_json(manifest.read_bytes())
    serve_job([listener], lambda _: endpoints, job, ON_ONE_MACHINE, lambda *_: None)


RecordOf = Callable[[RLJob, Endpoints], WrittenRecord | None]
"""What is to be written for trackers; on one machine the supervisor writes it."""


def serve_job(
    listeners: Sequence[socket.socket],
    endpoints_of: Callable[[RLJob], Endpoints],
    job: RLJob,
    opening: OpeningPatience,
    record_of: RecordOf,
) -> None:
    """Serves until SIGTERM or SIGINT. An epoch with another job makes everything again, on the same sockets."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _ended)  # uvicorn raises the signal again once it has shut down
    following: RLJob | None = job
    while following is not None:
        endpoints = endpoints_of(following)
        record = record_of(following, endpoints)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            following = runner.run(_serve(listeners, endpoints, following, opening, record))


def _ended(*_: object) -> None:
    """The process leaves by itself: its server receives the signal too."""


async def _serve(
    listeners: Sequence[socket.socket],
    endpoints: Endpoints,
    job: RLJob,
    opening: OpeningPatience,
    record: WrittenRecord | None,
) -> RLJob | None:
    """Serves one job; the one to serve next, or None at the end."""
    notifier = Notifier(asyncio.get_running_loop())
    url = endpoints.control_redis
    connection = redis.Redis.from_url(url, socket_timeout=REDIS_TIMEOUT_SECONDS, retry=_ONCE, **redis_options(url))
    context = CoordinatorContext(
        job=job,
        store=Store(connection),
        admin=QueueAdmin(endpoints, queue_shape(job.spec), timing=TIMING),
        clock=time.monotonic,
        wall=time.time,
        notify=notifier.notify,
    )
    executor = SerialExecutor(Coordinator(context, checkpoint_dir(job, endpoints), opening), notifier)
    server = _Server(build_app(executor, endpoints.token, RetainedLogs(Path(endpoints.run_dir))), executor)
    work = [_tick(executor), _watch(executor), _tend_units(executor), _sweep(executor)]
    if job.spec.evaluation is not None:
        work.append(_end_evaluations(executor, url))
    if record is not None:
        work.append(_write_record(executor, record))
    duties = [asyncio.create_task(duty) for duty in work]
    try:
        # Copies, since the server closes its sockets: callers wait in the backlog of ours meanwhile.
        await server.serve(sockets=[listener.dup() for listener in listeners])
    finally:
        for duty in duties:
            duty.cancel()
        executor.close()
        connection.close()
    successor = executor.coordinator.gate.successor
    if successor is not None:
        _LOG.info("begins anew: an epoch has another job")
    return successor


class _Server(BoundedServer):
    """Answers requests that still wait before it closes: what uvicorn cancels after a second would be an error 500."""

    def __init__(self, app: ASGIApp, executor: SerialExecutor) -> None:
        super().__init__(app, log_level="warning", timeout_keep_alive=75, timeout_graceful_shutdown=1)
        self._executor = executor

    async def on_tick(self, counter: int) -> bool:
        """Whether it ends: also where another job is to be served."""
        return await super().on_tick(counter) or self._executor.coordinator.gate.successor is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See the base."""
        self._executor.leave()
        await super().shutdown(sockets)


async def _tick(executor: SerialExecutor) -> None:
    """In the loop, which receives the requests: the thread may be busy meanwhile."""
    attended = executor.coordinator.gate.attended
    while True:
        attended.tick()
        await asyncio.sleep(TICK_SECONDS)


async def _watch(executor: SerialExecutor) -> None:
    """Notices restarts of the control Redis and opens it."""
    gate = executor.coordinator.gate
    while True:
        before = gate.state
        await _try(executor, gate.check)
        if gate.state is not before:
            _LOG.info("control Redis: %s", gate.state.value)
            executor.notifier.notify(Topic.SERVER)
        await asyncio.sleep(OPENING_CHECK_SECONDS if gate.state is ServerState.OPENING else CHECK_SECONDS)


async def _tend_units(executor: SerialExecutor) -> None:
    while True:
        began = time.monotonic()
        await _try(executor, executor.coordinator.check_units)
        await _try(executor, executor.coordinator.check_prompts)
        await _try(executor, executor.coordinator.check_held_work)
        await _try(executor, executor.coordinator.check_evaluation)
        await asyncio.sleep(max(UNITS_SECONDS, (time.monotonic() - began) / CARE_SHARE))


async def _end_evaluations(executor: SerialExecutor, url: str) -> None:
    """At once when the last sample is scored: training waits for it. A notice that is lost costs UNITS_SECONDS."""
    while True:
        connection = redis.asyncio.Redis.from_url(url, **redis_options(url))
        with suppress(redis.RedisError, OSError):
            async with connection, connection.pubsub() as notices:
                await notices.subscribe("n:scored")
                async for _ in notices.listen():
                    await _try(executor, executor.coordinator.check_evaluation)
        await asyncio.sleep(UNITS_SECONDS)


async def _sweep(executor: SerialExecutor) -> None:
    while True:
        began = time.monotonic()
        await _try(executor, executor.coordinator.sweep)
        await asyncio.sleep(max(SWEEP_SECONDS, (time.monotonic() - began) / CARE_SHARE))


async def _write_record(executor: SerialExecutor, record: WrittenRecord) -> None:
    """Follows the coordinator's own events, from the first that it still has. A volume that fails is asked again."""
    store, reported = executor.coordinator.store, ""
    last: int | None = None
    while True:
        try:
            if last is None:
                await asyncio.to_thread(record.begin)
                last = 0
            if last > store.last_event:
                await executor.do(partial(store.raise_event_id, last))
            page = await executor.await_answer(Topic.EVENTS, partial(store.news, last, ()), RECORD_WAIT_SECONDS)
            if page is not None and page.events:
                await asyncio.to_thread(record.write, page.events)
                last = page.events[-1].id
        except Refused:  # it ends, or begins anew with another job
            return
        except Exception as error:
            if str(error) != reported:
                _LOG.warning("trackers get nothing: the record of the run cannot be written: %s", error)
            reported = str(error)
            await asyncio.sleep(RECORD_PAUSE_SECONDS)


async def _try(executor: SerialExecutor, duty: Callable[[], None]) -> None:
    """A duty that fails is tried again at its next turn: the coordinator must live."""
    try:
        await executor.do(duty)
    except Refused as refused:
        _LOG.debug("%s", refused)
    except Exception:
        _LOG.exception("a background duty failed")
