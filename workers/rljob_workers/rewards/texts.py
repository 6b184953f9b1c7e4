"""Rewards that read an answer's text: F1, the letter of a choice, a pattern, tags. Cheap: run in the caller."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import regex

from rljob_api.row_files.labels import chosen_letter
from rljob_workers.rewards.base import Answer, Reward
from rljob_workers.rewards.builtin import expected_label

_PATTERN_SECONDS = 1.0
"""For a pattern on one answer: some take exponential time on texts that nearly match."""


class TextReward(Reward):
    """A function of one answer."""

    def __init__(self, score: Callable[[Answer], float]) -> None:
        self._score = score

    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> list[list[float]]:
        """Raises ValueError for a prompt without a label where the function needs one."""
        return [[self._score(answer) for answer in group] for group in groups]


_PUNCTUATION = str.maketrans("", "", string.punctuation)


_ARTICLES = re.compile(r"\b(a|an|the)\b")


def terms(text: str) -> list[str]:
    """In lower case, without punctuation and articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def text_overlap(answer: Answer) -> float:
    """2 P R / (P + R) of the words that answer and label share, each as often as in both; of several labels the best.

    1.0 where neither has any. Source: Rajpurkar et al. 2016, SQuAD, arXiv:1606.05250, section 6.1.
    """
    label = answer.label
    labels: Sequence[Any] = label if isinstance(label, list | tuple) and label else [expected_label(answer)]
    return max(_f1(terms(answer.response), terms(str(each))) for each in labels)


def _f1(given: list[str], wanted: list[str]) -> float:
    if not given or not wanted:
        return float(given == wanted)
    shared = sum((Counter(given) & Counter(wanted)).values())
    return 2 * shared / (len(given) + len(wanted))


def choice(answer: Answer) -> float:
    """1.0 where the answer chooses the label's letter. ValueError for a label that is none."""
    wanted = chosen_letter(expected_label(answer))
    if wanted is None:
        raise ValueError(
            f"data.labelKey: the label {answer.label!r:.80} of the prompt {answer.prompt[:80]!r} is no letter, which"
            " the reward choice compares with. Give labels such as B, or another reward."
        )
    return float(chosen_letter(answer.response) == wanted)


def matches(pattern: str, field: str) -> Callable[[Answer], float]:
    """1.0 where all of an answer matches. ValueError for a pattern that is none; `field` names it.

    An answer on which it takes longer than a second gets 0.0.
    """
    try:
        compiled = regex.compile(pattern, regex.DOTALL)
    except regex.error as error:
        raise ValueError(f"{field}.pattern: {pattern!r} is no regular expression ({error}). Correct it.") from error

    def score(answer: Answer) -> float:
        try:
            return float(compiled.fullmatch(answer.response.strip(), timeout=_PATTERN_SECONDS) is not None)
        except TimeoutError:
            return 0.0

    return score


def has_tags(names: Sequence[str]) -> Callable[[Answer], float]:
    """The share of `names` that an answer opens once and closes once, each behind the one before it."""

    def score(answer: Answer) -> float:
        text, end, found = answer.response, 0, 0
        for name in names:
            opening, closing = f"<{name}>", f"</{name}>"
            if text.count(opening) == text.count(closing) == 1 and end <= text.index(opening) < text.index(closing):
                end = text.index(closing) + len(closing)
                found += 1
        return found / len(names)

    return score
