"""A critic learns from every sample with a score, also where the policy leaves it out."""

from dataclasses import replace

import pytest
import torch

from rljob_api.spec.algorithm import AlgorithmSpec, NoVariance, Truncated
from rljob_workers.algorithms.objective import MaskedRows, Outputs
from rljob_workers.algorithms.value import ValueObjective
from rljob_workers.estimators import estimator_of
from rljob_workers.scoring.advantages import advantages
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.base import TrainRows
from rljob_workers.training.learnt_tokens import LearntTokens, critic_rows, train_rows
from rljob_workers.transfer_queue.types import Batch

from .batches import make_batch

ROLLOUT = 3
"""The rollout of `make_batch`."""


def scored(batch: Batch, algorithm: AlgorithmSpec) -> Batch:
    """With values of 0, and the returns that the job's estimator makes of them."""
    masks = batch.columns[Column.LOSS_MASKS]
    values = Jagged(torch.zeros(masks.values.shape), masks.offsets)
    batch = replace(batch, columns={**batch.columns, Column.VALUES: values})
    return replace(batch, columns={**batch.columns, **advantages(batch, 4, estimator_of(algorithm))})


def learnt_value(rows: TrainRows, of_place: int) -> float:
    """The value at which the loss is smallest, of the critic's state before token `of_place` of an answer.

    The states of one place are one state: answers are longer or shorter, and begin alike.
    """
    lengths = rows.response_lengths
    place = torch.cat([torch.arange(int(length)) for length in lengths])
    table = torch.zeros(int(lengths.max()), dtype=torch.float64, requires_grad=True)
    masked = MaskedRows(rows.columns[Column.LOSS_MASKS].values.double(), lengths)
    objective = ValueObjective(clip=None)
    columns = {name: rows.columns[name].values.double() for name in (Column.VALUES, Column.RETURNS)}
    sums = objective.loss(Outputs(values=table[place]), columns, masked, objective.weigh(masked).weights.double())
    (slope,) = torch.autograd.grad(sums.loss, table, create_graph=True)
    (bend,) = torch.autograd.grad(slope[of_place], table)
    return float((table - slope / bend).detach()[of_place])  # a parabola: one step of Newton


def one_of_four_ends(rewards: list[float]) -> Batch:
    return make_batch([0] * 4, rewards, [1, 3, 3, 3], finish_reasons=["stop", "length", "length", "length"])


@pytest.mark.parametrize(
    ("truncated", "policy"),
    [
        pytest.param(Truncated.KEEP, 0.25, id="where all are learnt from, one of four is right"),
        pytest.param(Truncated.MASK, 1.0, id="of those that ended all are right"),
    ],
)
def test_the_value_of_a_beginning_is_that_of_all_answers_that_began_so(truncated: Truncated, policy: float) -> None:
    """One answer in four ends, and is right; the others are cut off, with a reward of 0: returns 1, 0, 0, 0."""
    algorithm = AlgorithmSpec(advantage="Gae", truncated=truncated)
    batch = scored(one_of_four_ends([1.0, 0.0, 0.0, 0.0]), algorithm)
    assert learnt_value(critic_rows(batch, LearntTokens(Truncated.MASK, None)), 0) == pytest.approx(0.25, abs=1e-15)
    of_policy = train_rows(batch, LearntTokens(truncated, None))
    assert learnt_value(of_policy, 0) == pytest.approx(policy, abs=1e-15), "what the policy learns from alone"


def test_a_reward_of_an_answer_that_was_cut_off_is_its_return() -> None:
    algorithm = AlgorithmSpec(advantage="Gae", truncated=Truncated.MASK)
    batch = scored(one_of_four_ends([1.0, -0.5, -0.5, 0.0]), algorithm)
    assert learnt_value(critic_rows(batch, LearntTokens(Truncated.MASK, None)), 0) == pytest.approx(0.0, abs=1e-15)
    assert learnt_value(critic_rows(batch, LearntTokens(Truncated.MASK, None)), 2) == pytest.approx(-1 / 3, abs=1e-7), (
        "of the three that came so far"
    )


def test_groups_without_variance_teach_the_critic_what_they_are_worth() -> None:
    algorithm = AlgorithmSpec(advantage="Gae", no_variance=NoVariance.LEAVE_OUT)
    rewards = [0.0] * 4 + [1.0, 0.0, 1.0, 0.0]
    batch = scored(make_batch([0] * 4 + [1] * 4, rewards, [1] * 8), algorithm)
    of_policy = train_rows(batch, LearntTokens(Truncated.KEEP, None)).columns[Column.LOSS_MASKS].values
    assert of_policy.tolist() == [0] * 4 + [1] * 4
    assert learnt_value(critic_rows(batch, LearntTokens(Truncated.MASK, None)), 0) == pytest.approx(0.25, abs=1e-15)


def test_tokens_beyond_the_bound_of_staleness_teach_neither_of_them() -> None:
    """A group that was carried on has an old beginning and a new end."""
    spans = [[(ROLLOUT, 0, 1)], *[[(0, 0, 2), (ROLLOUT, 2, 3)]] * 3]
    batch = make_batch([0] * 4, [1.0, 0.0, 0.0, 0.0], [1, 3, 3, 3], spans=spans)
    batch = scored(batch, AlgorithmSpec(advantage="Gae"))
    learnt = LearntTokens(Truncated.MASK, 1)
    assert critic_rows(batch, learnt).columns[Column.LOSS_MASKS].values.tolist() == [1, 0, 0, 1, 0, 0, 1, 0, 0, 1]


def test_samples_without_a_score_and_tokens_of_tools_teach_it_nothing() -> None:
    batch = make_batch([0] * 4, [1.0, 9.0, 0.0, 0.0], [2, 2, 1, 1], valid=[1, 0, 1, 1])
    masks = batch.columns[Column.LOSS_MASKS]
    masks.values[1] = 0  # written by a tool
    batch = scored(batch, AlgorithmSpec(advantage="Gae"))
    assert critic_rows(batch, LearntTokens(Truncated.MASK, None)).columns[Column.LOSS_MASKS].values.tolist() == [
        1,
        0,
        0,
        0,
        1,
        1,
    ]
    assert learnt_value(critic_rows(batch, LearntTokens(Truncated.MASK, None)), 0) == pytest.approx(1 / 3, abs=1e-7)
