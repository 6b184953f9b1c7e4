"""How weights travel: the two ends that roles use. A transport implements both and is chosen once, in the factory.

Called by the actor's ranks (publishers, each of its part) and by rollout, actor_fwd and reference (receivers). Knows
weights as a value (`models.weights`), never as a model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from rljob_api.names import Stream
from rljob_api.wire.identity import WeightId
from rljob_workers.models.weights import Buckets, Weights, WeightSource


class WeightPublisher(ABC):
    """The trainer's end."""

    @abstractmethod
    def publish(self, weights: Weights[Buckets], *, timeout_seconds: float) -> None:
        """Offers this rank's part of a version; returns when that is durable knowledge. A collective, as an export is.

        The version is visible to receivers once all its parts were reported. The same part twice is one; any part may
        bring the probe. A transport that fails has taken the buckets to their end. `timeout_seconds` is for the report,
        once the part is there. Raises IncarnationOver (fenced), WeightDead, WeightIncomplete, CoordinatorUnreachable.
        """

    @abstractmethod
    def close(self) -> None:
        """Stops serving."""


class WeightReceiver(ABC):
    """A consumer's end. Used from one thread, any one."""

    @abstractmethod
    def await_newer(
        self,
        stream: Stream,
        than: WeightId | None,
        *,
        deadline: float,
        pulse: Callable[[], None] | None = None,
    ) -> Weights[WeightSource] | None:
        """The newest version of a stream if it is newer than `than`, whole, verified and on this machine; else None.

        Its source stays as it is until two newer ones came.

        `deadline` (monotonic seconds) is for something newer to be offered; pulling it then has the time of
        weightSync.timeoutSeconds. `pulse` is called between waits and chunks and may raise. Raises WeightTimeout,
        CorruptWeights, CoordinatorUnreachable.
        """

    @abstractmethod
    def close(self) -> None:
        """Stops serving to peers and deletes what was staged."""
