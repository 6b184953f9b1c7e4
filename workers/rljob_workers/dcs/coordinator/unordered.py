"""Launchers that are up before the orders that name their pods: they wait, and end nobody's life meanwhile.

Called by `pods`. Kept in memory only: a restarted coordinator does not know them, so that they register again.
"""

from __future__ import annotations

from rljob_api.wire.identity import PodKey
from rljob_api.wire.launchers import LauncherHello


class UnorderedLaunchers:
    """By launcher. All of a pod are forgotten once one of them carries it: who still lives of the others says so."""

    def __init__(self) -> None:
        self._hellos: dict[str, LauncherHello] = {}

    def add(self, hello: LauncherHello) -> None:
        """It waits; twice is once."""
        self._hellos[hello.launcher] = hello

    def find(self, launcher: str) -> LauncherHello | None:
        """What it said of itself; None: it does not wait."""
        return self._hellos.get(launcher)

    def remove(self, pod: PodKey) -> list[str]:
        """The launchers that waited to carry `pod`, which do no more."""
        gone = [launcher for launcher, hello in self._hellos.items() if hello.pod == pod]
        for launcher in gone:
            del self._hellos[launcher]
        return gone
