"""A batch dealt to data-parallel ranks: the same question gets the same rows, equal counts, near token sums."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
import torch

from rljob_api.names import Role, RolloutId
from rljob_api.spec.training import ClaimPolicy
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.errors import Mismatch
from rljob_workers.transfer_queue.types import Batch, GroupRows, QueueShape, Task, TaskKind
from tests.integration.transfer_queue.job import Job
from tests.weights import weight

MakeJob = Callable[..., Job]
SAMPLES = 4
GROUPS = 24


def shape(policy: ClaimPolicy, samples: int = SAMPLES) -> QueueShape:
    return QueueShape(
        batch_size=GROUPS,
        samples_per_prompt=samples,
        max_staleness=0,
        num_rollouts=2,
        max_prompt_kills=2,
        max_attempts=2,
        generated_fields=("tokens",),
        tasks=(Task("train", TaskKind.TRAINING, ("tokens",), (), policy),),
    )


def fill(job: Job, lengths: list[int]) -> None:
    tickets = job.tickets(GROUPS)
    rows = [torch.full((length,), place, dtype=torch.int32) for place, length in enumerate(lengths)]
    groups = [
        GroupRows(
            ticket,
            {"tokens": Jagged.from_rows(rows[ticket.group * SAMPLES : (ticket.group + 1) * SAMPLES])},
            [weight(0)] * SAMPLES,
            [weight(0)] * SAMPLES,
        )
        for ticket in tickets
    ]
    assert all(job.rollout.put_groups(groups))


def deal(job: Job, ranks: int, num_rows: int = GROUPS * SAMPLES, index: int = 0) -> list[Batch]:
    shares = []
    for rank in range(ranks):
        client = job.client(Role.ACTOR, rank)
        twice = [client.claim_training("train", RolloutId(0), index, num_rows, rank, ranks, timeout=0) for _ in "ab"]
        first, again = twice
        assert isinstance(first, Batch)
        assert isinstance(again, Batch)
        assert first.rows.tolist() == again.rows.tolist()
        shares.append(first)
    return shares


def sums(shares: list[Batch]) -> list[int]:
    return [int(share.columns["tokens"].offsets[-1]) for share in shares]


def snake(lengths: list[int], ranks: int) -> list[int]:
    """What dealing long and short rows in turn, there and back, would give."""
    totals = [0] * ranks
    for place, length in enumerate(sorted(lengths, reverse=True)):
        lap, at = divmod(place, ranks)
        totals[at if lap % 2 == 0 else ranks - 1 - at] += length
    return totals


def spread(totals: list[int]) -> int:
    return max(totals) - min(totals)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize(
    "draw",
    [
        pytest.param(lambda random: random.randint(10, 400), id="even"),
        pytest.param(lambda random: int(random.expovariate(1 / 64)) + 1, id="long tail"),
        pytest.param(lambda random: 1 if random.random() < 0.9 else 1000, id="few long ones"),
    ],
)
def test_token_sums_are_nearer_than_by_taking_turns(
    ranks: int, draw: Callable[[Random], int], make_job: MakeJob
) -> None:
    lengths = [draw(Random(f"{ranks} {place}")) for place in range(GROUPS * SAMPLES)]
    job = make_job(shape(ClaimPolicy.BALANCED))
    fill(job, lengths)
    shares = deal(job, ranks)
    assert {len(share.rows) for share in shares} == {GROUPS * SAMPLES // ranks}
    assert sorted(itertools.chain(*(share.rows.tolist() for share in shares))) == list(range(GROUPS * SAMPLES))
    assert sums(shares) == [sum(lengths[row] for row in share.rows) for share in shares]
    assert spread(sums(shares)) <= min(spread(snake(lengths, ranks)), max(lengths))


def test_what_can_be_dealt_evenly_is(make_job: MakeJob) -> None:
    lengths = [3, 2, 1, 6, 5, 4, 9, 8, 7, 12, 11, 10] * 8
    job = make_job(shape(ClaimPolicy.BALANCED))
    fill(job, lengths)
    assert spread(sums(deal(job, 4))) == 0


def test_groups_stay_whole_with_the_policy_group(make_job: MakeJob) -> None:
    random = Random(7)
    lengths = [random.randint(1, 300) for _ in range(GROUPS * SAMPLES)]
    job = make_job(shape(ClaimPolicy.GROUP))
    fill(job, lengths)
    shares = deal(job, 3)
    for share in shares:
        assert len(share.rows) == GROUPS * SAMPLES // 3
        assert set(Counter(share.groups.tolist()).values()) == {SAMPLES}
    totals = [sum(lengths[group * SAMPLES : (group + 1) * SAMPLES]) for group in range(GROUPS)]
    assert spread(sums(shares)) <= min(spread(snake(totals, 3)), max(totals))
    with pytest.raises(ValueError, match="6 rows are no equal number of whole groups of 4 for each of 3 ranks"):
        job.actor.claim_training("train", RolloutId(0), 1, 6, 0, 3, timeout=0)


def test_rows_are_cut_as_they_came_with_the_policy_fifo(make_job: MakeJob) -> None:
    job = make_job(shape(ClaimPolicy.FIFO))
    fill(job, list(range(1, GROUPS * SAMPLES + 1)))
    assert [share.rows.tolist() for share in deal(job, 2, 8)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("policy", list(ClaimPolicy))
def test_a_batch_may_be_as_large_as_a_rollout(policy: ClaimPolicy, ranks: int, make_job: MakeJob) -> None:
    samples = 384  # more rows in all than Lua gives back from one call
    job = make_job(shape(policy, samples))
    for ticket in job.tickets(GROUPS):
        one = Jagged.scalars(torch.ones(samples, dtype=torch.int32))
        assert job.rollout.put_groups(
            [GroupRows(ticket, {"tokens": one}, [weight(0)] * samples, [weight(0)] * samples)]
        )
    shares = deal(job, ranks, GROUPS * samples)
    assert sorted(itertools.chain(*(share.rows.tolist() for share in shares))) == list(range(GROUPS * samples))
    assert len({len(share.rows) for share in shares}) == 1


def test_a_batch_that_cannot_be_dealt_is_refused_before_anything_is_taken(make_job: MakeJob) -> None:
    job = make_job(shape(ClaimPolicy.GROUP))
    fill(job, [3] * (GROUPS * SAMPLES))
    with pytest.raises(Mismatch, match="6 rows cannot be dealt evenly to 1 ranks with policy Group"):
        job.actor.calls.change("claim_training", "train", 0, 0, 6, 0, 1, waiting="a test")
    assert len(deal(job, 1)[0].rows) == GROUPS * SAMPLES


def test_a_forward_task_is_not_balanced() -> None:
    with pytest.raises(ValueError, match="task scores: policy Balanced is for training tasks"):
        Task("scores", TaskKind.FORWARD, ("tokens",), ("scores",), ClaimPolicy.BALANCED)
