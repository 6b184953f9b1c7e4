"""The reward of the grade-school example: what counts as the number that a text ends at, and its own problems."""

import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec.data import DataSpec
from rljob_api.spec.rollout import RewardFunctionSpec, RewardSpec
from rljob_workers.rewards import Answer, build_reward
from rljob_workers.rewards.base import Outcome
from tests.unit.rewards.test_builtin import NoSource

FOLDER = Path(__file__).parents[3] / "examples/grade-school"


def score(label: str, *responses: str) -> list[Outcome]:
    spec = RewardSpec(custom=RewardFunctionSpec(function="reward:same_number", path=str(FOLDER)))
    reward = build_reward(spec, DataSpec(prompts="problems.jsonl"), NoSource())
    try:
        answers = [Answer("How many?", response, label, 0, index) for index, response in enumerate(responses)]
        (scores,) = reward.score_groups([answers])
    finally:
        reward.close()
    return list(scores)


RIGHT = [
    "#### 1080",
    "#### 1,080",
    "So it is $1,080.",
    "She pays \\boxed{1080} dollars, and 3 are left.",
    "\\boxed{12} and then \\boxed{1080.0}",
    "\\boxed{\\text{about } 1080}",
    "2160/2",
    "\\boxed{\\dfrac{2160}{2}}",
]
WRONG = [
    "",
    "no number",
    "#### 1081",
    "#### 108",
    "\\boxed{}",
    "1080 was the year, 5 the answer",
    "-1080",
    "1080/0",
    "9" * 5000,
]


def test_what_is_right() -> None:
    assert score("It costs 1000+80.\n#### 1,080", *RIGHT) == [1.0] * len(RIGHT)


def test_what_is_wrong() -> None:
    assert score("#### 1080", *WRONG) == [0.0] * len(WRONG)


def test_a_label_without_a_number_is_a_sentence() -> None:
    with pytest.raises(Exception, match="The label 'none' has no number behind ####"):
        score("none", "1")


def test_each_problem_of_the_example_is_solved_by_its_own_solution() -> None:
    problems = [json.loads(line) for line in (FOLDER / "problems.jsonl").read_text().splitlines()]
    assert len(problems) == 96
    for problem in problems:
        assert problem.keys() == {"question", "answer"}
        assert score(problem["answer"], problem["answer"], "#### -1") == [1.0, 0.0]


@given(value=st.fractions(-(10**12), 10**12, max_denominator=1000), before=st.text("0123456789abc ,.#"))
def test_a_number_in_a_box_is_read_exactly_whatever_stands_before(value: Fraction, before: str) -> None:
    import importlib.util

    found = importlib.util.spec_from_file_location("grade_school_reward", FOLDER / "reward.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    assert module.number_of(f"{before} \\boxed{{{value}}}") == value
