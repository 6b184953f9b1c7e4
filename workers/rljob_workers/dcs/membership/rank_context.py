"""What the launcher hands to a rank, and the memory that both share over the fork.

The launcher builds it before the fork; roles, session, weights and checkpoints read it. Imports no torch.
"""

import mmap
from dataclasses import dataclass, field
from pathlib import Path

from rljob_api.spec import RLJob
from rljob_api.wire.identity import Endpoints, Life


class SeqSink:
    """The highest `seq` of the control Redis that a rank has seen, in memory shared with the launcher over a fork.

    One rank writes, its launcher reads; the number outlives the rank, which is the point: after the control Redis was
    restarted, it proves what had been answered.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8)
        self._word = memoryview(self._memory).cast("Q")

    @property
    def value(self) -> int:
        """The highest number so far."""
        return self._word[0]

    def raise_to(self, seq: int) -> None:
        """Notes that `seq` was seen; a lower number changes nothing."""
        if seq > self._word[0]:
            self._word[0] = seq


class CollectiveMark:
    """How many collectives the life in a rank's slot has entered, in memory shared with the launcher over a fork.

    The rank writes, its launcher reads, and clears it before the next life. The number outlives the rank: of ranks that
    broke up, the one with the lowest number did not come.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 16)
        self._words = memoryview(self._memory).cast("Q")

    @property
    def entered(self) -> int:
        """Collectives so far."""
        return self._words[0]

    @property
    def is_within(self) -> bool:
        """Whether the rank has not come out of the last one."""
        return self._words[1] != 0

    def enter(self) -> None:
        """By the rank: it comes to its next collective."""
        self._words[1] = 1
        self._words[0] += 1

    def leave(self) -> None:
        """By the rank: all were there."""
        self._words[1] = 0

    def clear(self) -> None:
        """By the launcher: a life that has just begun."""
        self._words[0] = self._words[1] = 0


class ReadyMark:
    """Whether the life that runs in a rank's slot is Ready, in memory shared with the launcher over a fork.

    The rank sets it, its launcher reads it, and clears it before the next life.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 1)

    @property
    def is_set(self) -> bool:
        """Whether the rank has said so."""
        return self._memory[0] != 0

    def set(self) -> None:
        """By the rank: it can work."""
        self._memory[0] = 1

    def clear(self) -> None:
        """By the launcher: no life, or one that has just begun."""
        self._memory[0] = 0


class DrainRequest:
    """Set by the rank's SIGTERM handler: its launcher, or whoever stops the pod, wants it to drain.

    The session's `draining` is this or the coordinator's word, whichever comes first.
    """

    def __init__(self) -> None:
        self.asked = False

    def ask(self) -> None:
        """Safe in a signal handler."""
        self.asked = True


@dataclass(frozen=True, slots=True)
class RankContext:
    """Everything a rank process is given."""

    life: Life
    endpoints: Endpoints
    job: RLJob
    global_rank: int
    world_size: int
    launcher: str
    """The life of the launcher that forked this rank (12 hex digits)."""
    engine_url: str | None
    """The engine server of this pod; None for roles without one."""
    seq_sink: SeqSink
    engine_identity: Path | None = None
    """Where the engine's launcher writes which life of it runs (`engines.incarnation`)."""
    ready_mark: ReadyMark = field(default_factory=ReadyMark)
    collective_mark: CollectiveMark = field(default_factory=CollectiveMark)
    drain: DrainRequest = field(default_factory=DrainRequest)
    devices: tuple[str, ...] = ()
    """All that CUDA shows to this rank, by name; none: it computes on the CPU. Names that begin with `fake-` are of
    devices that are not there: it computes on the CPU, too."""

    @property
    def checkpoint_dir(self) -> Path:
        """Folder of the checkpoints: `checkpoint.path` below the run folder, or `checkpoints`."""
        return checkpoint_dir(self.job, self.endpoints)


def checkpoint_dir(job: RLJob, endpoints: Endpoints) -> Path:
    """Folder of the checkpoints of `job`."""
    return Path(endpoints.run_dir) / (job.spec.checkpoint.path or "checkpoints")
