"""What the main process may order of a process with one client of a queue; `turn` is the number of a cycle.

`our_client` and `peer_client` are the two of them. Each also has `open`, whose arguments are its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from tests.bench.queue.channel import Handler


class BenchClient(ABC):
    """Answers are what JSON can carry; seconds are those of the calls alone."""

    @abstractmethod
    def put(self, turn: int) -> dict[str, Any]:
        """Puts all rows: {"put": seconds}, and lines of its own."""

    @abstractmethod
    def claim(self, turn: int, times: int, task: str) -> dict[str, Any]:
        """Claims `times` batches with their bytes and keeps them: {"claim": [seconds]}."""

    @abstractmethod
    def drain(self, turn: int, start_at: float) -> dict[str, Any]:
        """From `start_at` (monotonic) claims until there is nothing left: began, ended, numbers of rows, requests."""

    @abstractmethod
    def verify(self) -> dict[str, Any]:
        """Compares what is kept with what was put: {"rows": how many, "wrong": [sentence]}."""

    @abstractmethod
    def finish(self, turn: int) -> dict[str, Any]:
        """The work on what is kept is done; keeps nothing."""

    @abstractmethod
    def clear(self, turn: int) -> dict[str, Any]:
        """No one needs the partition any more. By one client, after all have finished."""

    @abstractmethod
    def give_back(self) -> dict[str, Any]:
        """What is kept waits again, where the queue can do that; keeps nothing."""

    def handlers(self) -> dict[str, Handler]:
        calls = (self.put, self.claim, self.drain, self.verify, self.finish, self.clear, self.give_back)
        return {call.__name__: call for call in calls}
