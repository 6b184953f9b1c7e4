"""What a rank saves of its groups and when, and what it makes of what others saved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from rljob_workers.data.prompts import Prompt
from rljob_workers.engines.base import NOT_BEGUN, FinishReason, Sample, VersionSpan
from rljob_workers.rollout.admission import PromptedTicket
from rljob_workers.rollout.carried import pack_group, sampling_digest, unpack_group
from rljob_workers.rollout.continuing import ContinuingStage, GroupInWork, SampleInWork
from rljob_workers.rollout.engine_access import EventLoopThread
from rljob_workers.rollout.partials import PartialConfig, Partials
from rljob_workers.transfer_queue.types import GroupSoFar, Ticket
from tests.clock import Clock
from tests.unit.rollout.fake_engine import FakeEngine, FakeRankEngine
from tests.unit.rollout.test_generate import CONFIG, TICKET
from tests.weights import weight

PROMPT = Prompt(4, "p4", (4, 4), label="l4")
PROMPTED = PromptedTicket(TICKET, PROMPT)
DIGEST = sampling_digest(PROMPT.token_ids, CONFIG.params_of(PROMPTED))
SPANS = (VersionSpan(weight(1), 0, 1), VersionSpan(weight(2), 1, 3))


class Queue:
    """Keeps what is saved, unless it refuses."""

    takes = True

    def __init__(self) -> None:
        self.saves: list[list[GroupSoFar]] = []
        self.saved: dict[int, bytes] = {}

    def save(self, groups: Sequence[GroupSoFar]) -> list[bool]:
        self.saves.append(list(groups))
        if self.takes:
            self.saved |= {group.ticket.id: group.data for group in groups}
        return [self.takes] * len(groups)

    def read(self, tickets: Sequence[Ticket]) -> dict[int, bytes]:
        return {ticket.id: self.saved[ticket.id] for ticket in tickets if ticket.id in self.saved}


class Rank:
    """One that has the group of TICKET in work."""

    def __init__(self, engine: FakeRankEngine, max_tokens: int = 100) -> None:
        self.clock, self.queue, self.counters = Clock(), Queue(), dict[str, float]()
        self.awaited: list[object] = []
        self.voided: list[object] = []
        stage = ContinuingStage(CONFIG, FakeEngine())
        self.samples = [SampleInWork(NOT_BEGUN), SampleInWork(NOT_BEGUN)]
        stage.in_work[TICKET.id] = GroupInWork(TICKET, DIGEST, self.samples)
        proof: Any = SimpleNamespace(
            awaited_by=lambda groups: any(one in group.newest for group in groups for one in self.awaited),
            voids=lambda groups, begun: (
                begun == 0 and any(one in group.newest for group in groups for one in self.voided)
            ),
        )
        queue: Any = self.queue
        config = PartialConfig(5.0, max_tokens)
        self.partials = Partials(config, CONFIG, stage, queue, engine, proof, self.counters, self.clock)

    def draw(self, index: int, tokens: list[int]) -> None:
        more = self.samples[index].more
        more.output_ids, more.log_probs = tokens, [-0.5] * len(tokens)
        more.spans = tuple(
            VersionSpan(s.weight, s.start, min(s.end, len(tokens))) for s in SPANS if s.start < len(tokens)
        )

    def save(self, begun: int = 0) -> list[Sample]:
        """What is saved now of all samples."""
        self.partials.save([TICKET], {TICKET.id: begun})
        saved = self.queue.saved.get(TICKET.id)
        return [] if saved is None else list(unpack_group(saved, 2, DIGEST))


@pytest.fixture
def engine() -> Iterator[FakeRankEngine]:
    engine = FakeRankEngine(FakeEngine())
    yield engine
    EventLoopThread.close(engine)


def test_what_has_grown_is_saved_and_nothing_else_is(engine: FakeRankEngine) -> None:
    rank = Rank(engine)
    assert rank.save() == []
    assert rank.queue.saves == []
    rank.draw(1, [7, 8])
    assert rank.save()[1] == Sample([7, 8], [-0.5, -0.5], FinishReason.ABORT, (SPANS[0], VersionSpan(weight(2), 1, 2)))
    ((group,),) = rank.queue.saves
    assert (group.oldest, group.newest) == ([weight(1)], [weight(2)])
    rank.save()
    assert len(rank.queue.saves) == 1
    rank.samples[1].more.finish_reason = FinishReason.STOP
    assert rank.save()[1].finish_reason is FinishReason.STOP
    assert len(rank.queue.saves) == 2


def test_what_was_not_taken_is_saved_again(engine: FakeRankEngine) -> None:
    rank = Rank(engine)
    rank.draw(0, [7])
    rank.queue.takes = False
    assert rank.save() == []
    rank.queue.takes = True
    assert rank.save()[0].output_ids == [7]


def test_it_is_saved_as_often_as_the_job_states(engine: FakeRankEngine) -> None:
    rank = Rank(engine)
    for second in range(13):
        rank.clock.sleep(1.0)
        rank.draw(0, [7] * (1 + second % 3))
        rank.partials.save_if_due([TICKET], {TICKET.id: 0})
    assert len(rank.queue.saves) == 2


def test_tokens_of_weights_that_are_not_proven_are_not_saved(engine: FakeRankEngine) -> None:
    rank = Rank(engine)
    rank.draw(0, [7])
    assert rank.save()[0].output_ids == [7]
    rank.draw(0, [7, 8])
    rank.awaited = [weight(2)]
    assert rank.save()[0].output_ids == [7]
    rank.awaited, rank.voided = [], [weight(2)]
    assert rank.save()[0].output_ids == [7]
    assert rank.save(begun=1)[0].output_ids == [7, 8]


def test_more_tokens_than_may_be_carried_are_cut(engine: FakeRankEngine) -> None:
    rank = Rank(engine, max_tokens=2)
    rank.draw(0, [7, 8, 9])
    rank.samples[0].more.finish_reason = FinishReason.STOP
    assert rank.save()[0] == Sample([7, 8], [-0.5, -0.5], FinishReason.ABORT, (SPANS[0], VersionSpan(weight(2), 1, 2)))


def test_a_ticket_gets_what_there_is_and_it_is_counted(engine: FakeRankEngine) -> None:
    rank = Rank(engine)
    full = CONFIG.max_new_tokens
    samples = [
        Sample([7], [-0.5], FinishReason.ABORT, (VersionSpan(weight(1), 0, 1),)),
        Sample([8] * full, [-0.5] * full, FinishReason.ABORT, (VersionSpan(weight(1), 0, full),)),
    ]
    rank.queue.saved[TICKET.id] = pack_group(samples, DIGEST)
    (found,) = rank.partials.continued([PROMPTED])
    assert [(one.output_ids, one.finish_reason) for one in found.carried] == [
        ([7], FinishReason.ABORT),
        ([8] * full, FinishReason.LENGTH),
    ]
    assert rank.counters == {"tokens_carried": 1 + full, "samples_carried": 2}


def test_what_was_saved_of_another_prompt_or_sampling_is_begun_again(engine: FakeRankEngine) -> None:
    rank = Rank(engine)
    rank.queue.saved[TICKET.id] = pack_group([Sample([7], [-0.5], FinishReason.ABORT, SPANS[:1])] * 2, DIGEST + 1)
    assert rank.partials.continued([PROMPTED]) == [PROMPTED]
    assert rank.counters == {}


def test_of_work_that_is_over_nothing_is_saved(engine: FakeRankEngine) -> None:
    rank = Rank(engine)
    rank.draw(0, [7])
    rank.partials.forget([TICKET])
    assert rank.save() == []
