"""What a rank does with all that an engine had when it died, where the job has `rollout.partial`."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from concurrent.futures import wait
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rljob_workers.data.prompts import Prompt
from rljob_workers.dcs.membership.news import NewsQueue
from rljob_workers.engines.base import (
    Drawn,
    EngineGone,
    Event,
    FinishReason,
    Grown,
    Sample,
    SamplingParams,
    Shown,
    VersionSpan,
)
from rljob_workers.rollout.admission import PromptedTicket, RolloutShape
from rljob_workers.rollout.continuing import ContinuingStage
from rljob_workers.rollout.engine_access import CREDITED_BEGINNINGS, EventLoopThread
from rljob_workers.rollout.groups import GroupsInWork
from rljob_workers.rollout.loop import RolloutLoop
from rljob_workers.rollout.partials import PartialConfig, Partials
from rljob_workers.telemetry.timeline import Timeline
from rljob_workers.transfer_queue.types import Ticket
from tests.clock import Clock
from tests.unit.rollout.fake_engine import FakeEngine, FakeRankEngine
from tests.unit.rollout.test_generate import CONFIG, TICKET
from tests.unit.rollout.test_partials import Queue
from tests.weights import weight


class DyingEngine(FakeEngine):
    """Draws one token of each sample, and dies."""

    prompts_per_request = 1

    async def generate(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], shown: Shown = Shown.ENDS
    ) -> AsyncGenerator[Event]:
        for number in range(sum(one.num_samples for one in params)):
            yield Drawn(1)
            yield Grown({number: Sample([5], [-0.5], FinishReason.ABORT, (VersionSpan(weight(3), 0, 1),))})
        raise EngineGone("it died")


class Rank:
    """A rollout rank at an engine that dies; storage and queue are made up."""

    def __init__(self, engine: FakeRankEngine, timeline: Timeline) -> None:
        self.engine, self.storage = engine, Queue()
        self.returned: list[Ticket] = []
        stage, wake, counters = ContinuingStage(CONFIG, engine.client), threading.Event(), dict[str, float]()
        unused: Any = None
        session: Any = SimpleNamespace(role_ranks=1, counters=counters)
        proof: Any = SimpleNamespace(num_voided=0, awaited_by=lambda groups: False, voids=lambda groups, begun: False)
        queue: Any = SimpleNamespace(return_tickets=lambda tickets, killed: self.returned.extend(tickets))
        fitting: Any = SimpleNamespace(of=lambda tickets: [PromptedTicket(one, PROMPT) for one in tickets])
        storage: Any = self.storage
        self.work = GroupsInWork(engine, stage, unused, timeline, wake=wake.set, stall_seconds=60.0)
        config = PartialConfig(1e9, CONFIG.max_new_tokens)
        partials = Partials(config, CONFIG, stage, storage, engine, proof, counters, Clock())
        shape = RolloutShape(8, 2, CONFIG.max_new_tokens, 8, 1, concurrency=16, prompts_per_request=1)
        self.loop = RolloutLoop(
            shape, session, queue, engine, self.work, fitting, timeline, wake, proof, None, partials, NewsQueue()
        )

    def lose(self, tickets: list[Ticket]) -> None:
        """They are begun, and their engine dies."""
        self.loop._begin(tickets)
        wait(self.work._running)
        assert self.loop._collect()


PROMPT = Prompt(4, "p4", (4, 4), label="l4")


@pytest.fixture
def rank() -> Iterator[Rank]:
    engine = FakeRankEngine(DyingEngine(), tokens_per_ticket=2 * CONFIG.max_new_tokens)
    with closing(Timeline(Path(os.devnull), "rollout-0.0")) as timeline:
        rank = Rank(engine, timeline)
        yield rank
        rank.work.close()
    EventLoopThread.close(engine)


def test_all_that_an_engine_had_is_saved_by_one_call(rank: Rank) -> None:
    """Each call may wait for storage that is away, and no beat goes out meanwhile."""
    tickets = [replace(TICKET, id=number, group=number) for number in range(8)]
    rank.lose(tickets)
    (groups,) = rank.storage.saves
    assert [group.ticket.id for group in groups] == list(range(8))
    assert rank.returned == tickets


def test_a_group_that_grows_with_every_engine_that_dies_makes_progress(rank: Rank) -> None:
    for _ in range(CONFIG.max_new_tokens - 1):
        rank.lose([TICKET])
    assert rank.engine.progress.tokens == 2 * (CONFIG.max_new_tokens - 1)


def test_a_group_that_begins_at_the_same_token_again_and_again_makes_none_in_the_end(rank: Rank) -> None:
    rank.storage.takes = False
    for _ in range(CONFIG.max_new_tokens - 1):
        rank.lose([TICKET])
    assert rank.engine.progress.tokens == 2 * CREDITED_BEGINNINGS
