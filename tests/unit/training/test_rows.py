"""What rank 0 learns of every rank's rows, and a rollout in numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.names import Epoch, Role, RolloutId
from rljob_api.spec.algorithm import Truncated
from rljob_api.wire.identity import Incarnation, RankKey
from rljob_workers.algorithms.advantages.group import group_normalised
from rljob_workers.algorithms.metric_totals import Total
from rljob_workers.algorithms.objective import Reduction
from rljob_workers.estimators import JobEstimator
from rljob_workers.scoring.advantages import advantages
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.tensors.packed import DRAWS, LAST_REFUSED, RowExtra, pack_rows
from rljob_workers.trainers.base import OptimizerStepResult
from rljob_workers.trainers.data_parallel import SingleRank
from rljob_workers.trainers.mesh import data_parallel
from rljob_workers.training.learnt_tokens import LearntTokens, train_rows
from rljob_workers.training.step_metrics import FACTS, RolloutTally, row_metrics, slice_facts
from rljob_workers.transfer_queue.types import Batch
from tests.unit.training.batches import make_batch

KEEP = LearntTokens(Truncated.KEEP, None)
INCARNATION = Incarnation(key=RankKey(role=Role.ACTOR, replica=0), epoch=Epoch(1), generation=0, id="0" * 12)


def make_result(loss: float, **metrics: float) -> OptimizerStepResult:
    totals = {name: Total(Reduction.TOKEN_MEAN, (2 * value, 2.0)) for name, value in metrics.items()}
    return OptimizerStepResult(loss=loss, grad_norm=10 * loss, learning_rate=loss, totals=totals)


def facts_of(batch: Batch, left_out: torch.Tensor | None = None, max_age: int | None = None) -> torch.Tensor:
    return slice_facts(batch, LearntTokens(Truncated.KEEP, max_age).rows(batch), left_out, max_age)


def test_facts_are_exact_for_the_largest_numbers_of_the_queue() -> None:
    rows, groups, oldest = [2**32 - 1, 0], [2**32 - 2, 1], [2**31 - 1, 0]
    batch = make_batch(groups, [0.1, -3.5], [4096, 0], rows=rows, oldest=oldest)
    facts = facts_of(batch)
    assert facts.dtype == torch.float64
    by_name = dict(zip(FACTS, facts.unbind(1), strict=True))
    assert by_name["row"].tolist() == rows
    assert by_name["group"].tolist() == groups
    assert by_name["oldest_version"].tolist() == oldest
    assert by_name["reward"].tolist() == [float(np.float32(0.1)), -3.5]
    assert by_name["response_length"].tolist() == [4096, 0]


def test_facts_report_what_a_row_is_worth() -> None:
    spans = [[(3, 0, 4)], [(1, 0, 2), (2, 2, 5), (3, 5, 6)]]
    batch = make_batch([0, 0], [1.0, 0.0], [4, 6], valid=[1, 0], finish_reasons=["stop", "length"], spans=spans)
    by_name = dict(zip(FACTS, facts_of(batch).unbind(1), strict=True))
    assert by_name["valid"].tolist() == [1, 0]
    assert by_name["truncated"].tolist() == [0, 1]
    assert by_name["token_staleness"].tolist() == [0, 2 * 2 + 3 * 1], "of a row of train_3"


@pytest.mark.parametrize(
    ("truncated", "masks"),
    [
        pytest.param(Truncated.KEEP, [[1, 1], [0], [1, 1, 1], [0, 0]], id="a truncated sample is a sample"),
        pytest.param(Truncated.MASK, [[1, 1], [0], [0, 0, 0], [0, 0]], id="or nothing is learnt from it"),
    ],
)
def test_the_loss_leaves_out_what_nothing_may_be_learnt_from(truncated: Truncated, masks: list[list[int]]) -> None:
    reasons = ["stop", "stop", "length", "length"]
    batch = make_batch([0] * 4, [0.0] * 4, [2, 1, 3, 2], valid=[1, 0, 1, 0], finish_reasons=reasons)
    assert [row.tolist() for row in LearntTokens(truncated, None).masks(batch).rows()] == masks


@given(
    rewards=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=12, max_size=12),
    valid=st.lists(st.integers(0, 1), min_size=12, max_size=12),
    order=st.permutations(range(12)),
)
def test_groups_without_variance_are_masked_and_the_others_are_as_without_them(
    rewards: list[float], valid: list[int], order: list[int]
) -> None:
    """Masked rows are as if they were not there, in loss, gradient and metrics: `trainers/test_masked_rows.py`."""
    groups = [row // 3 for row in order]
    batch = make_batch(groups, [rewards[row] for row in order], [1 + row % 3 for row in order], valid=valid)
    of_rows = advantages(batch, 3, JobEstimator(group_normalised, None, finds_variance=True))
    differing = {group for group in groups if len({r for g, r, v in seen(batch) if g == group and v}) > 1}
    masks = KEEP.masks(replace(batch, columns={**batch.columns, **of_rows}))
    untouched = KEEP.masks(batch)
    for row, group in enumerate(groups):
        expected = untouched.row(row) if group in differing else torch.zeros_like(untouched.row(row))
        assert torch.equal(masks.row(row), expected)


def test_every_token_gets_the_advantage_of_its_row() -> None:
    """As if the role had given it to each: the trainer gets the same columns."""
    batch = make_batch([0, 0, 1], [0.0] * 3, [2, 0, 3])
    of_rows = Jagged.scalars(torch.tensor([0.5, -1.0, 2.0]))
    of_tokens = Jagged.from_rows([torch.full((2,), 0.5), torch.empty(0), torch.full((3,), 2.0)])
    found, expected = (
        train_rows(replace(batch, columns={**batch.columns, name: column}), KEEP)
        for name, column in ((Column.ROW_ADVANTAGES, of_rows), (Column.ADVANTAGES, of_tokens))
    )
    assert found.columns.keys() == expected.columns.keys()
    for name in (Column.ADVANTAGES, Column.LOSS_MASKS):
        assert torch.equal(found.columns[name].values, expected.columns[name].values)
        assert torch.equal(found.columns[name].offsets, expected.columns[name].offsets)


def seen(batch: Batch) -> list[tuple[int, float, int]]:
    """Group, reward and valid of each row."""
    rewards, valid = (batch.columns[name].values.tolist() for name in (Column.REWARDS, Column.VALID))
    return list(zip(batch.groups.tolist(), rewards, valid, strict=True))


def test_a_single_rank_gathers_its_own_rows() -> None:
    facts = facts_of(make_batch([0, 0], [0.0, 1.0], [1, 2]))
    (gathered,) = data_parallel(SingleRank()).gather(facts, "facts")
    torch.testing.assert_close(gathered, facts, rtol=0, atol=0, equal_nan=True)


def test_a_rollout_is_summed_up_over_all_its_slices_and_steps() -> None:
    tally = RolloutTally()
    tally.facts.append(facts_of(make_batch([0, 0], [0.0, 1.0], [1, 2], oldest=[5, 4])))
    tally.facts.append(facts_of(make_batch([1, 1, 1], [1.0, 1.0, 0.0], [3, 4, 5], oldest=[3, 5, 5])))
    tally.add_step(make_result(0.25, kl=0.5, ratio=1.0))
    tally.add_step(make_result(0.75, kl=0.1))
    summary = tally.report(INCARNATION, RolloutId(5), 1.5, {"stage checkpoint": 0.5})
    assert (summary.incarnation, summary.step, summary.version, summary.seconds) == (INCARNATION, 5, 6, 1.5)
    assert (summary.samples, summary.tokens, summary.staleness) == (5, 15, 5 - 3)
    assert summary.reward == pytest.approx(0.6)
    assert summary.loss == pytest.approx(0.5)
    shown = {
        "kl": pytest.approx(0.3),
        "ratio": 1.0,
        "optimizer/grad_norm": 5.0,
        "optimizer/grad_norm_max": 7.5,
        "optimizer/learning_rate": 0.75,
        "response_length/mean": 3.0,
        "response_length/max": 5.0,
        "prompt_length/mean": 2.0,
        "samples/invalid_share": 0.0,
        "response_length/truncated_share": 0.0,
        "staleness/mean": pytest.approx((-2 * 1 - 1 * 2 + 0 * 3 - 2 * 4 - 2 * 5) / 15),
        "staleness/max": 2.0,
        "throughput/samples_per_second": 5 / 1.5,
        "throughput/tokens_per_second": pytest.approx((15 + 5 * 2) / 1.5),
        "seconds/stage_checkpoint": 0.5,
        "seconds/waiting": 1.0,
    }
    assert {name: summary.metrics[name] for name in shown} == shown, "metrics of the training are those of all steps"


def test_groups_are_right_wrong_or_mixed() -> None:
    groups = [0, 0, 1, 1, 2, 2, 3, 3, 4]
    rewards = [1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.5, 0.5, 1.0]
    batch = make_batch(groups, rewards, [1] * 9, valid=[1] * 8 + [0])
    found = row_metrics(dict(zip(FACTS, facts_of(batch).unbind(1), strict=True)), RolloutId(3))
    shares = {"all_right": 0.25, "all_wrong": 0.25, "mixed": 0.5, "no_variance": 0.75}
    assert {name: found[f"groups/{name}"] for name in shares} == shares, "the fifth group has no valid sample"
    assert found["reward/mean"] == 0.5


@pytest.mark.parametrize(
    ("valid", "sums", "expected"),
    [
        # 3 of 2 + 1 + 1 drawn tokens: a tool wrote two of the third sample.
        pytest.param([1, 1, 1], [1.0, 0.5, 1.5], 0.75, id="over the tokens that the model drew"),
        pytest.param([1, 0, 1], [1.0, 0.0, -0.25], 0.25, id="of samples with a score: 0.75 of 2 + 1"),
        pytest.param([0, 0, 0], [0.0, 0.0, 0.0], None, id="of nothing"),
        pytest.param([1, 1, 1], None, None, id="of a job whose rewards stay"),
    ],
)
def test_the_kl_that_was_taken_off_is_a_mean_over_drawn_tokens(
    valid: list[int], sums: list[float] | None, expected: float | None
) -> None:
    spans = [[(3, 0, 2)], [(2, 0, 1)], [(3, 0, 1)]]
    batch = make_batch([0, 0, 1], [0.0] * 3, [2, 1, 3], valid=valid, spans=spans)
    if sums is not None:
        batch = replace(batch, columns={**batch.columns, Column.REWARD_KL: Jagged.scalars(torch.tensor(sums))})
    found = row_metrics(dict(zip(FACTS, facts_of(batch).unbind(1), strict=True)), RolloutId(3))
    assert found.get("kl/in_reward") == expected


def test_a_rollout_is_worth_what_its_valid_samples_are() -> None:
    reasons = ["length", "length", "stop", "stop"]
    tally = RolloutTally()
    tally.facts.append(
        facts_of(make_batch([0] * 4, [1.0, 0.0, 0.5, 0.0], [1] * 4, valid=[1, 0, 1, 0], finish_reasons=reasons))
    )
    summary = tally.report(INCARNATION, RolloutId(5), 1.5, {"stage checkpoint": 0.5})
    assert (summary.samples, summary.reward) == (4, 0.75)
    assert (summary.metrics["samples/invalid_share"], summary.metrics["response_length/truncated_share"]) == (0.5, 0.5)


def test_a_step_reports_the_share_that_a_filter_leaves_out() -> None:
    batch = make_batch([0, 0, 1, 1], [1.0, 0.0] * 2, [1] * 4)
    facts = facts_of(batch, torch.tensor([True, False, False, False]))
    assert row_metrics(dict(zip(FACTS, facts.unbind(1), strict=True)), RolloutId(3))["samples/filtered_share"] == 0.25
    without = row_metrics(dict(zip(FACTS, facts_of(batch).unbind(1), strict=True)), RolloutId(3))
    assert "samples/filtered_share" not in without


@pytest.mark.parametrize(
    ("truncated", "left_out", "share"),
    [
        pytest.param(Truncated.KEEP, None, 0.75, id="all that have a score and a token"),
        pytest.param(Truncated.MASK, None, 0.5, id="those that were cut off are masked"),
        pytest.param(Truncated.MASK, [True, False, False, False], 0.25, id="and a filter leaves one more out"),
        pytest.param(Truncated.MASK, [True, True, True, True], 0.0, id="or all"),
    ],
)
def test_a_step_reports_the_share_that_is_learnt_from(
    truncated: Truncated, left_out: list[bool] | None, share: float
) -> None:
    reasons = ["stop", "stop", "length", "stop"]
    batch = make_batch([0] * 4, [1.0, 0.0, 0.5, 0.0], [1] * 4, valid=[1, 1, 1, 0], finish_reasons=reasons)
    learnt = LearntTokens(truncated, None).rows(batch)
    facts = slice_facts(batch, learnt, None if left_out is None else torch.tensor(left_out))
    found = row_metrics(dict(zip(FACTS, facts.unbind(1), strict=True)), RolloutId(3))
    assert found["samples/learnt_share"] == share


def test_a_step_reports_how_often_its_groups_were_drawn() -> None:
    batch = make_batch([0, 0, 1, 1, 2, 2], [1.0, 0.0] * 3, [1] * 6)
    of_groups = [{DRAWS: 3, LAST_REFUSED: True}, {DRAWS: 1, LAST_REFUSED: False}, {}]  # the last before the filter
    extra = pack_rows([RowExtra(facts=facts) for facts in of_groups for _ in range(2)])
    facts = facts_of(replace(batch, columns={**batch.columns, Column.EXTRA: extra}))
    found = row_metrics(dict(zip(FACTS, facts.unbind(1), strict=True)), RolloutId(3))
    assert (found["groups/draws"], found["groups/last_draw_refused"]) == (2.0, 0.5)
    without = row_metrics(dict(zip(FACTS, facts_of(batch).unbind(1), strict=True)), RolloutId(3))
    assert "groups/draws" not in without


def test_tokens_that_are_too_old_are_context_alone() -> None:
    """Of rows of train_3: the first has tokens of versions 0, 2 and 3, the second of 0; the third has a tool's."""
    spans = [[(0, 0, 2), (2, 2, 3), (3, 3, 5)], [(0, 0, 3)], [(1, 0, 1), (3, 2, 4)]]
    batch = make_batch([0, 0, 1], [1.0, 0.0, 1.0], [5, 3, 4], oldest=[0, 0, 1], spans=spans)
    masks = Jagged.from_rows([torch.tensor(row, dtype=torch.uint8) for row in ([1] * 5, [1] * 3, [1, 0, 1, 1])])
    batch = replace(batch, columns={**batch.columns, Column.LOSS_MASKS: masks})

    def learnt(max_age: int | None) -> list[list[int]]:
        return [row.tolist() for row in LearntTokens(Truncated.KEEP, max_age).masks(batch).rows()]

    assert learnt(None) == learnt(3) == [[1] * 5, [1] * 3, [1, 0, 1, 1]]
    assert learnt(2) == [[0, 0, 1, 1, 1], [0] * 3, [1, 0, 1, 1]]
    assert learnt(0) == [[0, 0, 0, 1, 1], [0] * 3, [0, 0, 1, 1]]
    by_name = dict(zip(FACTS, facts_of(batch, None, 2).unbind(1), strict=True))
    assert by_name["oldest_version"].tolist() == [2, 0, 1], "the second has no token that is learnt from"
    assert by_name["too_old_tokens"].tolist() == [2, 3, 0]
    found = row_metrics(by_name, RolloutId(3))
    assert found["staleness/too_old_share"] == 5 / 11
    assert found["staleness/max"] == 2.0
    assert found["staleness/mean"] == (1 * 1 + 2 * 0 + 1 * 2 + 2 * 0) / (3 + 3)
    of_all = row_metrics(dict(zip(FACTS, facts_of(batch).unbind(1), strict=True)), RolloutId(3))
    assert of_all["staleness/max"] == 3.0
    assert "staleness/too_old_share" not in of_all


