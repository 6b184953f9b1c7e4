"""A rank's conversation with the coordinator: registration, beats, `busy`, ready, drain, step reports, failures.

Called by a role's main loop from its own thread only (counters excepted). Beats are sent by that loop and by nothing
else, so that a loop that hangs falls silent. Sending one costs no waiting: the answer is collected by a later pulse.

    session = RankSession(context)
    with session.busy("loading checkpoint 12", seconds=120):
        ...
    session.ready()
    while not session.draining:
        session.pulse(tickets=[...], holds=weight)
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from rljob_api.spec.restart import absence_seconds
from rljob_api.wire.failures import Failure, FailureKind, Hopeless
from rljob_api.wire.identity import WeightId
from rljob_api.wire.inputs import InputAnswer, InputNote, InputReport
from rljob_api.wire.ranks import (
    Beat,
    BeatAnswer,
    Busy,
    Notice,
    NoticeKind,
    RankHello,
    RankState,
    RankWelcome,
    StepReport,
)
from rljob_workers.dcs.errors import CoordinatorUnreachable, DcsError
from rljob_workers.dcs.membership.coordinator_http import (
    ATTEMPT_SECONDS,
    ChannelBroken,
    CoordinatorClient,
    accept,
)
from rljob_workers.dcs.membership.rank_context import RankContext

AGAIN_SECONDS = 0.5
"""After a beat without answer: a restarted coordinator knows neither what a rank waits for nor what it does."""


class Keep(Enum):
    """Leave it as the last pulse had it."""

    KEEP = "Keep"


@dataclass(frozen=True, slots=True)
class _Work:
    """What the main loop reported last."""

    waiting: str | None = None
    tickets: tuple[int, ...] = ()
    still_seconds: float = 0.0
    leases: tuple[str, ...] = ()
    holds: WeightId | None = None


@dataclass(frozen=True, slots=True)
class _BusyUntil:
    what: str
    until: float


class RankSession:
    """One incarnation of a rank, as the coordinator knows it. Registers when made; IncarnationOver when fenced."""

    def __init__(self, context: RankContext, clock: Callable[[], float] = time.monotonic) -> None:
        self.context = context
        self.incarnation = context.incarnation
        self.counters: defaultdict[str, float] = defaultdict(float)
        """Counters and gauges of this rank for /metrics; names that the coordinator does not know are left out."""
        self._progress = 0
        self._clock = clock
        self._client = CoordinatorClient(context.endpoints, clock)
        self._absence_seconds = absence_seconds(context.job.spec.restart_policy)
        self._state = RankState.STARTING
        self._work = _Work()
        self._busy: _BusyUntil | None = None
        self._draining = False
        self.stops = False
        """Whether the roles that train leave with the version that they have: this rank with them, ordered or not."""
        self._seq_of: Callable[[], int] | None = None
        self._postponed: DcsError | None = None
        """What a beat within a collective would have raised."""
        self.welcome: RankWelcome = self._register()
        self._published = self.welcome.published
        self._role_ranks: int | None = None
        self._answered_at = clock()
        self._due = clock()

    @property
    def draining(self) -> bool:
        """Whether this pod shall finish or hand back its work and then exit 0."""
        return self._draining or self.context.drain.asked

    @property
    def published(self) -> WeightId | None:
        """The newest policy weight that the coordinator has answered with."""
        return self._published

    @property
    def role_ranks(self) -> int | None:
        """Ranks of its role as they are ordered now; None before a beat was answered."""
        return self._role_ranks

    def follow_seq(self, seq_of: Callable[[], int]) -> None:
        """Copies `seq_of()` (of the queue client's calls) into the launcher's view at every pulse."""
        self._seq_of = seq_of

    def advance(self, amount: int) -> None:
        """This rank brought the job forward: by so many tokens, rows or samples. The next beat reports it."""
        self._progress += amount

    def pulse(
        self,
        *,
        waiting: str | None = None,
        tickets: Sequence[int] | None = None,
        still_seconds: float = 0.0,
        leases: Sequence[str] | None = None,
        holds: WeightId | Keep | None = Keep.KEEP,
    ) -> None:
        """Notes what the loop does; sends a beat when the interval is over. Call it from every turn and every wait.

        `waiting`: a sentence for what; None while working. `tickets`, `leases`: all that are in work; None
        leaves them as the last pulse had them (an unlisted one comes back). `still_seconds`: see `Beat`.
        Raises IncarnationOver, CoordinatorUnreachable.
        """
        work = replace(self._work, waiting=waiting, still_seconds=still_seconds)
        if tickets is not None:
            work = replace(work, tickets=tuple(tickets))
        if leases is not None:
            work = replace(work, leases=tuple(leases))
        if holds is not Keep.KEEP:
            work = replace(work, holds=holds)
        self._work = work
        if self._postponed is not None:
            raise self._postponed
        self._note_seq()
        self._collect()
        if self._client.channel.pending is None and self._clock() >= self._due:
            self._send()

    def beat_within(self, waiting: str) -> None:
        """As `pulse`, within a collective: what it would raise is raised by the next pulse, outside.

        A rank that left in the middle would keep the others waiting for it.
        """
        if self._postponed is not None:
            return
        try:
            self.pulse(waiting=waiting)
        except DcsError as error:
            self._postponed = error

    @contextlib.contextmanager
    def busy(self, what: str, seconds: float) -> Iterator[None]:
        """Announces something long before it begins; the coordinator has received it when this returns."""
        outer, self._busy = self._busy, _BusyUntil(what, self._clock() + seconds)
        self._beat_now()
        try:
            yield
        finally:
            self._busy = outer
            self._due = self._clock()

    def ready(self) -> None:
        """This rank can work. Received by the coordinator when this returns."""
        self._state = RankState.READY
        self._beat_now()
        self.context.memory.set_ready()

    def report_step(self, report: StepReport) -> None:
        """Reports a trained step; durable when this returns."""
        self._client.call("POST", "/v1/steps", report, deadline=self._patience())

    def notify(self, kind: NoticeKind, message: str, *, subject: str | None = None) -> None:
        """Reports something that the job survives; becomes an event, durable when this returns.

        With a `subject` it is one for all ranks of an epoch, which of them reports it first.
        """
        about = None if subject is None else subject[:2500]
        notice = Notice(incarnation=self.incarnation, kind=kind, message=message[:4096], subject=about)
        self._client.call("POST", "/v1/notices", notice, deadline=self._patience())

    def report_inputs(self, notes: Sequence[InputNote]) -> InputAnswer:
        """Reports what this rank reads from outside of the run."""
        report = InputReport(incarnation=self.incarnation, inputs=list(notes))
        return self._client.ask("POST", "/v1/inputs", report, InputAnswer, deadline=self._patience())

    def report_failure(self, message: str, hopeless: Hopeless | None = None) -> None:
        """Reports a failure that no process died of; durable when this returns. Same message, one failure.

        The job fails, by the name `hopeless` if there is one.
        """
        digest = hashlib.blake2b(message.encode(), digest_size=8).hexdigest()
        key = self.incarnation.key
        failure = Failure(
            id=f"reported/{self.incarnation.id}/{digest}",
            kind=FailureKind.REPORTED,
            pod=key.pod,
            rank=key.rank,
            epoch=self.incarnation.epoch,
            generation=self.incarnation.generation,
            incarnation=self.incarnation.id,
            message=message,
            hopeless=hopeless,
            at=time.time(),
        )
        self._client.call("POST", "/v1/failures", failure, deadline=self._patience())

    def close(self) -> None:
        """Closes the connection. The coordinator is not asked: a rank's end is its launcher's to report."""
        self._client.close()

    def _patience(self) -> float:
        return self._clock() + self._absence_seconds

    def _register(self) -> RankWelcome:
        hello = RankHello(incarnation=self.incarnation, pid=os.getpid(), launcher=self.context.launcher)
        try:
            return self._client.ask("POST", "/v1/ranks", hello, RankWelcome, deadline=self._patience())
        except BaseException:
            self._client.close()
            raise

    def _note_seq(self) -> None:
        if self._seq_of is not None:
            self.context.memory.raise_seq(self._seq_of())

    def _beat(self) -> Beat:
        busy = self._busy
        left = None if busy is None else busy.until - self._clock()
        return Beat(
            incarnation=self.incarnation,
            state=self._state,
            busy=Busy(what=busy.what, seconds=left) if busy is not None and left is not None and left > 0 else None,
            waiting=self._work.waiting,
            tickets=list(self._work.tickets),
            still_seconds=self._work.still_seconds,
            leases=list(self._work.leases),
            holds=self._work.holds,
            counters=dict(self.counters),
            progress=self._progress,
            seen_seq=self.context.memory.seen_seq,
        )

    def _send(self) -> None:
        body = self._beat().model_dump_json().encode()
        began = self._clock()
        self._due = began + self.welcome.beat_interval_seconds
        try:
            self._client.channel.begin("POST", "/v1/ranks/beat", body, timeout=ATTEMPT_SECONDS)
        except ChannelBroken as error:
            # An address that swallows everything costs the loop a while: at most half of its time.
            self._lost(str(error), again_in=max(AGAIN_SECONDS, self._clock() - began))

    def _collect(self) -> None:
        try:
            answer = self._client.channel.collect()
        except ChannelBroken as error:
            self._lost(str(error))
            return
        if answer is None:
            return
        if answer.status >= 500:
            self._lost(f"status {answer.status}")
            return
        self._take_answer(BeatAnswer.model_validate_json(accept(answer)))

    def _beat_now(self) -> None:
        self._note_seq()
        answer = self._client.ask("POST", "/v1/ranks/beat", self._beat(), BeatAnswer, deadline=self._patience())
        self._due = self._clock() + self.welcome.beat_interval_seconds
        self._take_answer(answer)

    def _take_answer(self, answer: BeatAnswer) -> None:
        self._answered_at = self._clock()
        self._draining, self.stops = answer.drain, answer.stops
        self._published = answer.published
        self._role_ranks = answer.role_ranks

    def _lost(self, why: str, again_in: float = AGAIN_SECONDS) -> None:
        """A beat got no answer: the next is due soon; the rank gives up only after a long absence."""
        self._due = self._clock() + again_in
        silent = self._clock() - self._answered_at
        if silent > self._absence_seconds:
            raise CoordinatorUnreachable(
                f"{self.incarnation.key}: the coordinator at {self._client.url} has not answered a beat for "
                f"{silent:.0f} s ({why})."
            )
