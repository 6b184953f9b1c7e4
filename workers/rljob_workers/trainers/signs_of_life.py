"""Signs of life from a second thread, while the first is blocked in a library that waits for other ranks.

    with SignsOfLife(session.beat_within, "backward of micro-batch 2, with 3 other ranks", limit_seconds=600):
        loss.backward()

Called by the data-parallel group only. The thread lives exactly as long as the block, so that what it calls is never
in use twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

SIGN_SECONDS = 0.25
"""Between two signs; as often as a waiting main loop turns. A block that is shorter gives none."""


class SignsOfLife:
    """Calls `give(waiting_for)` again and again while the block runs; for `limit_seconds` at most.

    After the limit the block is one that hangs, and silence shall tell so. `give` must not raise.
    """

    def __init__(self, give: Callable[[str], None], waiting_for: str, *, limit_seconds: float) -> None:
        self._give = give
        self._waiting_for = waiting_for
        self._limit_seconds = limit_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="signs of life", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        until = time.monotonic() + self._limit_seconds
        while not self._over.wait(SIGN_SECONDS) and time.monotonic() < until:
            self._give(self._waiting_for)
