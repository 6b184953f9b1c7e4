"""The ranks of a pod: forks incarnations, knows which live, names what a death was; and the rank's side of the fork.

Only `launcher` calls it; `plan` decides which rank is started or killed. A rank that lost the coordinator together with
its launcher is held back, since others may explain it. Roles and torch are imported in the child only.
"""

from __future__ import annotations

import hashlib
import logging
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api.machine.attended_time import AttendedClock
from rljob_api.machine.process_stat import is_stopped
from rljob_api.names import EXIT_BAD_MANIFEST, EXIT_CUT_OFF, EXIT_FENCED, EXIT_GROUP_BROKEN
from rljob_api.roles import TRAITS
from rljob_api.wire.epochs import PodOrder, PodPhase
from rljob_api.wire.failures import Failure, FailureKind
from rljob_api.wire.identity import Incarnation, RankKey
from rljob_api.wire.launchers import RankProcess
from rljob_workers.dcs.errors import CoordinatorUnreachable, DamageReported, IncarnationOver
from rljob_workers.dcs.membership.rank_context import RankContext, RankMemory
from rljob_workers.launcher.environment import PodIdentity
from rljob_workers.launcher.forking import RANK_OOM_SCORE, Child, Closable, Exit, fork_child, how_it_ended
from rljob_workers.launcher.plan import RankView
from rljob_workers.launcher.pod_devices import require_cuda, require_no_cuda, see_only, take_over
from rljob_workers.transfer_queue.errors import ControlRefused, ControlUnreachable, Fenced

if TYPE_CHECKING:
    from rljob_api.names import Role
    from rljob_api.spec import RLJobSpec


LOST_SECONDS = 5.0
"""Without an answer, at most. A poll is held open for a second, and a coordinator that is restarted is back in two."""


AFTER_SECONDS = 10.0
"""How long a rank may still leave for it once the launcher is answered again: an attempt of a rank's takes five."""


class Contact:
    """Of one launcher, from its start on."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Counts as answered now."""
        self._clock = clock
        self._answered_at = clock()
        self._back_at: float | None = None
        self.lost_seconds = LOST_SECONDS
        """Half of what a rank does without its coordinator, where that is less."""

    def answered(self) -> None:
        """The coordinator has answered the launcher now."""
        now = self._clock()
        if now - self._answered_at > self.lost_seconds:
            self._back_at = now
        self._answered_at = now

    @property
    def is_cut_off(self) -> bool:
        """Whether it has not been answered for that long, or was not until a moment ago."""
        now, back_at = self._clock(), self._back_at
        is_back = back_at is not None and now - back_at <= AFTER_SECONDS
        return is_back or now - self._answered_at > self.lost_seconds


PATIENCE_SECONDS = {EXIT_FENCED: 10.0, EXIT_GROUP_BROKEN: 10.0}


CUT_OFF_PATIENCE_SECONDS = 10.0
"""By exit code, and for a rank that was cut off with its launcher; from when the coordinator answers the launcher.

A fenced rank has died of a decision whose order is on its way; one whose group broke has died of another rank's death,
which another launcher reports; one that was cut off may not have been alone, and deaths of that time, which count, are
to be known first. Only if no order comes in time are such ends failures.
"""


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _RankIncarnation:
    """The latest incarnation in a slot."""

    incarnation: Incarnation
    child: Child
    exit_code: int | None = None
    drain_asked_at: float | None = None
    killed_since: str | None = None
    """Why SIGKILL was sent."""
    cut_off: bool = False
    """See `Failure.cut_off`."""


@dataclass(slots=True)
class _HeldBack:
    """A failure that others may explain."""

    row: _RankIncarnation
    failure: Failure
    due: float | None = None
    """None: the coordinator has not answered since."""


