"""Reward functions as TRL has them: `def reward(prompts, completions, **columns) -> list[float]`.

One is known by its argument `completions`. It gets lists, one entry for each answer to a prompt: `prompts` and
`completions` as messages where the prompt is a chat, else as texts; `completion_ids`; and each column of the prompt's
row that it can take, the label under `data.labelKey`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from rljob_workers.rewards.base import Answer, Given, RewardFunction
from rljob_workers.user_functions import is_async

KEYWORD = "completions"
"""The argument by which such a function is known."""

_OWN = ("prompts", KEYWORD, "completion_ids")


def takes_keywords(function: Callable[..., Any]) -> bool:
    """Whether it is one of TRL's."""
    try:
        return KEYWORD in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False


def of_answers(function: Callable[..., Any], label_key: str | None) -> RewardFunction:
    """The same as a function of the answers to one prompt."""
    parameters = inspect.signature(function).parameters
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    needed = [
        name
        for name, each in parameters.items()
        if each.default is inspect.Parameter.empty and each.kind is not inspect.Parameter.VAR_KEYWORD
    ]

    def arguments(answers: Sequence[Answer]) -> dict[str, list[Any]]:
        columns = _columns(answers, label_key)
        absent = next((name for name in needed if name not in columns), None)
        if absent is not None:
            raise ValueError(
                f"it needs the argument {absent!r}, and the rows have no such column, only"
                f" {', '.join(sorted(set(columns) - set(_OWN)))}."
            )
        return {name: values for name, values in columns.items() if takes_all or name in parameters}

    if is_async(function):

        async def score_later(answers: Sequence[Answer], /) -> Sequence[Given]:
            later: Awaitable[Sequence[Given]] = function(**arguments(answers))
            return await later

        return score_later

    def score(answers: Sequence[Answer], /) -> Sequence[Given]:
        given: Sequence[Given] = function(**arguments(answers))
        return given

    return score


def _columns(answers: Sequence[Answer], label_key: str | None) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for answer in answers for name in answer.row)
    columns = {name: [answer.row.get(name) for answer in answers] for name in names}
    if label_key is not None:
        columns[label_key] = [answer.label for answer in answers]
    return columns | {
        "prompts": [_prompt(answer) for answer in answers],
        KEYWORD: [_completion(answer) for answer in answers],
        "completion_ids": [list(answer.token_ids) for answer in answers],
    }


def _prompt(answer: Answer) -> str | list[dict[str, Any]]:
    return [dict(message) for message in answer.messages] if answer.messages else answer.prompt


def _completion(answer: Answer) -> str | list[dict[str, str]]:
    return [{"role": "assistant", "content": answer.response}] if answer.messages else answer.response
