"""Which groups are drawn anew: the decision, the filter that comes with the product, and filters of users."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec.dynamic_sampling import DynamicSamplingSpec
from rljob_workers.rewards.base import Answer, SettledScore
from rljob_workers.rollout.dynamic_sampling import DynamicSampling, OwnFilter, Verdict, rewards_differ, verdict
from rljob_workers.rollout.group_rows import GeneratedGroup
from rljob_workers.rollout.scoring_stage import Refused, ScoreStage
from rljob_workers.rollout.trajectory import LostSample
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.packed import LABEL, unpack_rows
from rljob_workers.transfer_queue.pass_rates import UNSCORED, GroupScore
from rljob_workers.transfer_queue.types import GroupRows
from tests.unit.rollout.test_score import TICKET, RememberingReward, ScoredBut, beside_greedy, decode, make_group

AWAY = SettledScore(0.0, "the grader is away")


@pytest.mark.parametrize(
    ("refused", "keeps", "expected"),
    [
        pytest.param(0, True, Verdict.PASSED, id="a first draw that passes"),
        pytest.param(0, False, Verdict.REFUSED, id="a first draw that does not"),
        pytest.param(1, False, Verdict.REFUSED, id="the last draw but one"),
        pytest.param(2, False, Verdict.EXHAUSTED, id="the last draw"),
        pytest.param(2, True, Verdict.PASSED, id="the last draw, which passes"),
        pytest.param(5, False, Verdict.EXHAUSTED, id="a draw beyond a limit that was lowered"),
    ],
)
def test_the_verdict_of_a_draw_of_three(refused: int, keeps: bool, expected: Verdict) -> None:
    assert verdict(refused, 3, keeps=keeps) is expected


@given(st.lists(st.booleans(), min_size=20, max_size=20), st.integers(2, 20))
def test_a_group_is_drawn_until_it_passes_and_as_often_as_may_be(passes: list[bool], limit: int) -> None:
    draws = 0
    while verdict(draws, limit, keeps=passes[draws]) is Verdict.REFUSED:
        draws += 1
    assert draws + 1 == next((place + 1 for place in range(limit) if passes[place]), limit)


def scores(*rewards: float | None) -> list[SettledScore]:
    return [AWAY if reward is None else SettledScore(reward) for reward in rewards]


@pytest.mark.parametrize(
    ("rewards", "baseline", "differ"),
    [
        pytest.param((0.0, 1.0), None, True, id="two rewards"),
        pytest.param((1.0, 1.0), None, False, id="one reward"),
        pytest.param((1.0, 1.0, None), None, False, id="a sample without a score has none"),
        pytest.param((1.0, None, 0.0), None, True, id="the others differ"),
        pytest.param((0.1, 0.1 + 1e-12), None, False, id="what float32 does not tell apart"),
        pytest.param((1.0, 1.0), 0.0, True, id="a greedy answer is one more"),
        pytest.param((1.0, 1.0), 1.0, False, id="a greedy answer of the same reward"),
        pytest.param((1.0,), 0.0, True, id="one sample beside a greedy answer"),
    ],
)
def test_groups_whose_rewards_are_equal_have_no_variance(
    rewards: Sequence[float | None], baseline: float | None, differ: bool
) -> None:
    assert rewards_differ(make_group(TICKET, 4), scores(*rewards), baseline) is differ


def stage(reward: object, limit: int = 3) -> ScoreStage:
    sampling = DynamicSampling.of(DynamicSamplingSpec(max_attempts=limit), decode)
    return ScoreStage(reward, decode, sampling=sampling)  # type: ignore[arg-type]  # rewards of the tests


def facts_of(outcome: object) -> list[dict[str, object]]:
    """Facts that rows carry, but for the text of their label."""
    assert isinstance(outcome, GroupRows)
    rows = unpack_rows(outcome.columns[Column.EXTRA])
    return [{name: value for name, value in row.facts.items() if name != LABEL} for row in rows]


def drawn(refused: int) -> GeneratedGroup:
    return make_group(replace(TICKET, attempt=refused, refused=refused), 4)


def test_a_group_that_passes_has_its_draws() -> None:
    (outcome,) = stage(RememberingReward()).run([drawn(1)])
    assert facts_of(outcome) == [{"draws": 2, "last_draw_refused": False}] * 2


def test_a_group_without_variance_is_refused_and_its_last_draw_is_trained_on() -> None:
    first, last = stage(ScoredBut(set())).run([drawn(1), drawn(2)])
    assert first == Refused(replace(TICKET, attempt=1, refused=1))
    assert facts_of(last) == [{"draws": 3, "last_draw_refused": True}] * 2


def test_without_a_filter_rows_have_nothing_of_draws() -> None:
    (outcome,) = ScoreStage(ScoredBut(set()), decode).run([drawn(0)])
    assert facts_of(outcome) == [{}] * 2


def test_a_greedy_answer_is_compared_and_is_no_answer_of_the_filter() -> None:
    outcomes = stage(RememberingReward()).run([beside_greedy(1)])  # rewards 0 and 2
    assert facts_of(outcomes[0]) == [{"draws": 1, "last_draw_refused": False}]
    assert stage(ScoredBut(set())).run([beside_greedy(1)]) == [Refused(TICKET)]


FILTERS = """
import asyncio

