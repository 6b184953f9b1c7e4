"""Rollout: tickets in, finished groups out, never idle while the gate lets it work.

The loop claims, beats and puts; a pool of threads generates and scores; the follower keeps the engine current.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil

from rljob_workers.dcs.session import RankSession
from rljob_workers.engines.base import Engine
from rljob_workers.engines.errors import EngineError, EngineGone, EngineRefused
from rljob_workers.roles.rank import TURN_SECONDS
from rljob_workers.roles.stages.generate import GenerateStage
from rljob_workers.roles.weight_follower import WeightFollower
from rljob_workers.telemetry.timeline import Timeline
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.types import GroupRows, Ticket, Withheld

_log = logging.getLogger(__name__)

TOKENS_PER_REQUEST = 4096
"""A request is answered when its longest sample is done, so long generations go out in small requests."""

REFUSAL_SECONDS = 30.0
"""An engine that has refused everything for this long (its logits are not finite, say) will not recover."""

RETRY_SECONDS = 0.1
"""After an error of the engine tickets are claimed again."""

MAX_REQUESTS = 32
"""Threads: enough for the engine's continuous batching to be full, few enough for one Python process."""


@dataclass(frozen=True, slots=True)
class RolloutConfig:
    """How much one replica works on at a time."""

    tickets_in_work: int
    """Groups of this replica that are being generated or scored."""
    tickets_per_request: int

    @classmethod
    def sized(cls, batch_size: int, num_ranks: int, samples_per_prompt: int, max_new_tokens: int) -> RolloutConfig:
        """One rollout's worth of groups over all ranks, in requests that end soon."""
        share = ceil(batch_size / num_ranks)
        by_tokens = TOKENS_PER_REQUEST // (samples_per_prompt * max_new_tokens)
        per_request = max(1, min(by_tokens, ceil(share / 2)), ceil(share / MAX_REQUESTS))
        return cls(share, per_request)


class RolloutLoop:
    """The main loop of one replica."""

    def __init__(
        self,
        config: RolloutConfig,
        session: RankSession,
        queue: TransferQueueClient,
        engine: Engine,
        stage: GenerateStage,
        timeline: Timeline,
    ) -> None:
        """Nothing is waited for here; `run` takes the follower, which needs `wake` first."""
        self._config = config
        self._session = session
        self._queue = queue
        self._engine = engine
        self._stage = stage
        self._timeline = timeline
        self._wake = threading.Event()
        self._running: dict[Future[list[GroupRows]], list[Ticket]] = {}
        self._pool = ThreadPoolExecutor(MAX_REQUESTS, thread_name_prefix="generate")
        self._ready = False
        self._waiting: str | None = "the first weights"
        self._refused_since: float | None = None
        """Since when the engine has refused everything."""
        self._claims_again_at = 0.0

    @property
    def wake(self) -> threading.Event:
        """Set by whoever has news for the loop."""
        return self._wake

    def run(self, follower: WeightFollower) -> None:
        """Works until the pod shall drain, then hands back what was not finished."""
        while not self._session.draining:
            if follower.error is not None:
                raise follower.error
            self._wake.clear()
            progressed = self._collect() | self._claim(follower)
            self._beat(follower)
            if not progressed:
                self._wake.wait(TURN_SECONDS)
        follower.stop()
        self._hand_back()

    def _beat(self, follower: WeightFollower) -> None:
        if follower.held is not None and not self._ready:
            self._ready = True
            self._session.ready()
        tickets = [ticket.id for batch in self._running.values() for ticket in batch]
        waiting = None if self._running else self._waiting
        self._session.pulse(waiting=waiting, tickets=tickets, holds=follower.held)

    def _claim(self, follower: WeightFollower) -> bool:
        in_work = sum(len(batch) for batch in self._running.values())
        room = min(self._config.tickets_in_work - in_work, self._config.tickets_per_request)
        held = follower.held
        if held is None:
            self._waiting = "weights for the engine"
            return False
        if room <= 0 or time.monotonic() < self._claims_again_at:
            return False
        answer = self._queue.claim_tickets(held, room, timeout=0)
        if isinstance(answer, Withheld):
            self._withheld(answer)
            return False
        self._submit(answer)
        return True

    def _withheld(self, reason: Withheld) -> None:
        self._waiting = f"a ticket (withheld: {reason.value})"
        name = f"withheld_{reason.value.lower()}"
        self._session.counters[name] = self._session.counters.get(name, 0) + 1

    def _submit(self, tickets: list[Ticket]) -> None:
        future = self._pool.submit(self._generate, tickets)
        self._running[future] = tickets
        future.add_done_callback(lambda _: self._wake.set())

    def _generate(self, tickets: list[Ticket]) -> list[GroupRows]:
        with self._timeline.span("generate", row=2 + tickets[0].group, r=tickets[0].rollout_id, groups=len(tickets)):
            return self._stage.run(tickets)

    def _collect(self) -> bool:
        done = [future for future in self._running if future.done()]
        for future in done:
            tickets = self._running.pop(future)
            error = future.exception()
            if error is None:
                self._refused_since = None
                self._put(future.result())
            elif isinstance(error, EngineError):
                # Only a dead engine makes suspects: a refusal or a timeout says nothing about a prompt.
                self._queue.return_tickets(tickets, killed=isinstance(error, EngineGone))
                self._bear(error)
            else:
                raise error
        return bool(done)

    def _bear(self, error: EngineError) -> None:
        """Goes on after a while; an engine that only ever refuses ends this life with the engine's sentence.

        It refuses for a moment when it was started anew. Told once: what repeats is what the role waits for.
        """
        now = time.monotonic()
        if isinstance(error, EngineRefused):
            self._refused_since = self._refused_since or now
            if now - self._refused_since > REFUSAL_SECONDS:
                raise error
        self._claims_again_at = now + RETRY_SECONDS
        told, self._waiting = self._waiting, f"the engine ({type(error).__name__}: {error})"
        if told != self._waiting:
            _log.warning("tickets are handed back: %s: %s", type(error).__name__, error)

    def _put(self, groups: list[GroupRows]) -> None:
        with self._timeline.span("put", r=groups[0].ticket.rollout_id, groups=len(groups)):
            accepted = self._queue.put_groups(groups)
        counters = self._session.counters
        counters["groups_put"] = counters.get("groups_put", 0) + sum(accepted)
        counters["groups_lost"] = counters.get("groups_lost", 0) + len(accepted) - sum(accepted)

    def _hand_back(self) -> None:
        tickets = [ticket for batch in self._running.values() for ticket in batch]
        if tickets:
            self._queue.return_tickets(tickets, killed=False)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._engine.abort_all()
