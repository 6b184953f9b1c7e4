"""Generated groups become texts, their scores, and the rows of whole groups."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rljob_api.names import RolloutId
from rljob_api.spec.algorithm import AlgorithmSpec, NoVariance
from rljob_api.spec.rollout import GroupOrder
from rljob_workers import pipeline
from rljob_workers.data.prompts import Prompt
from rljob_workers.engines.base import FinishReason, Sample, VersionSpan
from rljob_workers.estimators import estimator_of
from rljob_workers.rewards.base import Answer, Reward, SettledScore
from rljob_workers.rewards.length import LengthShaped
from rljob_workers.rewards.scoring import FailedShare, FailurePolicy, Scoring, ScoringCounts
from rljob_workers.rollout.group_rows import LABEL_CHARACTERS, GeneratedGroup
from rljob_workers.rollout.scoring_stage import ScoreStage, Unscored
from rljob_workers.rollout.trajectory import LostSample, Trajectory
from rljob_workers.scoring.advantages import advantages
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.packed import drawn_for, unpack_rows
from rljob_workers.transfer_queue.types import Batch, GroupRows, Ticket
from tests.weights import weight

TICKET = Ticket(id=11, rollout_id=RolloutId(3), group=2, attempt=0, prompt_index=4, alone=False)


def make_group(ticket: Ticket, token: int) -> GeneratedGroup:
    """Two samples of one and two tokens; the weights changed after the first token of the second."""
    old, new = VersionSpan(weight(2), 0, 1), VersionSpan(weight(3), 1, 2)
    samples = (
        Sample([10 * token], [-0.5], FinishReason.STOP, (old,)),
        Sample([10 * token] * 2, [-1.0] * 2, FinishReason.STOP, (old, new)),
    )
    prompt = Prompt(token, f"p{token}", (token,) * token, label=f"l{token}")
    return GeneratedGroup(ticket, prompt, tuple(Trajectory.of_sample(prompt.token_ids, sample) for sample in samples))


class RememberingReward:
    """An answer is worth its index."""

    def __init__(self) -> None:
        self.groups: list[list[Answer]] = []

    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> list[list[SettledScore]]:
        self.groups += [list(group) for group in groups]
        return [[SettledScore(float(answer.index)) for answer in group] for group in groups]


def decode(sequences: Sequence[Sequence[int]]) -> list[str]:
    return [" ".join(map(str, sequence)) for sequence in sequences]


def test_rows_hold_prompt_and_response_and_who_made_them() -> None:
    reward = RememberingReward()
    first, second = ScoreStage(reward, decode).run(
        [make_group(TICKET, 4), make_group(replace(TICKET, id=12, group=3), 2)]
    )
    assert isinstance(first, GroupRows)
    assert isinstance(second, GroupRows)
    assert (first.ticket, second.ticket.id) == (TICKET, 12)
    assert set(first.columns) == set(pipeline.GENERATED)
    assert [row.tolist() for row in first.columns[Column.TOKENS].rows()] == [[4] * 4 + [40], [4] * 4 + [40, 40]]
    assert [row.tolist() for row in second.columns[Column.TOKENS].rows()] == [[2, 2, 20], [2, 2, 20, 20]]
    assert first.columns[Column.RESPONSE_LENGTHS].values.tolist() == [1, 2]
    assert [row.tolist() for row in first.columns[Column.LOSS_MASKS].rows()] == [[1], [1, 1]]
    assert [row.tolist() for row in first.columns[Column.ROLLOUT_LOG_PROBS].rows()] == [[-0.5], [-1.0, -1.0]]
    assert first.columns[Column.REWARDS].values.tolist() == [0.0, 1.0]
    assert [first.columns[name].values.dtype for name in pipeline.GENERATED] == [
        getattr(torch, name.dtype) for name in pipeline.GENERATED
    ]
    assert [first.columns[name].values.tolist() for name in (Column.VALID, Column.FINISH_REASONS)] == [
        [1, 1],
        [0, 0],
    ]
    assert [row.tolist() for row in first.columns[Column.VERSION_SPANS].rows()] == [
        [[1, 2, 0, 1]],
        [[1, 2, 0, 1], [1, 3, 1, 2]],
    ]
    assert (list(first.oldest), list(first.newest)) == ([weight(2)] * 2, [weight(2), weight(3)])
    assert reward.groups[1] == [
        Answer("p2", " ".join(["20"] * count), "l2", 3, count - 1, token_ids=(20,) * count, loss_mask=(1,) * count)
        for count in (1, 2)
    ]


@pytest.mark.parametrize("no_variance", [NoVariance.KEEP, NoVariance.LEAVE_OUT])
@pytest.mark.parametrize("advantage", ["Grpo", "DrGrpo", "Rloo"])
def test_a_group_is_put_with_the_advantages_that_the_role_would_make(advantage: str, no_variance: NoVariance) -> None:
    estimator = estimator_of(AlgorithmSpec(advantage=advantage, no_variance=no_variance))
    two = make_group(TICKET, 4)
    four = replace(two, samples=(*two.samples, LostSample("gone"), *two.samples[:1]))
    (rows,) = ScoreStage(RememberingReward(), decode, estimator).run([four])
    assert isinstance(rows, GroupRows)
    numbers, zeros = np.arange(4, dtype=np.uint32), np.zeros(4, np.int64)
    batch = Batch(RolloutId(0), numbers, zeros.astype(np.uint32), zeros, rows.columns)
    expected = advantages(batch, 4, estimator)
    assert set(rows.columns) - set(pipeline.GENERATED) == set(expected)
    for column, values in expected.items():
        assert torch.equal(rows.columns[column].values, values.values)
        assert torch.equal(rows.columns[column].offsets, values.offsets)
    # Rewards 0, 1 and 3, so that the mean is 4/3; the third sample was lost.
    found = rows.columns[Column.ROW_ADVANTAGES].values
    assert found[2] == 0.0
    assert found.sign().tolist() == [-1.0, -1.0, 0.0, 1.0]


def test_rows_name_the_rollout_that_their_group_was_begun_for() -> None:
    stage = ScoreStage(RememberingReward(), decode, order=GroupOrder.SWAP)
    first, second = stage.run([make_group(TICKET, 4), make_group(replace(TICKET, put_off=1), 4)])
    assert isinstance(first, GroupRows)
    assert isinstance(second, GroupRows)
    for rows, begun in ((first, 3), (second, 2)):
        assert [drawn_for(one.facts) for one in unpack_rows(rows.columns[Column.EXTRA])] == [begun, begun]


def beside_greedy(samples: int = 2) -> GeneratedGroup:
    """A group of so many samples, and a greedy answer of the tokens 7 and 8."""
    two = make_group(TICKET, 4)
    greedy = Sample([7, 8], [-0.1] * 2, FinishReason.STOP, (VersionSpan(weight(3), 0, 2),))
    return replace(two, samples=two.samples[:samples], greedy=Trajectory.of_sample(two.prompt.token_ids, greedy))


@pytest.mark.parametrize("no_variance", [NoVariance.KEEP, NoVariance.LEAVE_OUT])
def test_a_greedy_answer_is_scored_alone_and_is_no_row(no_variance: NoVariance) -> None:
    estimator = estimator_of(AlgorithmSpec(advantage="ReMax", no_variance=no_variance))
    reward = RememberingReward()
    (rows,) = ScoreStage(reward, decode, estimator).run([beside_greedy()])
    assert isinstance(rows, GroupRows)
    asked = [[(answer.index, answer.response) for answer in group] for group in reward.groups]
    assert asked == [[(0, "40"), (1, "40 40")], [(2, "7 8")]]
    assert [row.tolist() for row in rows.columns[Column.TOKENS].rows()] == [[4] * 4 + [40], [4] * 4 + [40, 40]]
    assert len(rows.oldest) == len(rows.newest) == 2
    baselines = rows.columns[Column.BASELINES].values
    assert (baselines.tolist(), baselines.dtype) == ([2.0, 2.0], torch.float32)
    assert rows.columns[Column.ROW_ADVANTAGES].values.tolist() == [-2.0, -1.0]
    numbers, zeros = np.arange(2, dtype=np.uint32), np.zeros(2, np.int64)
    of_role = advantages(Batch(RolloutId(0), numbers, zeros.astype(np.uint32), zeros, rows.columns), 2, estimator)
    assert set(rows.columns) - set(pipeline.GENERATED) == {*of_role, Column.BASELINES}
    assert all(torch.equal(rows.columns[column].values, values.values) for column, values in of_role.items())
    metrics = [one.metrics for one in unpack_rows(rows.columns[Column.EXTRA])]
    assert metrics == [{"greedy_reward": 2.0}, {}], "once for each group"


@pytest.mark.parametrize("length", [1, 9])
def test_a_greedy_answer_has_no_part_in_what_lengths_add_to_the_samples(length: int) -> None:
    """Neither shorter nor longer than they are does it move the rank of a sample, nor has it one."""
    group = beside_greedy()
    tokens, span = list(range(length)), VersionSpan(weight(3), 0, length)
    greedy = Sample(tokens, [-0.1] * length, FinishReason.STOP, (span,))
    group = replace(group, greedy=Trajectory.of_sample(group.prompt.token_ids, greedy))
    shaped = LengthShaped(Worth(1.0), None, 1.0)
    scoring = Scoring(shaped, FailurePolicy(0, 0.0, None), FailedShare(10, 1.0), ScoringCounts({}))
    (rows,) = ScoreStage(scoring, decode).run([group])
    assert isinstance(rows, GroupRows)
    assert rows.columns[Column.REWARDS].values.tolist() == [1.5, 0.5]
    assert rows.columns[Column.BASELINES].values.tolist() == [1.0, 1.0]


class Worth(Reward):
    """Every answer is worth the same."""

    def __init__(self, reward: float) -> None:
        self._reward = reward

    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> list[list[float]]:
        return [[self._reward for _ in group] for group in groups]


class PartlyScored:
    """Scores of the first so many samples of each group; the others fail."""

    def __init__(self, num_valid: int) -> None:
        self._num_valid = num_valid

    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> list[list[SettledScore]]:
        scored, failed = SettledScore(1.0), SettledScore(0.0, "the grader is away")
        return [[scored if answer.index < self._num_valid else failed for answer in group] for group in groups]


def test_a_sample_without_a_score_is_a_row_that_is_not_valid() -> None:
    three = make_group(TICKET, 4)
    three = replace(three, samples=(*three.samples, three.samples[0]))
    (rows,) = ScoreStage(PartlyScored(2), decode).run([three])
    assert isinstance(rows, GroupRows)
    assert rows.columns[Column.VALID].values.tolist() == [1, 1, 0]
    assert rows.columns[Column.REWARDS].values.tolist() == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("num_valid", [0, 1])
def test_a_group_without_two_scores_is_to_be_drawn_again(num_valid: int) -> None:
    (outcome,) = ScoreStage(PartlyScored(num_valid), decode).run([make_group(TICKET, 4)])
    assert outcome == Unscored(TICKET, f"{num_valid} of its 2 samples could be scored. the grader is away")


class ScoredBut:
    """Every answer is worth 1, but for these."""

    def __init__(self, failed: set[int]) -> None:
        self._failed = failed

    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> list[list[SettledScore]]:
        scored, failed = SettledScore(1.0), SettledScore(0.0, "the grader is away")
        return [[failed if answer.index in self._failed else scored for answer in group] for group in groups]


@pytest.mark.parametrize(
    ("failed", "samples", "reason"),
    [
        pytest.param(
            {2},
            2,
            "its greedy answer, which its samples are measured against, could not be scored. the grader is away",
            id="the greedy answer",
        ),
        pytest.param({0, 1}, 2, "0 of its 2 samples could be scored. the grader is away", id="all samples"),
        pytest.param({0}, 1, "0 of its 1 samples could be scored. the grader is away", id="the only sample"),
    ],
)
def test_a_group_beside_a_greedy_answer_is_drawn_again_without_either(
    failed: set[int], samples: int, reason: str
) -> None:
    (outcome,) = ScoreStage(ScoredBut(failed), decode).run([beside_greedy(samples)])
    assert outcome == Unscored(TICKET, reason)


@pytest.mark.parametrize(("failed", "samples"), [({1}, 2), (set(), 1)])
def test_one_score_is_enough_beside_a_greedy_answer(failed: set[int], samples: int) -> None:
    (rows,) = ScoreStage(ScoredBut(failed), decode).run([beside_greedy(samples)])
    assert isinstance(rows, GroupRows)
    assert rows.columns[Column.BASELINES].values.tolist() == [1.0] * samples
    assert rows.columns[Column.VALID].values.tolist() == [1, 0][:samples]


def two_turns(**changes: object) -> Trajectory:
    """Two tokens of version 2, two of a tool, and one of version 3."""
    spans = (VersionSpan(weight(2), 0, 2), VersionSpan(weight(3), 4, 5))
    made = Trajectory([4, 4, 40, 41, 50, 51, 42], 2, [1, 1, 0, 0, 1], [-1.0, -2.0, -3.0], spans, FinishReason.STOP)
    return replace(made, **changes)  # type: ignore[arg-type]  # fields by name


def test_a_tools_tokens_are_masked_and_in_no_span() -> None:
    reward = RememberingReward()
    group = replace(make_group(TICKET, 4), samples=(two_turns(), two_turns()))
    (rows,) = ScoreStage(reward, decode).run([group])
    assert isinstance(rows, GroupRows)
    assert rows.columns[Column.RESPONSE_LENGTHS].values.tolist() == [5, 5]
    assert rows.columns[Column.LOSS_MASKS].row(0).tolist() == [1, 1, 0, 0, 1]
    assert rows.columns[Column.ROLLOUT_LOG_PROBS].row(0).tolist() == [-1.0, -2.0, 0.0, 0.0, -3.0]
    assert rows.columns[Column.VERSION_SPANS].row(1).tolist() == [[1, 2, 0, 2], [1, 3, 4, 5]]
    assert (rows.oldest[0], rows.newest[0]) == (weight(2), weight(3))
    (first, _) = reward.groups[0]
    assert (first.response, first.loss_mask) == ("40 41 50 51 42", (1, 1, 0, 0, 1))


def test_a_reward_of_the_function_replaces_that_of_the_job_and_figures_travel_with_the_row() -> None:
    reward = RememberingReward()
    own = two_turns(reward=0.25, metrics={"tool/calls": 2.0}, extra={"places": np.arange(3, dtype=np.int32)})
    (rows,) = ScoreStage(reward, decode).run([replace(make_group(TICKET, 4), samples=(own, two_turns()))])
    assert isinstance(rows, GroupRows)
    assert [answer.index for group in reward.groups for answer in group] == [1]
    assert rows.columns[Column.REWARDS].values.tolist() == [0.25, 1.0]
    packed = unpack_rows(rows.columns[Column.EXTRA])
    assert (packed[0].metrics, packed[0].extra["places"].tolist(), packed[1].metrics) == (
        {"tool/calls": 2.0},
        [0, 1, 2],
        {},
    )


class MeasuringReward:
    """Measures the length of each answer."""

    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> list[list[SettledScore]]:
        return [
            [SettledScore(1.0, metrics={"reward/length": float(len(answer.token_ids))}) for answer in group]
            for group in groups
        ]


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        pytest.param(None, None, id="none"),
        pytest.param("", None, id="an empty one"),
        pytest.param(7, "7", id="a number"),
        pytest.param(0, "0", id="zero"),
        pytest.param({"answers": ["é"]}, '{"answers": ["é"]}', id="an object"),
        pytest.param({"question": "1+1", (0, 1): 2}, '{"question": "1+1"}', id="a task of a procedure"),
        pytest.param("half \ud800", "half ?", id="a text that is no text"),
    ],
)
def test_a_row_has_the_text_of_its_label(label: Any, shown: str | None) -> None:
    group = make_group(TICKET, 4)
    (rows,) = ScoreStage(MeasuringReward(), decode).run([replace(group, prompt=replace(group.prompt, label=label))])
    assert isinstance(rows, GroupRows)
    assert [one.facts.get("label") for one in unpack_rows(rows.columns[Column.EXTRA])] == [shown] * 2


def test_a_long_label_goes_with_its_rows_without_its_middle() -> None:
    group = make_group(TICKET, 4)
    prompt = replace(group.prompt, label="a" * LABEL_CHARACTERS + "b" * LABEL_CHARACTERS)
    (rows,) = ScoreStage(MeasuringReward(), decode).run([replace(group, prompt=prompt)])
    assert isinstance(rows, GroupRows)
    label = str(unpack_rows(rows.columns[Column.EXTRA])[0].facts["label"])
    assert len(label) < LABEL_CHARACTERS + 100
    assert label.endswith("b" * (LABEL_CHARACTERS // 2))


def test_a_row_knows_its_data_set_its_source_and_what_its_reward_measured() -> None:
    group = make_group(TICKET, 4)
    prompt = replace(group.prompt, label="4", row={"level": 3}, dataset="problems", source="algebra")
    (rows,) = ScoreStage(MeasuringReward(), decode).run([replace(group, prompt=prompt)])
    assert isinstance(rows, GroupRows)
    packed = unpack_rows(rows.columns[Column.EXTRA])
    assert [dict(one.facts) for one in packed] == [{"dataset": "problems", "source": "algebra", "label": "4"}] * 2
    assert [dict(one.metrics) for one in packed] == [{"reward/length": 1.0}, {"reward/length": 2.0}]


def test_a_reward_is_asked_for_nothing_where_the_function_has_scored_all() -> None:
    reward = RememberingReward()
    ScoreStage(reward, decode).run([replace(make_group(TICKET, 4), samples=(two_turns(reward=1.0),) * 2)])
    assert reward.groups == []


def test_a_lost_sample_is_a_masked_row_as_old_as_its_group_that_is_not_valid() -> None:
    samples = (two_turns(), LostSample("the tool is away"), two_turns())
    (rows,) = ScoreStage(RememberingReward(), decode).run([replace(make_group(TICKET, 4), samples=samples)])
    assert isinstance(rows, GroupRows)
    assert rows.columns[Column.VALID].values.tolist() == [1, 0, 1]
    assert rows.columns[Column.LOSS_MASKS].row(1).tolist() == [0]
    assert rows.columns[Column.VERSION_SPANS].row(1).tolist() == []
    assert (rows.oldest[1], rows.newest[1]) == (weight(2), weight(2))


def test_a_group_whose_samples_are_lost_is_drawn_again() -> None:
    samples = (two_turns(), LostSample("the tool is away"))
    (outcome,) = ScoreStage(RememberingReward(), decode).run([replace(make_group(TICKET, 4), samples=samples)])
    assert outcome == Unscored(TICKET, "1 of its 2 samples could be scored. the tool is away")
