"""The weights of a gang: its ranks receive them by themselves, and go on once all have the same."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from rljob_workers.dcs.weights.transport import WeightReceiver
from rljob_workers.models.weights import Weights, WeightSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from rljob_api.names import Stream
    from rljob_api.wire.identity import WeightId
    from rljob_workers.trainers.data_parallel import DataParallelGroup

TURN_SECONDS = 0.25
"""For which a rank waits by itself; then it asks the others what they have."""


class SharedReceiver(WeightReceiver):
    """The receiver of one rank. `await_newer` is a collective: the ranks call it with the same weight."""

    def __init__(self, receiver: WeightReceiver, gang: DataParallelGroup) -> None:
        self._receiver = receiver
        self._gang = gang

    def await_newer(
        self,
        stream: Stream,
        than: WeightId | None,
        *,
        deadline: float,
        pulse: Callable[[], None] | None = None,
    ) -> Weights[WeightSource] | None:
        """The same weight on all ranks, or None on all, where none has anything newer at the deadline.

        A rank that has received one waits for the others; one that has an older one receives the newer.
        """
        own: Weights[WeightSource] | None = None
        while True:
            newest = than if own is None else own.id
            own = self._receiver.await_newer(stream, newest, deadline=deadline, pulse=pulse) or own
            if self._is_of_all(None if own is None else own.id):
                return own
            deadline = time.monotonic() + TURN_SECONDS

    def close(self) -> None:
        """See the base."""
        self._receiver.close()

    def _is_of_all(self, own: WeightId | None) -> bool:
        if self._gang.world == 1:
            return True
        held = torch.zeros(self._gang.world, 2, dtype=torch.int64)
        held[self._gang.rank] = torch.tensor((-1, -1) if own is None else (own.lineage, own.version))
        self._gang.add_up(held, "the weights that the ranks have")
        return bool((held == held[0]).all())
