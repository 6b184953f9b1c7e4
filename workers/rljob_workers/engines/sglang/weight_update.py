"""One update of a server's weights, by the mode that says what becomes of samples that run.

| mode    | samples that run                        | their tokens afterwards                                        |
|---------|-----------------------------------------|----------------------------------------------------------------|
| Retract | wait; their cache is dropped            | as if the new weights had read all before them: recomputed     |
| InPlace | stand still; their cache is kept        | new weights on what the old ones cached: no model's own tokens |
| Drain   | end first, while nobody new comes in    | none: each sample has one version                              |

The server has no name from before its weights change until all of them have: whoever dies in between leaves a server
that says so. `success` of the server says little (names that it does not know are passed over), so that the folder is
looked at before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from rljob_api.spec import Interruption
from rljob_workers.engines.errors import EngineError, EngineRefused, EngineTimeout
from rljob_workers.engines.sglang.connection import Connection
from rljob_workers.engines.sglang.gate import Gate
from rljob_workers.engines.sglang.shapes import Shapes, misfit, stored_shapes
from rljob_workers.engines.sglang.weight_labels import NOTHING

_CONTINUE_SECONDS = 5.0
"""Of its own: after a deadline the server must not stay paused. Whoever is frozen is waited for no longer than that."""

_PAUSES = {Interruption.RETRACT: "retract", Interruption.IN_PLACE: "in_place", Interruption.DRAIN: "retract"}
"""SGLang's words. After a drain nothing runs that could be retracted."""


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
    require_same_life: Callable[[], None],
    *,
    deadline: float,
) -> None:
    """Pauses, loads, names, continues. On an error the weights have no name, unless nothing had begun."""
    async with _paused(connection, _PAUSES[interruption], deadline):
        await rename(connection, NOTHING, deadline=deadline)
        update = {
            "model_path": str(folder),
            "load_format": "auto",  # else that of its start, which makes weights up
            # What stands still holds its cache, so that a flush would fail, after the weights have changed.
            "flush_cache": interruption is not Interruption.IN_PLACE,
            "abort_all_requests": False,
        }
        await connection.post("/update_weights_from_disk", update, deadline=deadline)
        require_same_life()
        await rename(connection, label, deadline=deadline)


async def rename(connection: Connection, label: str, *, deadline: float) -> None:
    """What the server says from now on of its weights, and of tokens that they make."""
    # By default it would abort every sample first.
    body = {"new_version": label, "abort_all_requests": False}
    await connection.post("/update_weight_version", body, deadline=deadline)


@asynccontextmanager
async def _paused(connection: Connection, mode: str, deadline: float) -> AsyncIterator[None]:
    try:
        await connection.post("/pause_generation", {"mode": mode}, deadline=deadline)
        yield
    except BaseException:
        with suppress(EngineError):  # the error that led here says more; a dead server needs no end of its pause
            await asyncio.shield(_continue(connection, time.monotonic() + _CONTINUE_SECONDS))
        raise
    await _continue(connection, deadline)


async def _continue(connection: Connection, deadline: float) -> None:
    await connection.post("/continue_generation", {}, deadline=deadline)