def short(answers, rewards):
    return all(len(answer.token_ids) < 2 for answer in answers)

def raises(answers, rewards):
    return rewards[0] / rewards[0] > 0

def number(answers, rewards):
    return sum(rewards)

def one(answers):
    return True

async def waits(answers, rewards):
    return True
"""


def loaded(folder: Path, name: str) -> DynamicSampling:
    (folder / f"group_{name}.py").write_text(FILTERS)  # a module of its own: another one of its name would be taken
    spec = DynamicSamplingSpec(filter=f"group_{name}:{name}", path=str(folder))
    found = DynamicSampling.of(spec, decode)
    assert found is not None
    return found


def test_a_users_filter_sees_the_samples_that_have_a_score() -> None:
    seen: list[tuple[list[Answer], list[float]]] = []

    def keeps(answers: Sequence[Answer], rewards: Sequence[float], /) -> bool:
        seen.append((list(answers), list(rewards)))
        return False

    group = make_group(TICKET, 4)
    group = replace(group, samples=(*group.samples, LostSample("gone"), group.samples[0]))
    sampling = DynamicSampling(OwnFilter("own:keeps", keeps, decode), 3)
    (outcome,) = ScoreStage(ScoredBut({0}), decode, sampling=sampling).run([group])
    assert outcome == Refused(TICKET)
    ((answers, rewards),) = seen
    assert [(answer.index, answer.response, answer.label) for answer in answers] == [
        (1, "40 40", "l4"),
        (3, "40", "l4"),
    ]
    assert rewards == [1.0, 1.0]


def test_a_users_filter_is_loaded_and_asked(tmp_path: Path) -> None:
    keeps = loaded(tmp_path, "short").keeps
    group = make_group(TICKET, 4)  # of one token, and of two
    assert keeps(group, scores(1.0, 1.0), None) is False
    assert keeps(group, scores(1.0, None), None) is True


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        pytest.param(
            "raises",
            r"group_raises:raises raised ZeroDivisionError on the prompt 'p4' \(group 2\)"
            r" \(.*/group_raises.py, line 8\): float division by zero\n",
            id="one that raises",
        ),
        pytest.param(
            "number",
            r"group_number:number returned 0.0 for the prompt 'p4' \(group 2\). Return True for a group to train on,"
            r" and False for one to draw anew.$",
            id="one that gives no truth value",
        ),
    ],
)
def test_a_filter_that_does_not_work_is_named_with_the_prompt(tmp_path: Path, name: str, sentence: str) -> None:
    keeps = loaded(tmp_path, name).keeps
    with pytest.raises(ValueError, match=f"^rollout.dynamicSampling.filter: {sentence}"):
        keeps(make_group(TICKET, 4), scores(0.0, 0.0), None)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        pytest.param("gone", "was not found: module group_gone .* has no 'gone'", id="no such function"),
        pytest.param("one", r"cannot be called with 2 arguments \(answers, rewards\)", id="too few arguments"),
        pytest.param("waits", "is async, and a filter is called. Write it as `def keeps", id="an async function"),
    ],
)
def test_a_filter_that_cannot_be_called_is_refused_at_the_start(tmp_path: Path, name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^rollout.dynamicSampling.filter: group_{name}:{name} {sentence}"):
        loaded(tmp_path, name)


def test_what_a_refused_group_has_earned_goes_with_it() -> None:
    sampling = DynamicSampling(rewards_differ, 3)
    stage, group = ScoreStage(ScoredBut(set()), decode, sampling=sampling, pass_reward=0.5), make_group(TICKET, 4)
    (outcome,) = stage.run([replace(group, samples=(*group.samples, LostSample("gone")))])
    assert outcome == Refused(TICKET, GroupScore(2, 2, 2.0))
    (rows,) = ScoreStage(RememberingReward(), decode, sampling=sampling, pass_reward=0.5).run([make_group(TICKET, 4)])
    assert isinstance(rows, GroupRows)
    assert rows.score == GroupScore(2, 1, 1.0)
    (rows,) = ScoreStage(RememberingReward(), decode).run([make_group(TICKET, 4)])
    assert isinstance(rows, GroupRows)
    assert rows.score == UNSCORED


def test_no_filter_is_none() -> None:
    assert DynamicSampling.of(None, decode) is None
