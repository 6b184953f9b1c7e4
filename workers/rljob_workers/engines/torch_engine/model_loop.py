"""The model loop: one thread that owns the scheduler, steps it, and runs commands between two steps.

Commands are generate, abort, pause, continue, flush and new weights. The HTTP edge submits them and gets futures; no
other thread touches the scheduler, so that nothing is locked.
"""

from __future__ import annotations

import logging
import queue
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from rljob_workers.engines.torch_engine.continuous_batching import Weights
from rljob_workers.engines.torch_engine.dialect import PauseMode
from rljob_workers.engines.torch_engine.requests import BadRequest, StepFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from rljob_api.wire.identity import WeightId
    from rljob_workers.engines.torch_engine.continuous_batching import ContinuousBatching
    from rljob_workers.engines.torch_engine.requests import Batch, EngineFault


@dataclass(frozen=True, slots=True)
class EngineState:
    """What the engine says about itself."""

    held: WeightId | None
    is_paused: bool
    num_running: int
    """Samples with a slot."""
    num_waiting: int
    """Prompt groups with samples that wait for one."""
    capacity: int
    """Samples that may run at once."""


class EngineCommands(Generic[Weights]):
    """The engine as its one thread sees it."""

    def __init__(self, scheduler: ContinuousBatching[Weights], read_weights: Callable[[Path], Weights]) -> None:
        """Starts unpaused and without weights. `read_weights` raises ValueError for a folder that does not fit."""
        self._scheduler = scheduler
        self._read_weights = read_weights
        self._pause: PauseMode | None = None

    @property
    def can_step(self) -> bool:
        """Whether there is something to compute now."""
        match self._pause:
            case None:
                return self._scheduler.has_work
            case PauseMode.DRAIN:
                return self._scheduler.num_running > 0
            case _:
                return False

    def step(self) -> None:
        """One token for every running sample; nobody is admitted while those that run drain."""
        if self._pause is PauseMode.DRAIN:
            self._scheduler.step_running()
        else:
            self._scheduler.step()

    def fail_all(self, error: EngineFault) -> None:
        """Ends every request with an error."""
        self._scheduler.fail_all(error)

    def state(self) -> EngineState:
        """A snapshot."""
        scheduler = self._scheduler
        return EngineState(
            held=scheduler.held,
            is_paused=self._pause is not None,
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            capacity=scheduler.capacity,
        )

    def generate(self, batch: Batch) -> None:
        """Queues a batch; its `on_done` tells when it has ended."""
        self._scheduler.submit(batch)

    def abort(self, rids: Collection[str]) -> int:
        """Aborts groups by rid; an unknown rid is no error (it may have ended). Returns how many ended."""
        return self._scheduler.abort(lambda group: group.rid in rids)

    def abort_batch(self, batch: Batch) -> None:
        """Aborts what is left of one batch, whatever its rids."""
        own = {id(group) for group in batch.groups}
        self._scheduler.abort(lambda group: id(group) in own)

    def abort_all(self) -> int:
        """Aborts everything."""
        return self._scheduler.abort(lambda _: True)

    def pause(self, mode: PauseMode) -> None:
        """No step after this returns, until `resume`; with Drain, as soon as nothing runs (`is_drained`).

        A second pause adds its own effect to the first one's.
        """
        if mode is PauseMode.ABORT:
            self._scheduler.abort(lambda _: True)
        elif mode is PauseMode.RETRACT:
            self._scheduler.retract()
        self._pause = mode

    def is_drained(self) -> bool:
        """Whether a pause with Drain is over, in one way or the other."""
        return self._pause is not PauseMode.DRAIN or self._scheduler.num_running == 0

    def drawn(self, batch: Batch) -> int:
        """Tokens that a batch has got until now."""
        return self._scheduler.drawn(batch)

    def score(self, tokens: Sequence[int]) -> list[float]:
        """Log-probs of tokens[1:] under the weights that are held, also while paused."""
        return self._scheduler.score(tokens)

    def resume(self) -> None:
        """Steps go on; without a pause nothing happens."""
        self._pause = None

    def flush_cache(self) -> None:
        """Drops all keys and values; refused while samples need them."""
        state = self.state()
        if state.num_running and self._pause is not PauseMode.RETRACT:
            raise BadRequest(
                f"flush_cache: {state.num_running} samples are running on the cache. "
                "Abort them or pause with retract first."
            )
        self._scheduler.drop_cache()

    def update_from_disk(self, path: Path, weight: WeightId) -> None:
        """Replaces the weights between two steps. On any error the engine is left without weights, and says so."""
        self._scheduler.held = None
        try:
            weights = self._read_weights(path)
        except ValueError as error:
            self._scheduler.drop_weights()
            raise BadRequest(str(error)) from error
        except (RuntimeError, MemoryError) as error:  # torch reports lack of memory as RuntimeError
            self._scheduler.drop_weights()
            raise StepFailed(f"The weights {weight} could not be loaded: {error}") from error
        if self._pause is PauseMode.IN_PLACE:
            self._scheduler.install_in_place(weights, weight)
        else:
            self._scheduler.install(weights, weight)


_Answer = TypeVar("_Answer")


_Command = tuple["Callable[[EngineCommands[Any]], object]", "Future[object]"]


_log = logging.getLogger(__name__)


class ModelLoop:
    """Thread and inbox.

    loop = ModelLoop(commands)
    loop.start()
    loop.call(lambda engine: engine.pause(mode)).result()
    loop.stop()
    """

    def __init__(self, commands: EngineCommands[Any]) -> None:
        """`commands` belongs to the loop's thread from `start` on."""
        self._commands = commands
        self._inbox: queue.SimpleQueue[_Command | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="model-loop", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the current step; requests that still run are left to their closed connections."""
        self._inbox.put(None)
        self._thread.join()

    def call(self, command: Callable[[EngineCommands[Any]], _Answer]) -> Future[_Answer]:
        """Runs `command` between two steps; what it raises is in the future."""
        future: Future[_Answer] = Future()
        self._inbox.put((command, future))  # type: ignore[arg-type]  # the pair belongs together, whatever the answer
        return future

    def _run(self) -> None:
        with torch.inference_mode():
            while self._serve_inbox():
                self._step()

    def _serve_inbox(self) -> bool:
        """Runs all commands that wait, and blocks for one where there is nothing to compute. False: stop."""
        while not self._commands.can_step or not self._inbox.empty():
            message = self._inbox.get()
            if message is None:
                return False
            command, future = message
            try:
                future.set_result(command(self._commands))
            except Exception as error:
                future.set_exception(error)
        return True

    def _step(self) -> None:
        try:
            self._commands.step()
        except Exception:  # the edge of a loop that must live: a fault of ours costs the requests, not the server
            _log.exception("A step failed in a way that the scheduler does not know")
            self._commands.fail_all(StepFailed("The engine failed inside; its log has the details."))
