"""The recorded decisions: a line for each schedule, of turns as differences. Recordings write it, replays read it.

A line has the schedule's kind and seed, and for each turn the difference of its form from the turn before, with the
status that was decided there, and the decision with its status as the difference from the turn's.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.recorded.canonical import Difference, Json, first_difference
from tests.recorded.decisions import schedules
from tests.recorded.decisions.form import decided, form_of
from tests.recorded.deltas import applied, delta
from tests.recorded.renames import RENAMES, Recording, renamed

FILE = Path(__file__).parents[1] / "data/decisions.jsonl.gz"

Form = dict[str, Json]


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """A turn and its decision, in their forms."""

    given: Form
    decision: Form


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first turn of a schedule that is decided otherwise."""

    schedule: str
    turn: int
    difference: Difference

    def __str__(self) -> str:
        return f"schedule {self.schedule}, turn {self.turn}: {self.difference}"


def record() -> None:
    """Walks all schedules, and writes what is decided."""
    lines = [_line(kind, seed) for kind, seed in schedules.names()]
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9, mtime=0) as file:
        file.write("".join(lines).encode())
    FILE.write_bytes(packed.getvalue())


def recorded() -> Iterator[tuple[str, list[RecordedTurn]]]:
    """Each schedule by its name, with its turns."""
    names = RENAMES[Recording.DECISIONS]
    with gzip.open(FILE, "rt", encoding="utf-8") as file:
        for line in file:
            schedule = json.loads(line)
            name = f"{schedule['kind']}/{schedule['seed']}"
            turns = renamed(schedule["turns"], names)
            assert isinstance(turns, list)
            yield name, list(unpacked(turns))


def mismatch(schedule: str, turns: Iterable[RecordedTurn]) -> Mismatch | None:
    """Decides every turn again, until one differs from what is recorded."""
    for number, turn in enumerate(turns):
        difference = first_difference(turn.decision, decided(turn.given))
        if difference is not None:
            return Mismatch(schedule, number, difference)
    return None


def _line(kind: str, seed: int) -> str:
    forms = [form_of(turn) for turn in schedules.turns_of(kind, seed)]
    turns = packed(RecordedTurn(form, decided(form)) for form in forms)
    # Not sorted: the order of a mapping, such as the roles', is part of what a decision is made from.
    return json.dumps({"kind": kind, "seed": seed, "turns": turns}, separators=(",", ":")) + "\n"


def packed(turns: Iterable[RecordedTurn]) -> list[Json]:
    """Turns as differences."""
    before: Form = {}
    found: list[Json] = []
    for turn in turns:
        decision = {**turn.decision, "status": delta(turn.given["status"], turn.decision["status"])}
        found.append({"given": delta(before, turn.given), "decision": decision})
        before = {**turn.given, "status": turn.decision["status"]}
    return found


def unpacked(turns: Iterable[Json]) -> Iterator[RecordedTurn]:
    """`turns` of `packed(turns)`."""
    before: Json = {}
    for turn in turns:
        assert isinstance(turn, dict)
        given, decision = applied(before, turn["given"]), turn["decision"]
        assert isinstance(given, dict)
        assert isinstance(decision, dict)
        decision = {**decision, "status": applied(given["status"], decision["status"])}
        yield RecordedTurn(given, decision)
        before = {**given, "status": decision["status"]}