class Ranks:
    """Process slots and the latest incarnation in each.

    The job defines how many there are: a slot begins with its first incarnation.
    """

    def __init__(self, identity: PodIdentity, logs: Path, clock: Callable[[], float], attended: AttendedClock) -> None:
        self._identity = identity
        self._logs = logs
        self._clock = clock
        self._incarnations: dict[int, _RankIncarnation] = {}
        self._held_back: list[_HeldBack] = []
        self.contact = Contact(clock)
        self._attended = attended
        self._stopped_since: dict[int, float] = {}
        """Pid -> attended seconds when it was first seen to be stopped."""
        self.memories: defaultdict[int, RankMemory] = defaultdict(RankMemory)
        """Rank -> what it shares with this launcher, through all its incarnations."""
        self.starts = 0
        """Incarnations so far."""

    @property
    def num_alive(self) -> int:
        """Ranks that run."""
        return sum(row.exit_code is None for row in self._incarnations.values())

    def num_ready(self, order: PodOrder) -> int:
        """Ranks that run as ordered, and have reported that they are Ready."""
        return sum(
            row.exit_code is None
            and (row.incarnation.epoch, row.incarnation.generation) == (order.epoch, order.generation)
            and self.memories[rank].is_ready
            for rank, row in self._incarnations.items()
        )

    @property
    def seen_seq(self) -> int:
        """The highest seq of the control Redis that any rank of this pod has seen, dead ones included."""
        return max((memory.seen_seq for memory in self.memories.values()), default=0)

    def views(self) -> tuple[RankView, ...]:
        """As `plan` sees them."""
        return tuple(self._view(rank, row) for rank, row in sorted(self._incarnations.items()))

    def _view(self, rank: int, row: _RankIncarnation) -> RankView:
        is_alive, pid, stopped_seconds = row.exit_code is None, row.child.pid, None
        if is_alive and is_stopped(pid):
            stopped_seconds = self._attended.seconds - self._stopped_since.setdefault(pid, self._attended.seconds)
        else:
            self._stopped_since.pop(pid, None)
        return RankView(
            rank,
            row.incarnation.epoch,
            row.incarnation.generation,
            is_alive,
            row.drain_asked_at,
            row.killed_since is not None,
            stopped_seconds,
        )

    def processes(self) -> list[RankProcess]:
        """As the coordinator sees them."""
        return [
            RankProcess(
                rank=rank,
                pid=row.child.pid,
                incarnation=row.incarnation.id,
                epoch=row.incarnation.epoch,
                generation=row.incarnation.generation,
                exit_code=row.exit_code,
                cut_off=row.cut_off,
                collectives=self.memories[rank].collectives or None,
                is_within_collective=self.memories[rank].is_within_collective,
            )
            for rank, row in sorted(self._incarnations.items())
        ]

    def start(self, context: RankContext, body: Callable[[RankContext], int], close: Sequence[Closable]) -> None:
        """Forks a rank that runs `body`; the child closes `close`, what the launcher holds."""
        incarnation = context.incarnation
        log = self._logs / f"{incarnation.key}.log"

        def live() -> int:
            see_only(context.devices)
            take_over(str(incarnation.key), context.devices, self._logs)
            return body(context)

        context.memory.begin_incarnation()
        self.starts += 1
        require_no_cuda()
        child = fork_child(live, log, on_terminate=context.drain.ask, close=close, oom_score=RANK_OOM_SCORE)
        self._incarnations[incarnation.key.rank] = _RankIncarnation(incarnation, child)
        _log.info(
            "%s: life %s of epoch %s runs as process %s", incarnation.key, incarnation.id, incarnation.epoch, child.pid
        )

    def drain(self, rank: int) -> None:
        """SIGTERM, once."""
        row = self._incarnations[rank]
        row.child.terminate()
        self._incarnations[rank] = replace(row, drain_asked_at=self._clock())
        _log.info("%s: asked to drain", row.incarnation.key)

    def kill(self, rank: int, why: str) -> None:
        """SIGKILL; `exited` collects it."""
        row = self._incarnations[rank]
        row.child.kill()
        self._incarnations[rank] = replace(row, killed_since=why)
        _log.info("%s: killed, since %s", row.incarnation.key, why)

    def exited(self, ended: Exit, order: PodOrder | None, now: float) -> Failure | None:
        """Notes the end of an incarnation. A failure, unless it left by itself with 0 or its end was wanted.

        `now` is Unix time. Failures that others explain are held back: see `overdue`.
        """
        slot = next((rank for rank, row in self._incarnations.items() if row.child.pid == ended.pid), None)
        if slot is None:
            return None
        cut_off = ended.code == EXIT_CUT_OFF and self.contact.is_cut_off
        row = self._incarnations[slot] = replace(self._incarnations[slot], exit_code=ended.code, cut_off=cut_off)
        _log.info("%s: life %s %s", row.incarnation.key, row.incarnation.id, how_it_ended(ended.code))
        if ended.code == 0 or _is_wanted(row, order):
            return None
        failure = self._failure(row, ended.code, now)
        if cut_off or ended.code in PATIENCE_SECONDS:
            self._held_back.append(_HeldBack(row, failure))
            return None
        return failure

    def overdue(self, order: PodOrder | None) -> list[Failure]:
        """Failures that were held back, and for which no later order has come in time."""
        self._held_back = [held for held in self._held_back if not _is_wanted(held.row, order)]
        due = [held for held in self._held_back if held.due is not None and self._clock() >= held.due]
        self._held_back = [held for held in self._held_back if held not in due]
        return [held.failure for held in due]

    def answered(self) -> None:
        """The coordinator has answered this launcher: an order for what is held back could come from here on."""
        self.contact.answered()
        for held in self._held_back:
            if held.due is None:
                patience = PATIENCE_SECONDS.get(held.row.exit_code or 0, CUT_OFF_PATIENCE_SECONDS)
                held.due = self._clock() + patience

    def _failure(self, row: _RankIncarnation, code: int, now: float) -> Failure:
        output = row.child.last_output()
        sentence = row.killed_since or (output.splitlines()[-1] if output else "it left no words")
        verb = "refuses its configuration" if code == EXIT_BAD_MANIFEST else how_it_ended(code)
        return Failure(
            id=self._identity.failure_id(row.incarnation.id),
            kind=FailureKind.RANK_EXITED,
            pod=self._identity.pod,
            rank=row.incarnation.key.rank,
            epoch=row.incarnation.epoch,
            generation=row.incarnation.generation,
            incarnation=row.incarnation.id,
            exit_code=code,
            cut_off=row.cut_off,
            message=f"{row.incarnation.key} {verb}: {sentence}",
            last_words=output,
            at=now,
        )


