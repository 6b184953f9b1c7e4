"""How weights travel: the two ends that roles use. A transport implements both and is chosen once, in the factory.

Called by the actor's ranks (publishers, each of its part) and by rollout, actor_fwd and reference (receivers). Knows
weights as named tensors and as folders of safetensors files, never as a model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api.names import Stream
from rljob_api.wire.identity import WeightId
from rljob_api.wire.weights import Probe
from rljob_workers.models.blob import WHOLE, WeightShare

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class StagedWeights:
    """A whole, verified weight on this machine."""

    weight: WeightId
    path: Path
    """A folder with `model.safetensors`, or its parts and their index. It stays until two newer ones were staged."""
    num_bytes: int
    probe: Probe | None = None
    """What an engine must answer once it has them."""


class WeightPublisher(ABC):
    """The trainer's end."""

    @abstractmethod
    def publish(
        self,
        stream: Stream,
        weight: WeightId,
        tensors: Mapping[str, torch.Tensor],
        share: WeightShare = WHOLE,
        *,
        deadline: float,
        probe: Probe | None = None,
    ) -> None:
        """Stages and reports part `share` of a weight; returns when that is durable knowledge.

        The weight is visible to receivers once all its parts were reported. `tensors` are host copies that the caller
        does not change any more. The same part twice is one. `probe` is what engines must answer then; any part may
        bring it. `deadline` is monotonic seconds. Raises IncarnationOver (fenced),
        WeightDead, WeightIncomplete, CoordinatorUnreachable.
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
    ) -> StagedWeights | None:
        """The newest weight of a stream if it is newer than `than`; None when there is none until `deadline`.

        `deadline` (monotonic seconds) is for something newer to be offered; pulling it then has the time of
        weightSync.timeoutSeconds. `pulse` is called between waits and chunks and may raise. Raises WeightTimeout,
        CorruptWeights, CoordinatorUnreachable.
        """

    @abstractmethod
    def close(self) -> None:
        """Stops serving to peers and deletes what was staged."""
