"""The note of a launcher that is asked to end: it stands where the kubelet reads how a container ended.

A plugin of a pod's loop. That it can be written shows that the loop turned: a kubelet that ends the container for its
liveness probe was then not answered for a reason of the network or the node, and not of this process.
"""

from __future__ import annotations

import contextlib
import select
from pathlib import Path

from rljob_api.cluster import ASKED_TO_END
from rljob_workers.launcher.environment import LauncherState
from rljob_workers.launcher.forking import SignalPipe


class EndNote:
    """The note of one incarnation of the container."""

    def __init__(self, signals: SignalPipe, file: Path) -> None:
        """`file` is the container's terminationMessagePath; without it nothing is noted."""
        self._signals = signals
        self._file = file
        self._is_written = False

    def turn(self, state: LauncherState) -> None:
        """See the base."""
        del state
        if self._signals.terminated and not self._is_written:
            self._is_written = True
            with contextlib.suppress(OSError):
                self._file.write_text(ASKED_TO_END)

    def watch(self, poller: select.poll) -> None:
        """See the base. The signal itself wakes the loop."""

    def close(self) -> None:
        """See the base."""
