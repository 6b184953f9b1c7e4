"""One update of a server's weights, by the mode that decides what becomes of samples that run.

| mode    | samples that run                        | their tokens afterwards                                        |
|---------|-----------------------------------------|----------------------------------------------------------------|
| Retract | wait; their cache is dropped            | as if the new weights had read all before them: recomputed     |
| InPlace | are frozen; their cache stays           | new weights on what the old ones cached: no model's own tokens |
| Drain   | end first, while the gate holds new ones back | none: each sample has one version                        |

The server has no label from before its weights change until all of them have, so that a client that dies in between
leaves a server without a label. `Gate` holds requests back before they are sent: one that waits at the paused server
loses its abort.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from rljob_api.names import Lineage, WeightVersion
from rljob_api.spec.weights import Interruption
from rljob_api.wire.identity import WeightId
from rljob_workers.engines.base import EngineError, EngineRefused, EngineTimeout
from rljob_workers.engines.sglang.connection import Connection
from rljob_workers.engines.sglang.model_folder import Shapes, misfit, stored_shapes

NOTHING = "none"
"""What a server is called while its weights are replaced: a later question finds that they do not count."""


def label_of(weight: WeightId) -> str:
    """As it is given to a server."""
    return f"{weight.lineage}:{weight.version}"


def weight_of(label: object) -> WeightId | None:
    """None for all that we did not give: a server begins with `default`."""
    lineage, colon, version = str(label).partition(":")
    if not colon or not lineage.isdecimal() or not version.isdecimal():
        return None
    return WeightId(lineage=Lineage(int(lineage)), version=WeightVersion(int(version)))


class Recalled(Exception):
    """The request has to be sent again: what it would read of the server's cache is of the weights before."""


_TURN_SECONDS = 0.005


@asynccontextmanager
async def _recallable(requests: set[asyncio.Timeout]) -> AsyncIterator[None]:
    """A request is one of these; Recalled once its time is over."""
    try:
        async with asyncio.timeout(None) as recalled:
            requests.add(recalled)
            try:
                yield
            finally:
                requests.discard(recalled)
    except TimeoutError as error:
        if not recalled.expired():  # it is of what was waited for
            raise
        raise Recalled from error


class Gate:
    """Of one server, in one event loop."""

    def __init__(self) -> None:
        """Open, without requests inside."""
        self._open = asyncio.Event()
        self._open.set()
        self._vacant = asyncio.Event()
        self._vacant.set()
        self._updates = asyncio.Lock()
        self._inside = 0
        self._unbegun: set[asyncio.Timeout] = set()
        self._confined: set[asyncio.Timeout] = set()

    @asynccontextmanager
    async def passed(self) -> AsyncIterator[None]:
        """Inside, once the gate is open."""
        while not self._open.is_set():
            await self._open.wait()
        with self._counted():
            yield

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """No request comes in; one update at a time."""
        async with self._updates:
            self._open.clear()
            try:
                yield
            finally:
                self._open.set()

    @asynccontextmanager
    async def unbegun(self) -> AsyncIterator[None]:
        """Inside, until the first token has come; Recalled where `recall` was called before that."""
        async with _recallable(self._unbegun):
            yield

    @asynccontextmanager
    async def confined(self) -> AsyncIterator[None]:
        """Inside, with tokens of one version of the weights; Recalled where `recall_confined` was called meanwhile."""
        async with _recallable(self._confined):
            yield

    async def recall_confined(self) -> None:
        """Ends what must not run on under other weights, and waits until its requests are given up."""
        now = asyncio.get_running_loop().time()
        for request in self._confined:
            request.reschedule(now)
        while self._confined:
            await asyncio.sleep(_TURN_SECONDS)

    def recall(self) -> None:
        """Ends the wait of all who are inside and have no token yet."""
        now = asyncio.get_running_loop().time()
        for request in self._unbegun:
            request.reschedule(now)

    async def vacant(self) -> None:
        """Until those who are inside have left."""
        await self._vacant.wait()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._inside += 1
        self._vacant.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._vacant.set()


_CONTINUE_SECONDS = 5.0
"""Of its own: after a deadline the server must not stay paused. A frozen server is waited for no longer than that."""


_PAUSES = {Interruption.RETRACT: "retract", Interruption.IN_PLACE: "in_place", Interruption.DRAIN: "retract"}
"""As SGLang names them. After a drain nothing runs that could be retracted."""


async def require_fit(folder: Path, shapes: Shapes) -> None:
    """EngineRefused where the folder has not exactly the tensors of the model."""
    try:
        found = await asyncio.to_thread(stored_shapes, folder)
    except ValueError as error:
        raise EngineRefused(f"Weights cannot be loaded: {error}") from error
    wrong = misfit(found, shapes)
    if wrong is not None:
        raise EngineRefused(f"Weights in {folder} do not fit the engine's model: {wrong}. Nothing was sent to it.")


async def drain(gate: Gate, *, deadline: float) -> None:
    """Until no sample is at the server; EngineTimeout where some are still."""
    try:
        async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
            await gate.vacant()
    except TimeoutError as error:
        raise EngineTimeout(
            "An update with interruption Drain waited for samples that still ran at its deadline. Raise "
            "weightSync.timeoutSeconds, or set weightSync.interruption to Retract."
        ) from error


async def replace_weights(
    connection: Connection,
    folder: Path,
    label: str,
    interruption: Interruption,
    require_same_incarnation: Callable[[], None],
    *,
    deadline: float,
) -> None:
    """Pauses, loads, names, continues. On an error the weights have no name, unless nothing had begun."""
    async with _paused(connection, _PAUSES[interruption], deadline):
        await rename(connection, NOTHING, deadline=deadline)
        update = {
            "model_path": str(folder),
            "load_format": "auto",  # else that of its start, which makes weights up
            # Frozen samples hold their cache, so that a flush would fail, after the weights have changed.
            "flush_cache": interruption is not Interruption.IN_PLACE,
            "abort_all_requests": False,
        }
        await connection.post("/update_weights_from_disk", update, deadline=deadline)
        require_same_incarnation()
        await rename(connection, label, deadline=deadline)


async def rename(connection: Connection, label: str, *, deadline: float) -> None:
    """The label that the server reports from now on for its weights, and for tokens that they make."""
    # By default it would abort every sample first.
    body = {"new_version": label, "abort_all_requests": False}
    await connection.post("/update_weight_version", body, deadline=deadline)


@asynccontextmanager
async def _paused(connection: Connection, mode: str, deadline: float) -> AsyncIterator[None]:
    try:
        await connection.post("/pause_generation", {"mode": mode}, deadline=deadline)
        yield
    except BaseException:
        with suppress(EngineError):  # the error that led here has the cause; a dead server needs no end of its pause
            await asyncio.shield(_continue(connection, time.monotonic() + _CONTINUE_SECONDS))
        raise
    await _continue(connection, deadline)


async def _continue(connection: Connection, deadline: float) -> None:
    await connection.post("/continue_generation", {}, deadline=deadline)
