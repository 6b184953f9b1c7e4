"""Answers of an evaluation that were drawn together are scored side by side, each as a group of its own."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from rljob_workers.rewards.base import Answer, SettledScore
from rljob_workers.rollout.evaluating import _scores
from rljob_workers.rollout.evaluation_plan import NumberedSample


class Scorer:
    """Gives each answer the length of its response."""

    def __init__(self) -> None:
        self.calls: list[list[list[str]]] = []

    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> list[list[SettledScore]]:
        self.calls.append([[answer.response for answer in group] for group in groups])
        return [[SettledScore(float(len(answer.response))) for answer in group] for group in groups]


def test_the_answers_of_a_set_are_scored_by_one_call() -> None:
    scorers = {"a": Scorer(), "b": Scorer()}
    sets: dict[str, Any] = {
        name: SimpleNamespace(spec=SimpleNamespace(name=name), scorer=scorer) for name, scorer in scorers.items()
    }
    samples = [NumberedSample(sets[name], place, 0) for place, name in enumerate("abba")]
    answers = [Answer("p", "x" * place, None, place, 0) for place in range(4)]
    assert [score.reward for score in _scores(samples, answers)] == [0.0, 1.0, 2.0, 3.0]
    assert scorers["a"].calls == [[[""], ["xxx"]]]
    assert scorers["b"].calls == [[["x"], ["xx"]]]
