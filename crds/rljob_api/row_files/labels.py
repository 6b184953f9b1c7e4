"""The label of a row as the rewards that come with the product read it, and what is wrong with one that they cannot.

Used by these rewards and by the checks of a manifest. Pure.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

_WITH_SEVERAL = "textOverlap"
"""The kind of reward that takes a list of labels, of which the best counts, and one without text."""

_CHOICE = "choice"

_BOXED = re.compile(r"\\boxed\s*\{\s*(?:\\text\s*\{)?\s*(?:\(([A-Za-z])\)|([A-Za-z]))\s*\}")


_STATED = re.compile(r"\b(?i:answer)(?:\s+is)?\s*:?\s*\**(?:\(([A-Za-z])\)|([A-Z])(?![\w']))")


_ALONE = re.compile(r"\W*([A-Za-z])\W*")


def chosen_letter(text: str) -> str | None:
    r"""The letter that a text chooses, as a capital; `ChoiceSpec` has the order of what counts."""
    for pattern in (_BOXED, _STATED):
        found = [one[1] or one[2] for one in pattern.finditer(text)]
        if found:
            return found[-1].upper()
    alone = _ALONE.fullmatch(text)
    return alone[1].upper() if alone else None


def answer_in(label: Any) -> Any:  # noqa: ANN401 - a label is what the user wrote
    """The answer to compare with; a task entry of reasoning_gym, and rows of its form, have it under `answer`."""
    return label["answer"] if isinstance(label, dict) and "answer" in label else label


def label_problem(label: Any, kinds: Collection[str]) -> str | None:  # noqa: ANN401 - as above
    """A predicate with its cure where rewards of these kinds cannot compare with the label; None where they can.

    `kinds`: of those that compare with labels, at least one.
    """
    answer = answer_in(label)
    if answer is None or (isinstance(answer, float) and math.isnan(answer)):
        return "is null, and the reward compares with it. Write a label, or remove the row."
    if isinstance(answer, list) and answer and set(kinds) == {_WITH_SEVERAL}:
        return next((wrong for wrong in (label_problem(each, kinds) for each in answer) if wrong), None)
    if isinstance(answer, dict | list | tuple | bytes):  # others have a text, such as dates and decimals of columns
        kind = "object" if isinstance(answer, dict) else type(answer).__name__
        named = " and ".join(sorted(kinds))
        return f"is of type {kind}, and the reward {named} compares with a text. Give a text or a number."
    if set(kinds) != {_WITH_SEVERAL} and not str(answer).strip():
        return "is empty, and the reward compares with it. Write a label, or remove the row."
    if _CHOICE in kinds and chosen_letter(str(answer).strip()) is None:
        return f"is {str(answer)[:80]!r}, and the reward choice compares with a letter. Give labels such as B."
    return None
