"""Exact match and the choice of a reward."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_api.spec.data import DataSpec, ReasoningGymSpec
from rljob_api.spec.rollout import CharacterMatchSpec, ExactMatchSpec, RewardSpec
from rljob_workers.data.prompts import Prompt, PromptSource
from rljob_workers.rewards import Answer, build_reward
from rljob_workers.rewards.builtin import TaskScore

JSONL = DataSpec(prompts="prompts.jsonl")
GYM = DataSpec(reasoning_gym=ReasoningGymSpec(dataset="letter_counting"))


class NoSource(PromptSource):
    """A source that cannot score."""

    def __len__(self) -> int:
        return 1

    def at(self, index: int) -> Prompt:
        raise AssertionError(index)


def make_answers(label: Any, *responses: str) -> list[Answer]:
    return [Answer("p", response, label, 0, index) for index, response in enumerate(responses)]


@pytest.mark.parametrize(
    ("label", "response", "expected"),
    [
        pytest.param("321", "321", 1.0, id="equal"),
        pytest.param("321", " 321\n", 1.0, id="white space around the answer"),
        pytest.param(" 321 ", "321", 1.0, id="white space around the label"),
        pytest.param("321", "3 21", 0.0, id="white space inside"),
        pytest.param("321", "", 0.0, id="no answer"),
        pytest.param("A", "a", 0.0, id="another case"),
        pytest.param(321, "321", 1.0, id="a number as label"),
        pytest.param({"answer": "12", "question": "?"}, "12", 1.0, id="a task entry"),
    ],
)
def test_exact_match_compares_text_without_outer_white_space(label: Any, response: str, expected: float) -> None:
    reward = build_reward(RewardSpec(), JSONL, NoSource())
    assert reward.score_groups([make_answers(label, response)]) == [[expected]]


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        pytest.param("321", 1.0, id="all"),
        pytest.param("329", 2 / 3, id="two of three places"),
        pytest.param("3210", 3 / 4, id="one too many"),
        pytest.param("3", 1 / 3, id="two too few"),
        pytest.param("", 0.0, id="none"),
        pytest.param("213", 0.0, id="the right characters at other places"),
    ],
)
def test_character_match_counts_places(response: str, expected: float) -> None:
    reward = build_reward(RewardSpec(character_match=CharacterMatchSpec()), JSONL, NoSource())
    ((found,),) = reward.score_groups([make_answers("321", response)])
    assert found == pytest.approx(expected)


def test_groups_and_answers_keep_their_order() -> None:
    reward = build_reward(RewardSpec(exact_match=ExactMatchSpec()), JSONL, NoSource())
    groups = [make_answers("1", "1", "2"), make_answers("2", "1", "2", "2")]
    assert reward.score_groups(groups) == [[1.0, 0.0], [0.0, 1.0, 1.0]]
    assert reward.score_groups([]) == []


def test_a_prompt_without_a_label_is_named() -> None:
    reward = build_reward(RewardSpec(), JSONL, NoSource())
    with pytest.raises(ValueError, match=r"data\.labelKey: the prompt 'p' has no label"):
        reward.score_groups([make_answers(None, "x")])


def test_exact_match_without_label_key_is_refused() -> None:
    with pytest.raises(ValueError, match=r"data\.labelKey: null .* Set data\.labelKey, or set rollout\.reward\.custom"):
        build_reward(RewardSpec(), DataSpec(prompts="prompts.jsonl", label_key=None), NoSource())


def test_task_score_needs_a_source_that_scores() -> None:
    with pytest.raises(ValueError, match="NoSource cannot score answers"):
        build_reward(RewardSpec(), GYM, NoSource())


def test_an_answer_that_breaks_the_scorer_of_a_task_gets_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Fragile:
        def score(self, answer: str, entry: dict[str, Any]) -> float:
            return float(answer) / int(entry["of"])

    answers = make_answers({"of": 2}, "1", "one", "two", "2", "nan", "inf")
    assert TaskScore(Fragile()).score_groups([answers]) == [[0.5, 0.0, 0.0, 1.0, 0.0, 0.0]]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
