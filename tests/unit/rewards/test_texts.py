"""F1, choices, patterns and tags, by tables."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_api.spec.data import DataSpec
from rljob_api.spec.rollout import RewardSpec
from rljob_workers.rewards import Answer, build_reward
from tests.unit.rewards.test_builtin import NoSource, make_answers


def scores(reward: dict[str, Any], label: Any, *responses: str) -> Any:
    built = build_reward(RewardSpec.model_validate(reward), DataSpec(prompts="p.jsonl"), NoSource())
    (found,) = built.score_groups([make_answers(label, *responses)])
    return found


@pytest.mark.parametrize(
    ("label", "response", "expected"),
    [
        pytest.param("the cat", "The cat.", 1.0, id="case, articles and punctuation"),
        pytest.param("black cat", "a cat", 2 / 3, id="1 of 1 and 1 of 2"),
        pytest.param("cat cat", "cat dog cat cat", 2 * 2 / 6, id="each as often as in both"),
        pytest.param("cat", "dog", 0.0, id="none"),
        pytest.param("cat", "", 0.0, id="no answer"),
        pytest.param(["dog", "red cat"], "red cat", 1.0, id="the best of several labels"),
    ],
)
def test_f1_of_texts(label: Any, response: str, expected: float) -> None:
    assert scores({"textOverlap": {}}, label, response) == [pytest.approx(expected)]


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        pytest.param("B", 1.0, id="alone"),
        pytest.param(" (b). ", 1.0, id="alone in brackets"),
        pytest.param(r"A or C... so \boxed{B}", 1.0, id="boxed"),
        pytest.param(r"\boxed{\text{B}}", 1.0, id="boxed text"),
        pytest.param(r"\boxed{A} no, \boxed{(B)}", 1.0, id="the last box"),
        pytest.param("The answer is B, since A is wrong.", 1.0, id="said"),
        pytest.param("Answer: **B**", 1.0, id="in bold"),
        pytest.param("answer is (b)", 1.0, id="in brackets"),
        pytest.param("The answer is Berlin.", 0.0, id="a word"),
        pytest.param("the answer is a bird", 0.0, id="an article"),
        pytest.param("C", 0.0, id="another"),
        pytest.param("", 0.0, id="none"),
    ],
)
def test_the_letter_that_was_chosen(response: str, expected: float) -> None:
    assert scores({"choice": {}}, "B", response) == [expected]


def test_a_label_that_is_no_letter_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^data\.labelKey: the label 'Berlin' of the prompt 'p' is no letter"):
        scores({"choice": {}}, "Berlin", "B")


def test_a_pattern_matches_all_of_an_answer() -> None:
    pattern = {"format": {"pattern": r"<think>.*</think>\s*\d+"}}
    assert scores(pattern, None, "<think>a\nb</think> 12\n", "so <think></think>1", "12") == [1.0, 0.0, 0.0]


def test_a_pattern_that_takes_for_ever_on_an_answer_gives_nothing() -> None:
    assert scores({"format": {"pattern": r"(a|aa)+\1b(a*a*)*c"}}, None, "a" * 5000 + "b" + "a" * 5000) == [0.0]


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        pytest.param("<think>a</think><answer>b</answer>", 1.0, id="both"),
        pytest.param("<answer>b</answer><think>a</think>", 0.5, id="the second comes first"),
        pytest.param("<think>a<answer>b</answer></think>", 0.5, id="within the other"),
        pytest.param("<think>a</think><think></think><answer>b</answer>", 0.5, id="twice"),
        pytest.param("<answer>b</answer>", 0.5, id="one"),
        pytest.param("</think><think>", 0.0, id="closed before it opens"),
    ],
)
def test_the_share_of_tags(response: str, expected: float) -> None:
    assert scores({"tags": {"names": ["think", "answer"]}}, None, response) == [expected]


def test_several_have_weights_and_a_metric_each() -> None:
    parts = [{"name": "right", "choice": {}}, {"name": "form", "weight": 0.5, "tags": {"names": ["t"]}}]
    (score,) = scores({"sum": parts}, "B", "<t>x</t> answer: B")
    assert (score.reward, score.metrics) == (1.5, {"right": 1.0, "form": 1.0})


def test_answers_are_those_of_a_reward() -> None:
    assert isinstance(make_answers("B", "B")[0], Answer)
