"""What rank 0 learns of every rank's rows, and a rollout in numbers."""

import numpy as np
import pytest
import torch

from rljob_workers.roles.group import gather_rows
from rljob_workers.roles.stages.train import FACTS, RolloutTally, slice_facts
from rljob_workers.trainers.base import OptimizerStepResult
from rljob_workers.trainers.data_parallel import SingleRank
from tests.unit.roles.batches import make_batch


def make_result(loss: float, **metrics: float) -> OptimizerStepResult:
    return OptimizerStepResult(loss=loss, grad_norm=10 * loss, metrics=metrics)


def test_facts_are_exact_for_the_largest_numbers_of_the_queue() -> None:
    rows, groups, oldest = [2**32 - 1, 0], [2**32 - 2, 1], [2**40, 0]
    batch = make_batch(groups, [0.1, -3.5], [4096, 0], rows=rows, oldest=oldest)
    facts = slice_facts(batch)
    assert facts.dtype == torch.float64
    by_name = dict(zip(FACTS, facts.unbind(1), strict=True))
    assert by_name["row"].tolist() == rows
    assert by_name["group"].tolist() == groups
    assert by_name["oldest_version"].tolist() == oldest
    assert by_name["reward"].tolist() == [float(np.float32(0.1)), -3.5]
    assert by_name["response_length"].tolist() == [4096, 0]


def test_a_single_rank_gathers_its_own_rows() -> None:
    facts = slice_facts(make_batch([0, 0], [0.0, 1.0], [1, 2]))
    (gathered,) = gather_rows(SingleRank(), facts)
    assert torch.equal(gathered, facts)


def test_a_rollout_is_summed_up_over_all_its_slices_and_steps() -> None:
    tally = RolloutTally()
    tally.facts.append(slice_facts(make_batch([0, 0], [0.0, 1.0], [1, 2], oldest=[5, 4])))
    tally.facts.append(slice_facts(make_batch([1, 1, 1], [1.0, 1.0, 0.0], [3, 4, 5], oldest=[3, 5, 5])))
    tally.add_step(make_result(0.25, kl=0.5, ratio=1.0))
    tally.add_step(make_result(0.75, kl=0.1))
    summary = tally.summary()
    assert (summary.samples, summary.tokens, summary.oldest_version) == (5, 15, 3)
    assert summary.reward == pytest.approx(0.6)
    assert summary.loss == pytest.approx(0.5)
    assert summary.metrics == {"kl": 0.1, "grad_norm": 7.5, "response_length": 3.0}, "metrics are the last step's"
