"""`tests/ratchets.toml`: its bounds, what is beyond them, and its text once figures have fallen.

Pure. A bound never rises by itself. Lines of code may: by an entry under `raised`, which names the capability that they
are for, and which the next fall takes in.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

HEAD = """\
# Figures of this repository that may only fall: a test fails where one is above its bound (docs/tests.md).
#
#   scripts/ratchets            each figure beside its bound, and which sentences and sizes to begin with
#   scripts/ratchets --write    lowers the bounds of figures that have fallen; it raises none
#
# Only code_lines may grow, by a capability that is named:
#
#   workers = {lines = 34517, raised = [{by = 120, why = "Weights travel from device to device"}]}
#
# Ways are lowered by hand after scripts/count-walks: one differs by some calls from run to run, more on a busy machine.
"""
LINES, WAYS = "code_lines", "ways"
_CURES = {
    "tracer.passages": "count a passage as part of its way, or take another off the list in scripts/walks/count.py",
    "sizes.file": "split the file that has grown by its subjects; `scripts/ratchets --worst` names the largest",
    "sizes.function": "name a part of the function that has grown; `scripts/ratchets --worst` names the largest",
    "openings": "begin with the subject and its verb; `scripts/ratchets --sentences` lists them",
    "recurring.file_names": "name the new file by what it alone is about",
    "recurring.class_names": "name the new class by what it alone is",
    LINES: "delete what is not needed, or name in `raised` the capability that the lines are for",
}


class NotRatchets(ValueError):
    """The file holds something else, or an entry of `raised` without a reason."""


@dataclass(frozen=True, slots=True)
class Raise:
    """Lines of code that a package may have beyond its bound, and the capability that they are for."""

    by: int
    why: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """The file's content. `figures` are all bounds but those of the ways; `raised` belongs to lines of code."""

    ways: Mapping[str, Mapping[str, int]]
    figures: Mapping[str, int]
    raised: Mapping[str, tuple[Raise, ...]]

    def bound_of(self, name: str) -> int | None:
        """The figure's bound, with all raises of it. None: it has none yet."""
        if name not in self.figures:
            return None
        return self.figures[name] + sum(each.by for each in self.raised.get(name, ()))


def parse(text: str) -> Bounds:
    """Reads the file's text. NotRatchets if an entry is no whole number, or a raise has no reason."""
    tables = tomllib.loads(text)
    ways = tables.pop(WAYS, {})
    lines = {f"{LINES}.{package}": entry for package, entry in tables.pop(LINES, {}).items()}
    raised = {name: tuple(_raise(name, each) for each in entry.get("raised", ())) for name, entry in lines.items()}
    return Bounds(ways, dict(_flat(tables)) | {name: entry["lines"] for name, entry in lines.items()}, raised)


def above(figures: Mapping[str, int], bounds: Bounds) -> list[str]:
    """A sentence for each figure that is above its bound."""
    return [
        f"{name} is {value} and may be {bound} at most (tests/ratchets.toml): {_cure(name)}."
        for name, value in figures.items()
        if (bound := bounds.bound_of(name)) is not None and value > bound
    ]


def unmatched(figures: Mapping[str, int], bounds: Bounds) -> list[str]:
    """A sentence for each figure without a bound, and each bound without a figure."""
    sentences = [
        f"{name} is {figures[name]} and has no bound: `scripts/ratchets --write` gives it one in tests/ratchets.toml."
        for name in figures
        if name not in bounds.figures
    ]
    sentences += [
        f"{name} has a bound in tests/ratchets.toml and is not measured: `scripts/ratchets --write` deletes it."
        for name in bounds.figures
        if name not in figures
    ]
    return sentences


def lowered(figures: Mapping[str, int], bounds: Bounds) -> Bounds:
    """Bounds at the figures where these have fallen, without what was raised; figures alone have one afterwards."""
    fallen = {
        name: value for name, value in figures.items() if (bound := bounds.bound_of(name)) is None or value < bound
    }
    raised = {name: raises for name, raises in bounds.raised.items() if name not in fallen}
    return Bounds(bounds.ways, {name: fallen.get(name, bounds.figures.get(name, 0)) for name in figures}, raised)


def text_of(bounds: Bounds) -> str:
    """The file's text: sections by the first parts of the names."""
    sections: dict[str, list[str]] = {f"{WAYS}.{way}": _entries(figures) for way, figures in bounds.ways.items()}
    for name, value in bounds.figures.items():
        section, _, key = name.rpartition(".")
        entry = f"{key} = {value}"
        if section == LINES:
            raises = ", ".join(
                f"{{by = {each.by}, why = {json.dumps(each.why)}}}" for each in bounds.raised.get(name, ())
            )
            entry = f"{key} = {{lines = {value}" + (f", raised = [{raises}]" if raises else "") + "}"
        sections.setdefault(section, []).append(entry)
    return HEAD + "".join(f"\n[{name}]\n" + "\n".join(entries) + "\n" for name, entries in sections.items())


def _raise(name: str, entry: Mapping[str, Any]) -> Raise:
    why = str(entry.get("why", ""))
    if len(why.split()) < 3 or not isinstance(entry.get("by"), int):
        raise NotRatchets(
            f"{name}: raised has {dict(entry)!r}; give `by`, a number of lines, and `why`, the capability they are for"
        )
    return Raise(entry["by"], why)


def _entries(figures: Mapping[str, int]) -> list[str]:
    return [f"{name} = {value}" for name, value in figures.items()]


def _cure(name: str) -> str:
    return next(cure for prefix, cure in _CURES.items() if name.startswith(prefix))


def _flat(tables: Mapping[str, Any], prefix: str = "") -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for name, value in tables.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{name}.")
        elif isinstance(value, int):
            found.append((f"{prefix}{name}", value))
        else:
            raise NotRatchets(f"{prefix}{name}: a figure is a whole number, and this is {value!r}")
    return found
