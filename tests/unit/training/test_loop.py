"""The actor's ranks in step: rows come late, drains at any moment, and no one goes on or leaves alone."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.names import RolloutId
from rljob_api.spec.algorithm import Truncated
from rljob_api.spec.evaluation import EvaluationDataSpec, EvaluationSetSpec, EvaluationSpec
from rljob_api.wire.ranks import NoticeKind
from rljob_workers.evaluation import Scored, digest_of
from rljob_workers.telemetry.timeline import Timeline
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.base import OptimizerStepResult, no_progress
from rljob_workers.trainers.data_parallel import DataParallelGroup, RankVote, agree
from rljob_workers.trainers.mesh import data_parallel
from rljob_workers.training.gang_loop import GangParts
from rljob_workers.training.learnt_tokens import LearntTokens
from rljob_workers.training.loop import ActorConfig, ActorLoop, Proximal
from rljob_workers.training.sample_filter import SampleFilter
from rljob_workers.training.turns import OwnTurns
from rljob_workers.transfer_queue.dataset import Slicing
from rljob_workers.transfer_queue.types import Batch, Claim, NotReady
from tests.unit.training.batches import make_batch

PATIENCE_SECONDS = 60.0
"""Never measured: a rank that waits for one that has left would wait for so long."""
ROLLOUTS, SLICES, PASSES = 3, 4, 2
SLICES_PER_STEP = 2
SLICE = SimpleNamespace(tokens=None, response_lengths=None)
"""What is made of a claimed batch: no one here looks into it."""


class Threads(DataParallelGroup):
    """Ranks that are threads of one process."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank = rank
        self.world = meeting.world
        self._meeting = meeting

    def add_up(self, values: torch.Tensor, what: str) -> None:
        values.copy_(self._meeting.sum_of(self.rank, values))

    def broadcast(self, values: torch.Tensor, source: int, what: str) -> None:
        raise NotImplementedError(what)

    def part(self, ranks: Sequence[Sequence[int]]) -> DataParallelGroup:
        raise NotImplementedError

    def collective(self, what: str, passes: int = 1) -> AbstractContextManager[None]:
        raise NotImplementedError(what)

    def close(self) -> None:
        pass


class Meeting:
    def __init__(self, world: int) -> None:
        self.world = world
        self._barrier = threading.Barrier(world)
        self._values: dict[int, torch.Tensor] = {}

    def sum_of(self, rank: int, values: torch.Tensor) -> torch.Tensor:
        self._values[rank] = values.clone()
        self._barrier.wait(PATIENCE_SECONDS)
        total = torch.stack([self._values[each] for each in range(self.world)]).sum(0)
        self._barrier.wait(PATIENCE_SECONDS)
        return total


@dataclass
class Rank:
    """One rank's surroundings: when its rows come, when it is ordered to drain, and what it did."""

    late: dict[tuple[int, int], int]
    """(rollout, slice) -> so many turns without rows."""
    drains_after: int | None
    """Ordered to drain after so many pulses."""
    did: list[str] = field(default_factory=list)
    pulses: int = 0
    version: int = 0
    stops: bool = False
    evaluation_takes: int = 0
    """So many looks at an evaluation until it is over."""
    scored_at_end: Scored | None = None
    notices: list[tuple[NoticeKind, str]] = field(default_factory=list)
    counters: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    welcome: Any = field(default_factory=lambda: SimpleNamespace(restore=SimpleNamespace(version=0)))

    @property
    def draining(self) -> bool:
        return self.drains_after is not None and self.pulses >= self.drains_after

    def advance(self, amount: int) -> None:
        pass

    def pulse(self, **_: object) -> None:
        self.pulses += 1
        if self.did and self.did[-1] == "finish" and self.drains_after is None:
            self.drains_after = 0  # idle, until someone says that it is enough

    def ready(self) -> None:
        pass

    def claim_training(self, task: str, rollout_id: RolloutId, index: int, *_: int, timeout: float) -> Claim:
        del task, timeout
        if self.late.get((rollout_id, index), 0) > 0:
            self.late[rollout_id, index] -= 1
            return NotReady(f"batch {index} of train_{rollout_id}")
        return make_batch([0, 0], [0.0, 1.0], [1, 2])

    @property
    def evaluation(self) -> Rank:
        return self

    def is_over(self, version: int, timeout: float) -> bool:
        del timeout
        self.did.append(f"asks for evaluation {version}")
        self.evaluation_takes -= 1
        return self.evaluation_takes < 0

    def scored(self, version: int) -> Scored | None:
        del version
        return self.scored_at_end

    def notify(self, kind: NoticeKind, message: str) -> None:
        self.notices.append((kind, message))

    def num_micro_batches(self, rows: object) -> int:
        del rows
        return 1

    def score(self, *_: object, num_micro_batches: int) -> str:
        assert num_micro_batches == 1
        self.did.append("log-probs")
        return "log-probs of a slice"

    def accumulate(self, rows: object, progress: object, *, num_micro_batches: int, ends_step: bool) -> None:
        del rows, progress, ends_step
        assert num_micro_batches == 1
        self.did.append("accumulate")

    def optimizer_step(self) -> OptimizerStepResult:
        self.did.append("step")
        return OptimizerStepResult(loss=0.0, grad_norm=0.0, learning_rate=0.0, totals={})

    def begin(self) -> None:
        self.did.append("begin")

    def reach(self, version: int) -> None:
        self.version = version
        self.did.append(f"reach {version}")

    def name(self, version: int) -> None:
        self.version = version

    @property
    def weights(self) -> int:
        return self.version

    def publish(self, weights: int) -> None:
        self.did.append(f"publish {weights}")

    def save_if_due(self) -> None:
        self.did.append("save")

    def finish(self) -> None:
        self.did.append("finish")


