"""Canonical JSON of what is recorded, and the first place at which two values differ.

Called by recordings and their replays. A value is what `json` reads; two are equal if their texts are, byte by byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

ABSENT = "(absent)"


def text_of(value: Json) -> str:
    """One line, keys sorted."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first field that differs."""

    path: str
    recorded: str
    replayed: str

    def __str__(self) -> str:
        return f"{self.path or 'the whole'} was {self.recorded}, and is {self.replayed}"


def first_difference(recorded: Json, replayed: Json) -> Difference | None:
    """None where the canonical texts are equal."""
    if text_of(recorded) == text_of(replayed):
        return None
    return next(_differences("", recorded, replayed))


def _differences(path: str, recorded: Json, replayed: Json) -> Iterator[Difference]:
    match recorded, replayed:
        case dict(), dict():
            yield from _of_fields(path, recorded, replayed)
        case list(), list():
            numbered = [{f"{n:06}": each for n, each in enumerate(values)} for values in (recorded, replayed)]
            yield from _of_fields(path, numbered[0], numbered[1])
        case _:
            if text_of(recorded) != text_of(replayed):
                yield Difference(path, text_of(recorded), text_of(replayed))


def _of_fields(path: str, recorded: Mapping[str, Json], replayed: Mapping[str, Json]) -> Iterator[Difference]:
    for name in sorted(recorded.keys() | replayed.keys()):
        place = f"{path}[{int(name)}]" if name.isascii() and name.isdigit() else f"{path}.{name}".lstrip(".")
        if name in recorded and name in replayed:
            yield from _differences(place, recorded[name], replayed[name])
        else:
            sides = (text_of(each[name]) if name in each else ABSENT for each in (recorded, replayed))
            yield Difference(place, *sides)
