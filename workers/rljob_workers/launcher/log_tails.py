"""Hands the last part of each log of a pod to the coordinator, which keeps it beside the checkpoints.

A plugin of a pod's loop: at once where a process of the pod has begun or ended, else what has grown, now and then. One
request at a time; what cannot be sent is sent later, or never, since training must not wait for a log.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable
from pathlib import Path

from rljob_api.wire.identity import Endpoints
from rljob_api.wire.logs import BEGINS, KEPT_CHARACTERS, LogTail, last_lives
from rljob_workers.dcs.channel import ChannelBroken, HttpChannel, PendingAnswer
from rljob_workers.launcher.loop_plugins import LauncherState

SECONDS = 15.0
"""Between two looks at what has grown: a log that grows all the time costs the coordinator 4 KiB a second."""
ANSWER_SECONDS = 5.0
LAST_SECONDS = 2.0
"""At the end of the pod: its grace period is for its ranks."""
_READ_BYTES = 4 * KEPT_CHARACTERS

_log = logging.getLogger(__name__)


class LogTails:
    """Of one pod."""

    def __init__(
        self, folder: Path, endpoints: Endpoints, life: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`life` is this container's: a pod that takes its place begins its logs anew."""
        self._folder = folder
        self._life = life
        self._clock = clock
        self._channel = HttpChannel(endpoints.coordinator, endpoints.token, clock)
        self._pending: PendingAnswer | None = None
        self._sent: dict[str, tuple[int, int]] = {}
        """Size and time of change of each log as it was sent last."""
        self._due: list[Path] = []
        self._seen: tuple[int, int] = (0, 0)
        self._not_before = 0.0

    def turn(self, state: LauncherState) -> None:
        """See the base."""
        if self._pending is not None and self._pending.ready():
            self._collect(self._pending)
        seen = (state.rank_starts + sum(engine.starts for engine in state.engines), state.ranks_up)
        if seen != self._seen or self._clock() >= self._not_before:
            self._seen, self._not_before = seen, self._clock() + SECONDS
            self._look()
        if self._pending is None and self._due:
            self._send(self._due.pop(0))

    def watch(self, poller: select.poll) -> None:
        """See the base."""
        if self._pending is not None and self._pending.fileno() >= 0:
            poller.register(self._pending.fileno(), select.POLLIN)

    def close(self) -> None:
        """See the base."""
        self._channel.close()

    def finish(self) -> None:
        """The last words of a pod that ends; waits for a moment."""
        self._look()
        until = self._clock() + LAST_SECONDS
        for path in self._due:
            left = until - self._clock()
            if left <= 0:
                return
            try:
                self._channel.request("PUT", "/v1/logs", self._tail(path), timeout=left)
            except (ChannelBroken, OSError) as error:
                _log.info("the logs of this pod are not kept to their end: %s", error)
                return

    def _look(self) -> None:
        """Notes which logs have changed since they were sent."""
        self._due = []
        for path in sorted(self._folder.glob("*.*.log")):
            found = path.stat()
            if self._sent.get(path.name) != (found.st_size, found.st_mtime_ns):
                self._due.append(path)

    def _send(self, path: Path) -> None:
        try:
            self._pending = self._channel.begin("PUT", "/v1/logs", self._tail(path), timeout=ANSWER_SECONDS)
        except (ChannelBroken, OSError):
            self._sent.pop(path.name, None)

    def _collect(self, pending: PendingAnswer) -> None:
        self._pending = None
        try:
            pending.result()
        except ChannelBroken:
            self._channel.close()
            self._sent.clear()  # the next look sends all of them again

    def _tail(self, path: Path) -> bytes:
        with path.open("rb") as log:
            found = path.stat()
            log.seek(max(0, found.st_size - _READ_BYTES))
            text = log.read(_READ_BYTES).decode(errors="replace").replace("\0", "")
        self._sent[path.name] = (found.st_size, found.st_mtime_ns)
        marks = BEGINS.findall(text)
        life = f"{self._life} {marks[-1] if marks else ''}".strip()
        tail = LogTail(name=path.name.removesuffix(".log"), life=life, text=last_lives(text)[0][-KEPT_CHARACTERS:])
        return tail.model_dump_json().encode()
