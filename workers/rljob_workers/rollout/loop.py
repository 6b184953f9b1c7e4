"""The rollout loop: tickets in, finished groups out, never idle while the gate lets it work.

Run by `assembly`. The loop claims, beats and puts; groups are generated and scored beside it; `engine_sync` keeps the
engine current. The loop calls no engine itself; its assembly aborts what is left at the end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, NoReturn

from rljob_api.wire.failures import Hopeless
from rljob_api.wire.ranks import NoticeKind
from rljob_workers.dcs.membership.counters import WITHHELD_SECONDS
from rljob_workers.dcs.membership.news import NewsQueue
from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.engines.base import EngineError, EngineGone, EngineStalled
from rljob_workers.rank_loop import TURN_SECONDS, LostTime
from rljob_workers.rollout.admission import (
    FittingPrompts,
    PromptedTicket,
    RolloutShape,
    limits_of,
    tickets_to_claim,
)
from rljob_workers.rollout.engine_access import RankEngine
from rljob_workers.rollout.engine_sync import WeightFollower
from rljob_workers.rollout.evaluating import Evaluator
from rljob_workers.rollout.groups import GroupsInWork, Outcomes
from rljob_workers.rollout.partials import Partials
from rljob_workers.rollout.scoring_stage import Refused, Unscored
from rljob_workers.rollout.verification import EngineMismatch, WeightProof
from rljob_workers.telemetry.timeline import Timeline
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.errors import AttemptsExhausted, TicketLost
from rljob_workers.transfer_queue.types import GroupRows, Ticket, Withheld

_log = logging.getLogger(__name__)


RETRY_SECONDS = 0.1
"""After an error of the engine tickets are claimed again."""


NOT_NEEDED = frozenset({Withheld.STALENESS, Withheld.CAPACITY, Withheld.MEMORY, Withheld.NONE_OPEN})
"""Why tickets are withheld from a replica that is ahead of training. The other reasons are of the replica, or pass."""


class Finished(NamedTuple):
    """Tickets and what became of them."""

    tickets: list[Ticket]
    outcomes: Outcomes
    begun: int
    """What `proof.num_voided` was then."""


class RolloutLoop:
    """The main loop of one replica."""

    def __init__(
        self,
        shape: RolloutShape,
        session: RankSession,
        queue: TransferQueueClient,
        engine: RankEngine,
        work: GroupsInWork,
        fitting: FittingPrompts,
        timeline: Timeline,
        wake: threading.Event,
        proof: WeightProof,
        evaluator: Evaluator | None,
        partials: Partials | None,
        news: NewsQueue,
    ) -> None:
        """`wake` is set by the groups in work and by the follower when something has changed for the loop.

        `evaluator` None: the job evaluates nothing. `partials` None: groups that are interrupted are begun again.
        `news` becomes events.
        """
        self._shape = shape
        self._limits = limits_of(shape, session.role_ranks)
        self._session = session
        self._queue = queue
        self._engine = engine
        self._work = work
        self._fitting = fitting
        self._timeline = timeline
        self._wake = wake
        self._proof = proof
        self._evaluator = evaluator
        self._partials = partials
        self._news = news
        self._begun: dict[int, int] = {}
        """Ticket -> what `proof.num_voided` was when its work began."""
        self._unproven: list[Finished] = []
        """Groups that wait for the proof of the weights that made them."""
        self._ready = False
        self._waiting: str | None = "the first weights"
        self._claims_again_at = 0.0
        self._reported_tokens = 0
        """Tokens that were reported as progress."""
        self._withheld_time = LostTime(session.counters, WITHHELD_SECONDS)
        self._is_not_needed = False
        """Whether the last claim found that tickets are withheld since this replica is ahead of training."""
        self._idle_share = 0.0
        """Of the samples that the engine could run at once, those that it lacks since tickets are withheld."""

    def run(self, follower: WeightFollower) -> None:
        """Works until the pod shall drain, then hands back what was not finished."""
        while not self._session.draining:
            self._wake.clear()
            while not self._news.empty():
                news = self._news.get()
                self._session.notify(news.kind, news.sentence, subject=news.subject)
            if follower.error is not None:
                self._give_up(follower.error)
            self._withheld_time.count(self._idle_share)
            progressed = self._collect() | self._put_proven() | self._evaluate(follower) | self._claim(follower)
            progressed |= self._evaluate_on_free_slots(follower)
            self._beat(follower)
            if self._partials is not None:
                self._partials.save_if_due(self._work.tickets, self._begun)
            if not progressed:
                self._wake.wait(TURN_SECONDS)
        follower.stop()
        self._hand_back()

    def _give_up(self, error: BaseException) -> NoReturn:
        if isinstance(error, EngineMismatch):
            self._session.report_failure(str(error), Hopeless.ENGINE_MISMATCH)
        self._hand_back()  # no prompt is suspect for this
        raise error

    def _beat(self, follower: WeightFollower) -> None:
        if follower.held is not None and not self._ready:
            self._ready = True
            self._session.ready()
        tickets = [ticket.id for ticket in self._tickets()]
        waiting = None if tickets else self._waiting
        before, self._reported_tokens = self._reported_tokens, self._engine.progress.tokens
        self._session.advance(self._reported_tokens - before)
        stalled = self._engine.progress.stalled_seconds()
        self._session.pulse(waiting=waiting, tickets=tickets, still_seconds=stalled, holds=follower.held)

    def _claim(self, follower: WeightFollower) -> bool:
        self._idle_share, self._is_not_needed = 0.0, False
        self._limits = limits_of(self._shape, self._session.role_ranks)
        held = follower.held
        if held is None:
            self._waiting = "weights for the engine"
            return False
        in_flight = counted = self._work.samples_in_flight
        if self._evaluator is not None:
            # What an evaluation has beyond its share, on slots that were free, keeps no rollout waiting for an engine.
            evaluated, share = self._evaluator.samples_in_flight, self._limits.samples_in_flight
            in_flight, counted = in_flight + evaluated, counted + min(evaluated, self._evaluator.share_of(share))
        wanted = tickets_to_claim(self._limits, counted, len(self._work.tickets))
        if wanted == 0 or time.monotonic() < self._claims_again_at:
            return False
        answer = self._queue.claim_tickets(held, wanted, timeout=0)
        if isinstance(answer, Withheld):
            self._withheld(answer, in_flight)
            return False
        self._begin(answer)
        return True

    def _evaluate(self, follower: WeightFollower) -> bool:
        """Goes on with an evaluation; before tickets are claimed, which take all the room that there is."""
        if self._evaluator is None:
            return False
        errors = self._evaluator.collect()
        self._end_if_stuck(errors)
        for error in errors:
            self._pause_claims(error)
        if follower.held is None or time.monotonic() < self._claims_again_at:
            return False
        return self._evaluator.claim(follower.held, self._evaluator.share_of(self._limits.samples_in_flight))

    def _evaluate_on_free_slots(self, follower: WeightFollower) -> bool:
        """While tickets are withheld, which is mostly until the evaluation is over, it gets all slots."""
        if self._evaluator is None or follower.held is None or not self._is_not_needed:
            return False
        if time.monotonic() < self._claims_again_at:
            return False
        return self._evaluator.claim(follower.held, self._limits.samples_in_flight - self._work.samples_in_flight)

    def _begin(self, tickets: Sequence[Ticket]) -> None:
        prompted = self._fitting.of(tickets)
        if self._partials is not None:
            prompted = self._partials.continued(prompted)
        for request in requests_of(prompted, self._limits.tickets_per_request):
            self._begun |= dict.fromkeys((each.ticket.id for each in request), self._proof.num_voided)
            self._work.begin(request, self._limits.samples_per_ticket)

    def _withheld(self, reason: Withheld, in_flight: int) -> None:
        self._waiting = f"a ticket (withheld: {reason.value})"
        self._is_not_needed = reason in NOT_NEEDED
        if self._is_not_needed:
            self._idle_share = max(0.0, 1.0 - in_flight / self._limits.samples_in_flight)
        name = f"withheld_{reason.value.lower()}"
        self._session.counters[name] = self._session.counters.get(name, 0) + 1

    def _collect(self) -> bool:
        ended = self._work.collect()
        self._end_if_stuck([outcome.exception() for _, outcome in ended])
        lost = [each for tickets, outcome in ended if isinstance(outcome.exception(), EngineError) for each in tickets]
        if lost and self._partials is not None:
            # At once: all requests of an engine that dies end together, and storage that is away is waited for once.
            self._partials.save(lost, self._begun)
        for tickets, outcome in ended:
            error = outcome.exception()
            if error is None:
                self._engine.answered()
                begun = [self._begun.pop(ticket.id) for ticket in tickets]
                self._unproven.append(Finished(tickets, outcome.result(), min(begun)))
            elif isinstance(error, EngineError):
                # Only an engine that has ended counts: a refusal or a timeout is not the fault of a prompt.
                for ticket in tickets:
                    del self._begun[ticket.id]
                self._queue.return_tickets(tickets, killed=isinstance(error, EngineGone | EngineStalled))
                self._pause_claims(error)
            else:
                raise error
            if self._partials is not None:
                self._partials.forget(tickets)
        return bool(ended)

    def _end_if_stuck(self, errors: Iterable[BaseException | None]) -> None:
        stalled = self._engine.end_if_stalled(errors)
        if stalled is not None:
            sentence = f"{stalled}. It is ended, and started anew."
            _log.warning(sentence)
            self._session.notify(NoticeKind.ENGINE_STALLED, sentence)

    def _put_proven(self) -> bool:
        """Puts what was made by weights that are proven; what may have tokens of wrong ones is drawn again."""
        waiting, self._unproven = self._unproven, []
        for finished in waiting:
            groups = [outcome for outcome in finished.outcomes if isinstance(outcome, GroupRows)]
            if self._proof.awaited_by(groups):
                self._unproven.append(finished)
            elif self._proof.voids(groups, finished.begun):
                self._queue.return_tickets(finished.tickets, killed=False)
            else:
                self._settle(groups, finished.outcomes)
        return len(self._unproven) < len(waiting)

    def _tickets(self) -> list[Ticket]:
        """All that are in work here."""
        return [*self._work.tickets, *(ticket for finished in self._unproven for ticket in finished.tickets)]

    def _pause_claims(self, error: EngineError) -> None:
        """Claims again after a while. Logged once: what repeats is what the role waits for."""
        self._engine.end_if_refusing([error])
        self._claims_again_at = time.monotonic() + RETRY_SECONDS
        before, self._waiting = self._waiting, f"the engine ({type(error).__name__}: {error})"
        if before != self._waiting:
            _log.warning("tickets are handed back: %s: %s", type(error).__name__, error)

    def _settle(self, groups: list[GroupRows], outcomes: Outcomes) -> None:
        if groups:
            self._put(groups)
        for outcome in outcomes:
            if isinstance(outcome, Unscored):
                self._redraw(outcome)
            elif isinstance(outcome, Refused):
                self._draw_again(outcome)

    def _redraw(self, group: Unscored) -> None:
        """Another prompt for a group that has no samples to compare; none left ends the job by name."""
        self._session.counters["groups_redrawn"] += 1
        try:
            self._begin([self._queue.redraw(group.ticket, group.reason)])
        except TicketLost:
            return
        except AttemptsExhausted as error:
            raise ValueError(str(error)) from error

    def _draw_again(self, group: Refused) -> None:
        """Another prompt for a group that the job's filter refuses."""
        self._session.counters["groups_refused"] += 1
        with suppress(TicketLost):
            self._begin([self._queue.refuse(group.ticket, group.score)])

    def _put(self, groups: list[GroupRows]) -> None:
        with self._timeline.span("put", r=groups[0].ticket.rollout_id, groups=len(groups)):
            places = self._queue.put_groups(groups)
        counters, num_put = self._session.counters, sum(place is not None for place in places)
        self._session.advance(num_put)
        counters["groups_put"] = counters.get("groups_put", 0) + num_put
        counters["groups_lost"] = counters.get("groups_lost", 0) + len(places) - num_put

    def _hand_back(self) -> None:
        tickets = self._tickets()
        if self._partials is not None:
            self._partials.save(self._work.tickets, self._begun)
        if tickets:
            self._queue.return_tickets(tickets, killed=False)
        if self._evaluator is not None:
            self._evaluator.hand_back()
        self._work.close()


def requests_of(tickets: list[PromptedTicket], tickets_per_request: int) -> list[list[PromptedTicket]]:
    """The tickets, in order, by the requests that they are generated in."""
    starts = range(0, len(tickets), tickets_per_request)
    return [tickets[start : start + tickets_per_request] for start in starts]
