"""Guesses at what an unknown name was meant for, as sentences: ours of another trainer's, or the nearest.

Pure. Called by what refuses fields and values. Nothing is suggested that is not near: a wrong guess misleads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from rljob_api.other_names.absent import absent_sentence
from rljob_api.other_names.tables import TABLES, OtherName

_GENERIC = frozenset(("enable", "interval", "n", "name", "path", "type"))
"""Last parts of other trainers' names that say nothing without the parts before them."""

_LETTERS_PER_ERROR = 4
_MOST_ERRORS = 3


def field_hint(path: Sequence[str]) -> str | None:
    """For an unknown field; `path` has the names that lead to it. None where no table has it."""
    for length in range(len(path), 0, -1):
        if found := _by_name().get(_plain(".".join(path[-length:]))):
            return _named(found, path[-1])
    return next(filter(None, map(absent_sentence, reversed(path))), None)


def value_hint(given: str, known: Sequence[str]) -> str | None:
    """For a value of a field that takes the `known` ones. None where neither these nor a table have anything near."""
    same = next((value for value in known if _plain(value) == _plain(given)), None)
    if same is not None:
        return f"Did you mean {same}?"
    found = [name for name in _names() if name.value is not None and _plain(name.value) == _plain(given)]
    if found:
        return _named(found, given)
    return absent_sentence(given) or (f"Did you mean {near}?" if (near := nearest(given, known)) else None)


def nearest(given: str, known: Iterable[str]) -> str | None:
    """The known name with the fewest letters to change, or the only one that begins so; None where nothing is near."""
    plain = _plain(given)
    errors = {name: _edits(plain, _plain(name)) for name in known}
    most = min(_MOST_ERRORS, max(1, len(plain) // _LETTERS_PER_ERROR))
    best = min(errors, key=lambda name: errors[name], default=None)
    if best is not None and errors[best] <= most:
        return best
    longer = [name for name in errors if len(plain) >= _LETTERS_PER_ERROR and _plain(name).startswith(plain)]
    return longer[0] if len(longer) == 1 else None


def _plain(name: str) -> str:
    return re.sub(r"[_-]", "", name).lower()


def _named(found: Sequence[OtherName], given: str) -> str:
    """Ours, each once, of the first trainer alone; with its value or its formula where there is one."""
    of_first = [name for name in found if name.trainer == found[0].trainer]
    fields = dict.fromkeys(name.ours for name in of_first)
    values = dict.fromkeys(name.our_value for name in of_first)
    (only_value,) = values if len(values) == 1 else (None,)
    shown = " or ".join(fields) + (f": {only_value}" if only_value is not None else "")
    formula = f" ({of_first[0].formula})" if len(of_first) == 1 and of_first[0].formula is not None else ""
    return f"{given} of {found[0].trainer} is {shown} here{formula}."


def _names() -> Iterator[OtherName]:
    return (name for table in TABLES for name in table.names)


@cache
def _by_name() -> dict[str, list[OtherName]]:
    """Rows found by whole names, then by last parts where no whole name is the same."""
    whole: dict[str, list[OtherName]] = {}
    last: dict[str, list[OtherName]] = {}
    for name in _names():
        whole.setdefault(_plain(name.name), []).append(name)
        part = _plain(name.name).rpartition(".")[2]
        if part not in _GENERIC:
            last.setdefault(part, []).append(name)
    return last | whole


def _edits(one: str, other: str) -> int:
    """Letters to add, to leave out, to replace or to swap with the next: optimal string alignment."""
    before, above = list(range(len(other) + 1)), list(range(len(other) + 1))
    for row, letter in enumerate(one, start=1):
        current = [row]
        for column, wanted in enumerate(other, start=1):
            best = min(current[-1] + 1, above[column] + 1, above[column - 1] + (letter != wanted))
            if row > 1 and column > 1 and letter == other[column - 2] and one[row - 2] == wanted:
                best = min(best, before[column - 2] + 1)
            current.append(best)
        before, above = above, current
    return above[-1]
