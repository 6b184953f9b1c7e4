"""The model loop: one thread that owns the scheduler, steps it, and runs commands between two steps.

The HTTP edge hands it commands and gets futures. Nothing else touches the scheduler, so that nothing is locked.
"""

from __future__ import annotations

import logging
import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from rljob_workers.engines.torch_engine.commands import EngineCommands
from rljob_workers.engines.torch_engine.errors import StepFailed

if TYPE_CHECKING:
    from collections.abc import Callable

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
