"""Whether the control Redis may be used: open, opening, or with a tail of its state lost.

The coordinator's watch and every request call it. Opens a restarted server only after its launchers have reported the
highest change that they have seen; does not count time in which the coordinator itself was stopped. Never restarts
anything.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from rljob_api.machine.attended_time import AttendedClock
from rljob_api.names import Epoch
from rljob_api.spec import RLJob
from rljob_api.wire.epochs import PodOrder, PodPhase
from rljob_api.wire.launchers import LauncherHello
from rljob_api.wire.observation import EventKind, ServerState
from rljob_workers.dcs.coordinator.context import CoordinatorContext, Topic, not_open
from rljob_workers.dcs.coordinator.epochs import Epochs, job_to_work_by, runs_alike
from rljob_workers.dcs.coordinator.launchers import Launchers, SeqReport
from rljob_workers.dcs.coordinator.rank_incarnations import RankIncarnations
from rljob_workers.dcs.coordinator.records import RUN_ID, SEQ_FLOOR

_LOG = logging.getLogger("rljob.coordinator")


@dataclass(frozen=True, slots=True)
class OpeningPatience:
    """How long reports are waited for. Only time counts in which they could be received."""

    silent_one_seconds: float
    """A launcher that is silent for so long is not waited for: it is dead or stopped, and the job must go on."""
    all_silent_seconds: float
    """After a start of coordinator and Redis together: if no launcher reports for so long, none lives, as when a run is
    resumed."""


ON_ONE_MACHINE = OpeningPatience(silent_one_seconds=3.0, all_silent_seconds=1.0)
"""Living launchers report within milliseconds: their connections wait in the backlog of the inherited socket."""


ACROSS_MACHINES = OpeningPatience(silent_one_seconds=15.0, all_silent_seconds=15.0)
"""A launcher may have to give up a connection to a machine that is gone, and the way to the new one takes seconds."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The server is not open since `since`; `coordinator_is_new` when no report can have come before that."""

    since: float
    coordinator_is_new: bool


def launchers_awaited(
    closed: Closed,
    registered: frozenset[str],
    seq_reports: Mapping[str, SeqReport],
    waited: float,
    patience: OpeningPatience,
) -> list[str]:
    """The launchers whose report is still missing after so many seconds; none: the server may be opened."""
    reported = {launcher for launcher, report in seq_reports.items() if report.at >= closed.since}
    if waited >= patience.silent_one_seconds:
        return []
    if closed.coordinator_is_new:
        awaited = registered if reported or waited < patience.all_silent_seconds else frozenset[str]()
    else:
        lately = closed.since - patience.silent_one_seconds
        awaited = frozenset(name for name in registered if name in seq_reports and seq_reports[name].at >= lately)
    return sorted(awaited - reported)


TICK_SECONDS = 0.2


LONGEST_TICK_SECONDS = 2 * TICK_SECONDS
"""What is beyond this between two ticks is not counted: the loop did not run then."""