def test_a_rollout_of_which_no_token_is_learnt_from_is_a_rollout() -> None:
    batch = make_batch([0, 0], [1.0, 0.0], [2, 2], oldest=[0, 0], spans=[[(0, 0, 2)], [(0, 0, 2)]])
    found = row_metrics(dict(zip(FACTS, facts_of(batch, None, 0).unbind(1), strict=True)), RolloutId(3))
    assert (found["staleness/max"], found["staleness/mean"], found["staleness/too_old_share"]) == (0.0, 0.0, 1.0)


@given(data=st.data(), max_age=st.integers(0, 4), rollout=st.integers(0, 6))
def test_no_token_beyond_the_bound_is_learnt_from_and_every_other_is(
    data: st.DataObject, max_age: int, rollout: int
) -> None:
    spans, lengths = [], []
    for _ in range(data.draw(st.integers(1, 4))):
        versions = sorted(data.draw(st.sets(st.integers(0, rollout), min_size=1, max_size=4)))
        sizes = data.draw(st.lists(st.integers(1, 3), min_size=len(versions), max_size=len(versions)))
        starts = [sum(sizes[:place]) for place in range(len(sizes))]
        spans.append([(v, at, at + size) for v, at, size in zip(versions, starts, sizes, strict=True)])
        lengths.append(sum(sizes))
    oldest = [row[0][0] for row in spans]
    batch = replace(
        make_batch([0] * len(spans), [0.0] * len(spans), lengths, oldest=oldest, spans=spans),
        rollout_id=RolloutId(rollout),
    )
    masks = LearntTokens(Truncated.KEEP, max_age).masks(batch).rows()
    facts = dict(zip(FACTS, facts_of(batch, None, max_age).unbind(1), strict=True))
    for row, (mask, of_row) in enumerate(zip(masks, spans, strict=True)):
        learnt = [version for version, start, end in of_row for _ in range(start, end) if rollout - version <= max_age]
        assert mask.sum() == len(learnt)
        assert facts["oldest_version"][row] == (min(learnt) if learnt else of_row[-1][0])
        assert facts["too_old_tokens"][row] == lengths[row] - len(learnt)
