"""What the launcher hands to a rank, and the memory that both share over the fork.

The launcher builds it before the fork; roles, session, weights and checkpoints read it. Imports no torch.
"""

import mmap
from dataclasses import dataclass, field
from pathlib import Path

from rljob_api.spec import RLJob
from rljob_api.wire.identity import Endpoints, Incarnation

_SEQ, _READY, _ENTERED, _WITHIN = range(4)


class RankMemory:
    """What the incarnation in a rank's slot reports to its launcher, in memory that both share over a fork.

    The rank writes, its launcher reads. It outlives the rank: after the control Redis was restarted, `seen_seq` proves
    what had been answered; of ranks that broke up, the one with the fewest collectives did not come.
    """

    def __init__(self) -> None:
        self._numbers = memoryview(mmap.mmap(-1, 4 * 8)).cast("Q")

    @property
    def seen_seq(self) -> int:
        """The highest `seq` of the control Redis that an incarnation in this slot has seen."""
        return self._numbers[_SEQ]

    @property
    def is_ready(self) -> bool:
        """Whether the present incarnation can work."""
        return self._numbers[_READY] != 0

    @property
    def collectives(self) -> int:
        """Those that the present incarnation has entered."""
        return self._numbers[_ENTERED]

    @property
    def is_within_collective(self) -> bool:
        """Whether the present incarnation has not come out of the last one."""
        return self._numbers[_WITHIN] != 0

    def raise_seq(self, seq: int) -> None:
        """By the rank: `seq` was seen; a lower number changes nothing."""
        if seq > self._numbers[_SEQ]:
            self._numbers[_SEQ] = seq

    def set_ready(self) -> None:
        """By the rank: it can work."""
        self._numbers[_READY] = 1

    def enter_collective(self) -> None:
        """By the rank: it comes to its next collective."""
        self._numbers[_WITHIN] = 1
        self._numbers[_ENTERED] += 1

    def leave_collective(self) -> None:
        """By the rank: all were there."""
        self._numbers[_WITHIN] = 0

    def begin_incarnation(self) -> None:
        """By the launcher, before an incarnation begins: `seen_seq` alone stays."""
        self._numbers[_READY] = self._numbers[_ENTERED] = self._numbers[_WITHIN] = 0


class DrainRequest:
    """Set by the rank's SIGTERM handler: its launcher, or what stops the pod, wants it to drain.

    The session's `draining` is this or the coordinator's answer, whichever comes first.
    """

    def __init__(self) -> None:
        self.asked = False

    def ask(self) -> None:
        """Safe in a signal handler."""
        self.asked = True


@dataclass(frozen=True, slots=True)
class RankContext:
    """Everything a rank process is given."""

    incarnation: Incarnation
    endpoints: Endpoints
    job: RLJob
    global_rank: int
    world_size: int
    launcher: str
    """The incarnation of the launcher that forked this rank (12 hex digits)."""
    engine_url: str | None
    """The engine server of this pod; None for roles without one."""
    memory: RankMemory
    engine_identity: Path | None = None
    """Where the engine's launcher writes which incarnation of it runs (`engines.incarnation`)."""
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