class ServerGate:
    """The state of the control Redis, as far as this coordinator may use it."""

    def __init__(
        self,
        context: CoordinatorContext,
        epochs: Epochs,
        launchers: Launchers,
        ranks: RankIncarnations,
        patience: OpeningPatience,
    ) -> None:
        self._context = context
        self._patience = patience
        self._epochs = epochs
        self._launchers = launchers
        self._ranks = ranks
        self._closed = Closed(since=context.clock(), coordinator_is_new=True)
        self.attended = AttendedClock(LONGEST_TICK_SECONDS, context.clock)
        """In which this coordinator could receive requests."""
        self._attended_at_closing = 0.0
        self._run_id: str | None = None
        self.state = ServerState.OPENING
        self.waiting_for = "the control Redis"
        """What opening waits for, for a sentence."""
        self._opened_at = context.clock()
        self.successor: RLJob | None = None
        """Another job, which is stored: `serving` ends this coordinator and makes one for it."""

    @property
    def silence_counts_from(self) -> float:
        """A rank that waited for the control Redis could not report: silence counts from its opening.

        Nor could this coordinator receive anything while it was stopped itself.
        """
        if self.state is ServerState.OPENING:
            return self._context.clock()
        return max(self._opened_at, self.attended.running_since)

    @property
    def is_open(self) -> bool:
        """Whether everything can be asked of it."""
        return self.state is ServerState.OPEN

    def require_open(self) -> None:
        """Raises unless the control Redis is open."""
        self.require_usable()
        if self.state is ServerState.LOST:
            raise not_open("The control Redis has lost state; it opens with the next epoch. Ask again.")

    def require_usable(self) -> None:
        """Raises while it is not known what the control Redis has."""
        if self.state is ServerState.OPENING:
            raise not_open(
                f"The control Redis is not open yet; the coordinator waits for {self.waiting_for}. Ask again."
            )

    def close(self, why: str) -> None:
        """The connection was lost: whatever answers next may be a restarted server."""
        if self.state is not ServerState.OPENING:
            self._closed = Closed(since=self._context.clock(), coordinator_is_new=False)
            self._attended_at_closing = self.attended.seconds
        self.state = ServerState.OPENING
        self.waiting_for = f"the control Redis ({why})"
        self._run_id = None
        self._context.notify(Topic.ORDERS)  # launchers answer a closed server with how far they had seen it
        self._context.notify(Topic.REPLICAS)

    def check(self) -> None:
        """Notices a restart; opens the server when that is safe. Raises redis' or the queue's connection errors."""
        run_id = self._context.admin.server_run_id()
        if self._run_id is not None and run_id != self._run_id:
            self.close("it was restarted")
        if self.state is ServerState.OPENING:
            self._try_to_open(run_id)

    def opened_by_epoch(self) -> None:
        """An epoch was raised from the record file: what was lost does not matter any more."""
        self._run_id = self._context.admin.server_run_id()
        self.state = ServerState.OPEN
        self._context.store.commit([SEQ_FLOOR.put(self._reported_seq)])
        self._remember(self._run_id)
        self._context.notify(Topic.SERVER)

    def _try_to_open(self, run_id: str) -> None:
        if self._closed.coordinator_is_new:
            self._context.store.load()
            job = job_to_work_by(self._context.store)
            if job is not None and not runs_alike(job, self._context.job):
                self.waiting_for = "a coordinator that is made for the job of the epoch"
                self.successor = job
                return
        if self._context.store.value(RUN_ID) != run_id and self._awaits_launchers():
            return
        self.state = self._context.admin.open_server(self._seen_seq())
        self._run_id = run_id
        self._opened_at = self._context.clock()
        if self.state is ServerState.LOST:
            self._emit_loss()
            return
        self._context.store.load()
        self._remember(run_id)
        self._emit_layout()
        self._context.notify(Topic.ORDERS)
        self._context.notify(Topic.REPLICAS)

    def _awaits_launchers(self) -> bool:
        orders = {str(order.pod): order for order in self._epochs.desired.pods}
        at_work = frozenset(
            hello.launcher for pod, hello in self._launchers.by_pod().items() if _has_work(hello, orders.get(pod))
        )
        waited = self.attended.seconds - self._attended_at_closing
        awaited = launchers_awaited(self._closed, at_work, self._launchers.seq_reports(), waited, self._patience)
        self.waiting_for = "the word of launchers " + ", ".join(awaited)
        return bool(awaited)

    @property
    def _reported_seq(self) -> int:
        """The highest seq of the control Redis that a living launcher or rank has reported."""
        return max(self._launchers.seen_seq, self._ranks.seen_seq)

    def _seen_seq(self) -> int:
        """The highest seq that counts: numbers of a tail whose loss was cured already prove nothing any more."""
        floor = self._context.store.value(SEQ_FLOOR) or 0
        seen = self._reported_seq
        return seen if seen > floor else 0

    def _remember(self, run_id: str) -> None:
        if self._context.store.value(RUN_ID) != run_id:
            self._context.store.commit([RUN_ID.put(run_id)])

    def _emit_loss(self) -> None:
        """Memory knows more than the server: it is written back, then the loss becomes an event."""
        if not self._closed.coordinator_is_new:
            self._context.store.rewrite()
        message = (
            f"The control Redis lost a tail of its state (launchers had seen seq {self._reported_seq}): "
            "only a global restart from the record file opens it."
        )
        epoch: Epoch = self._epochs.current.restore.epoch
        event = self._context.event(EventKind.STATE_LOST, epoch, message)
        self._context.emit_once("lost", f"{self._run_id}", event)

    def _emit_layout(self) -> None:
        """Rows were put under another table of columns: also where a coordinator died before it emitted that."""
        adopted = self._context.admin.adopted_layout
        if adopted is None:
            return
        _LOG.warning("%s", adopted)
        event = self._context.event(EventKind.COLUMNS_CHANGED, self._epochs.current.restore.epoch, str(adopted))
        self._context.emit_once("layout", f"{adopted.seq}", event)
        self._context.admin.forget_adopted_layout(adopted)


def _has_work(hello: LauncherHello, order: PodOrder | None) -> bool:
    """Whether a launcher carries a pod of the job: not one that was replaced, has left, or is done."""
    return order is not None and order.phase is not PodPhase.DONE and order.pod_uid in ("", hello.pod_uid)