class Publisher:
    """What publishes for a rank."""

    def __init__(self, rank: Rank) -> None:
        self.begin = lambda _: None
        self.publish = rank.publish


def run(
    ranks: list[Rank],
    proximal: Proximal,
    monkeypatch: pytest.MonkeyPatch,
    critic_only: int = 0,
    sample_filter: SampleFilter | None = None,
    evaluation: EvaluationSpec | None = None,
) -> None:
    """All ranks to their ends, each in a thread."""
    monkeypatch.setattr("rljob_workers.training.loop.train_rows", lambda batch, *_: SLICE)
    monkeypatch.setattr("rljob_workers.rank_loop.TURN_SECONDS", 0.0)
    meeting, failures = Meeting(len(ranks)), []

    def live(number: int, rank: Any) -> None:
        slicing = Slicing("actor_train", 12 * SLICES, 12 * SLICES_PER_STEP, SLICES_PER_STEP, number, len(ranks))
        learnt = LearntTokens(Truncated.KEEP, None)
        config = ActorConfig(ROLLOUTS, PASSES, critic_only, proximal, 1.0, learnt, evaluation, SEED)
        group = Threads(number, meeting)
        rank.mesh = data_parallel(group)
        try:
            with closing(Timeline(Path(os.devnull), f"actor-{number}")) as timeline:
                gang = GangParts(rank, rank, rank, OwnTurns(), timeline)
                publisher: Any = Publisher(rank)
                ActorLoop(config, gang, slicing, rank, publisher, None, sample_filter).run()
        except BaseException as error:
            failures.append(error)
            meeting._barrier.abort()

    threads = [threading.Thread(target=live, args=(number, rank)) for number, rank in enumerate(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


late_rows = st.dictionaries(
    st.tuples(st.integers(0, ROLLOUTS - 1), st.integers(0, SLICES - 1)), st.integers(1, 3), max_size=4
)
drains = st.none() | st.integers(0, 60)


@settings(max_examples=40, deadline=None)
@given(
    world=st.integers(1, 3),
    late=st.lists(late_rows, min_size=3, max_size=3),
    reported=st.tuples(drains, drains, drains),
    proximal=st.sampled_from([Proximal.QUEUE, Proximal.ROLLOUT]),
    critic_only=st.integers(0, ROLLOUTS - 1),
)
def test_ranks_go_on_together_and_leave_together_where_no_weights_have_moved(
    world: int,
    late: list[dict[tuple[int, int], int]],
    reported: tuple[int | None, ...],
    proximal: Proximal,
    critic_only: int,
) -> None:
    ranks = [Rank(dict(rows), drains_after) for rows, drains_after in zip(late, reported, strict=True)][:world]
    with pytest.MonkeyPatch.context() as monkeypatch:
        run(ranks, proximal, monkeypatch, critic_only)
    first = ranks[0].did
    assert all(rank.did == first for rank in ranks), "a rank did what another did not"
    assert first[0] == "begin"
    assert first[-1] == "finish"
    work = [event for event in first if event in ("step", "finish") or event.startswith("publish")]
    before = work[work.index("finish") - 1] if len(work) > 1 else "publish 0"
    assert before.startswith("publish"), f"it left with weights that are of no version: {work}"
    if all(drains_after is None for drains_after in reported[:world]):
        trained = ROLLOUTS - critic_only
        assert first.count("step") == trained * PASSES * SLICES // SLICES_PER_STEP
        assert first.count("log-probs") == (trained * SLICES if proximal is Proximal.ROLLOUT else 0)


SEED = 0

SETS = EvaluationSpec(
    sets=[
        EvaluationSetSpec(name="long", data=EvaluationDataSpec(prompts="p.jsonl"), samples_per_prompt=2),
        EvaluationSetSpec(name="greedy", data=EvaluationDataSpec(prompts="p.jsonl")),
    ],
    every_steps=2,
    at_start=True,
)


@settings(max_examples=30, deadline=None)
@given(
    world=st.integers(1, 3),
    takes=st.lists(st.integers(0, 4), min_size=3, max_size=3),
    reported=st.tuples(drains, drains, drains),
)
def test_no_weights_leave_a_version_that_is_evaluated_and_a_drain_ends_the_wait(
    world: int, takes: list[int], reported: tuple[int | None, ...]
) -> None:
    ranks = [Rank({}, drains_after) for drains_after in reported[:world]]
    for rank, looks in zip(ranks, takes, strict=False):
        rank.evaluation_takes = looks
    with pytest.MonkeyPatch.context() as monkeypatch:
        run(ranks, Proximal.QUEUE, monkeypatch, evaluation=SETS)
    for rank in ranks:
        before = rank.did.index("step") if "step" in rank.did else len(rank.did)
        asked = rank.did[:before].count("asks for evaluation 0")
        assert before == len(rank.did) or asked > takes[ranks.index(rank)], "a step came before the evaluation was over"
        assert "accumulate" in rank.did[:before] or asked <= 1, "gradients wait for no evaluation"
        assert rank.did.count("finish") == 1


@pytest.mark.parametrize(
    ("scored", "message"),
    [
        pytest.param(
            Scored(digest_of(SETS, SEED, [8, 4]), [0, 1, 2, 8]),
            "The evaluation of version 0 is not finished: long 3 of 8 samples, greedy 1 of 4 samples are scored. They "
            "stand, and the others are scored when the job goes on.",
            id="some samples are scored",
        ),
        pytest.param(
            Scored("of-other-sets:8/2", [0, 1, 2, 7]),
            "Version 0 is not evaluated yet (long, greedy). Its evaluation begins when the job goes on.",
            id="samples of the sets are scored that the job had before",
        ),
        pytest.param(
            None,
            "Version 0 is not evaluated yet (long, greedy). Its evaluation begins when the job goes on.",
            id="none was begun",
        ),
    ],
)
def test_a_rank_that_leaves_reports_the_evaluation_that_is_not_finished(
    scored: Scored | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = [
        Rank({}, drains_after=20, evaluation_takes=1000, scored_at_end=scored),
        Rank({}, None, evaluation_takes=1000),
    ]
    run(ranks, Proximal.QUEUE, monkeypatch, evaluation=SETS)
    assert [rank.did.count("step") for rank in ranks] == [0, 0]
    assert ranks[0].notices == [(NoticeKind.EVALUATION_UNFINISHED, message)]
    assert ranks[1].notices == []


def test_what_is_agreed_is_what_all_can_and_any_must() -> None:
    meeting = Meeting(3)
    votes = [RankVote(True, False, 2), RankVote(False, False, 0), RankVote(True, True, 5)]
    answers: dict[int, Any] = {}

    def vote(rank: int) -> None:
        answers[rank] = agree(Threads(rank, meeting), votes[rank], "a slice")

    threads = [threading.Thread(target=vote, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers[0] == answers[1] == answers[2]
    assert (answers[0].all_have_rows, answers[0].draining, answers[0].num_micro_batches) == (False, (2,), 5)


class Counting(SampleFilter):
    """Passes all, and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def passed(self, batch: Batch, learnt: LearntTokens, progress: Callable[[], None] = no_progress) -> torch.Tensor:
        progress()
        self.asked += 1
        return learnt.rows(batch)


@pytest.mark.parametrize("proximal", [Proximal.QUEUE, Proximal.ROLLOUT])
def test_a_filter_is_asked_once_for_a_slice_and_not_where_nothing_is_trained(
    proximal: Proximal, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Counting()
    run([Rank({}, None)], proximal, monkeypatch, critic_only=1, sample_filter=found)
    assert found.asked == (ROLLOUTS - 1) * SLICES, "once, of two passes and of a pass for log-probs"


class OfTokens(Rank):
    """Its rows have what a filter sees."""

    def claim_training(self, task: str, rollout_id: RolloutId, index: int, *_: int, timeout: float) -> Claim:
        batch = super().claim_training(task, rollout_id, index, timeout=timeout)
        assert isinstance(batch, Batch)
        columns: dict[str, Jagged] = {
            Column.ROW_ADVANTAGES: Jagged.scalars(torch.zeros(2)),
            Column.ROLLOUT_LOG_PROBS: Jagged.from_lengths(torch.zeros(3), torch.tensor([1, 2])),
        }
        return replace(batch, columns={**batch.columns, **columns})


def test_a_rank_beats_between_two_calls_of_a_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    rank, pulses = OfTokens({}, None), list[int]()
    run([rank], Proximal.QUEUE, monkeypatch, 0, SampleFilter("own:slow", lambda _: not pulses.append(rank.pulses), 2))  # type: ignore[func-returns-value]
    assert len(pulses) == ROLLOUTS * SLICES * 2
    assert pulses == sorted(set(pulses)), "each call comes after a beat of its own"