def _is_wanted(row: _RankIncarnation, order: PodOrder | None) -> bool:
    """Whether the pod was ordered to end this incarnation; what it died of does not count then."""
    if order is None:
        return False
    outdated = (row.incarnation.epoch, row.incarnation.generation) < (order.epoch, order.generation)
    return outdated or order.phase is PodPhase.DONE


def live(context: RankContext) -> int:
    """One incarnation of a rank, from the fork to its exit code."""
    spec, key = context.job.spec, context.incarnation.key
    require_cuda()
    use_threads(rank_threads(spec, key.role))
    seed_everything(seed_of(spec.seed, key))
    from rljob_workers.roles import main

    return until_broken(main, context)


def until_broken(main: Callable[[RankContext], int], context: RankContext) -> int:
    """As `until_fenced`; a rank that lost another one of its gang leaves with a code of its own, too.

    So does one that has reported a damaged checkpoint, which all of its gang leave for: that is reported already.
    """
    from rljob_workers.trainers.data_parallel import GroupBroken

    try:
        return until_fenced(main, context)
    except (GroupBroken, DamageReported) as broken:
        sys.stderr.write(f"{context.incarnation.key}: {broken}\n")
        return EXIT_GROUP_BROKEN


def until_fenced(main: Callable[[RankContext], int], context: RankContext) -> int:
    """Runs `main`; an incarnation that is over by the answer of coordinator or queue leaves with a code of its own.

    So does one that could reach them no more: it is started again once its launcher can.
    """
    try:
        return main(context)
    except (IncarnationOver, Fenced) as over:
        sys.stderr.write(f"{context.incarnation.key}: this life is over: {over}\n")
        return EXIT_FENCED
    except ControlRefused:
        raise  # a wrong password, or too many connections: no network is at fault
    except (CoordinatorUnreachable, ControlUnreachable) as absent:
        sys.stderr.write(f"{absent}\n")
        return EXIT_CUT_OFF


def rank_threads(spec: RLJobSpec, role: Role) -> int:
    """CPU threads of tensor operations in a rank; where there are engines, the threads are theirs."""
    given = spec.roles.of(role)
    return 1 if given is None or TRAITS[role].has_engines else given.threads


def use_threads(num_threads: int) -> None:
    """Sets torch's pools. After the fork: a pool is threads, and threads do not survive one."""
    import torch

    torch.set_num_threads(num_threads)
    torch.set_num_interop_threads(1)


def seed_of(job_seed: int, key: RankKey) -> int:
    """A seed of 32 bits: the same for every incarnation of a rank, another for every rank."""
    return int.from_bytes(hashlib.blake2b(f"{job_seed}/{key}".encode(), digest_size=4).digest(), "big")


def seed_everything(seed: int) -> None:
    """Python's, NumPy's and torch's generators, which all forks would otherwise share."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
