"""Findings of a check of a manifest: sentences, and the line of the file that each of them belongs to.

Used by every check. A finding begins with the field that it is about: `spec.roles.rollout.engine.kind: ...`; `Lines`
puts the file and the line of that field before it. It names the other fields that it depends on, so that it is left out
where one of them was refused (`independent`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator


_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


_FIELD = re.compile(r"((?:apiVersion|kind|metadata|spec)[^\s:]*): ")


_MERGE = "tag:yaml.org,2002:merge"


ANY = "*"
"""Stands for any name in the path of a field that a finding depends on."""


class Level(Enum):
    """The consequence of a finding."""

    PROBLEM = "problem"
    """The job would fail: the manifest is refused."""
    WARNING = "warning"
    """It would run, and probably not do what was meant."""
    UNCHECKED = "not checked here"
    """Can only be checked on the machine or cluster that runs the job."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A sentence, with its field first."""

    level: Level
    text: str
    uses: tuple[str, ...] = field(default=(), compare=False)
    """Paths of the fields that it depends on, beside its own."""


def problem(text: str, *uses: str) -> Finding:
    """The job would fail."""
    return Finding(Level.PROBLEM, text, uses)


def warning(text: str, *uses: str) -> Finding:
    """It would not do what was meant."""
    return Finding(Level.WARNING, text, uses)


def unchecked(text: str, *uses: str) -> Finding:
    """Cannot be checked on this machine."""
    return Finding(Level.UNCHECKED, text, uses)


def independent(found: Iterable[Finding], refused: Collection[str]) -> Iterator[Finding]:
    """Findings that are true whatever should have stood in the fields that were refused."""
    return (finding for finding in found if not _depends(finding, refused))


def any_overlaps(uses: Iterable[str], refused: Collection[str]) -> bool:
    """Whether a refused field is one of these, holds one, or is in one."""
    return any(_holds(path, use) or _holds(use, path) for use in uses for path in refused)


def _depends(finding: Finding, refused: Collection[str]) -> bool:
    own = finding.text.split(": ")[0].replace("[", ".").replace("]", "")
    return any(_holds(path, own) for path in refused) or any_overlaps(finding.uses, refused)


def _holds(outer: str, inner: str) -> bool:
    """Whether `inner` is the field `outer` or in it."""
    names = outer.split(".")
    there = inner.split(".")[: len(names)]
    return len(there) == len(names) and all(a == b or ANY in (a, b) for a, b in zip(names, there, strict=True))


@dataclass(frozen=True, slots=True)
class Findings:
    """All of one manifest, in the order of its checks."""

    found: list[Finding] = field(default_factory=list)

    def of(self, level: Level) -> tuple[str, ...]:
        """The sentences of one level."""
        return tuple(finding.text for finding in self.found if finding.level is level)

    def add(self, found: Iterable[Finding]) -> None:
        """More of them; one that is there already is left out."""
        self.found.extend(finding for finding in found if finding not in self.found)

    @property
    def problems(self) -> tuple[str, ...]:
        """Sentences that refuse the manifest."""
        return self.of(Level.PROBLEM)


class Lines:
    """Where the fields of a manifest stand in its text."""

    def __init__(self, source: str, text: str, overridden: Iterable[str] = ()) -> None:
        """`source` names the file. Text that is no YAML has no lines. `overridden`: paths of fields set by `--set`."""
        self._source = source
        self._overridden = tuple(overridden)
        try:
            self._root = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.YAMLError:
            self._root = None

    def located(self, sentence: str) -> str:
        """The sentence with `file:line: ` before it where it begins with a field; if it is absent, its parent's.

        With `--set: ` before it where the field was set so.
        """
        found = _FIELD.match(sentence)
        if found is not None and any(re.match(rf"{re.escape(path)}(?![\w-])", found[1]) for path in self._overridden):
            return f"--set: {sentence}"
        if found is None or self._root is None:
            return sentence
        line = self._line(found[1])
        return sentence if line is None else f"{self._source}:{line}: {sentence}"

    def _line(self, path: str) -> int | None:
        node, line = self._root, None
        for name, index in _STEP.findall(path):
            found = _item(node, int(index)) if index else _value(node, name)
            if found is None:
                break
            line, node = found
        return line


def _value(node: yaml.Node | None, name: str) -> tuple[int, yaml.Node] | None:
    entries = () if isinstance(node, yaml.SequenceNode) else _entries(node)
    return next(((line, value) for key, line, value in entries if key == name), None)


def _entries(node: yaml.Node | None) -> Iterator[tuple[str, int, yaml.Node]]:
    """Name, line and value of each; those that `<<` merges come last, so that own ones and earlier ones win."""
    if isinstance(node, yaml.SequenceNode):  # several are merged
        for item in node.value:
            yield from _entries(item)
    if isinstance(node, yaml.MappingNode):
        yield from ((str(key.value), key.start_mark.line + 1, value) for key, value in node.value if key.tag != _MERGE)
        for key, value in node.value:
            if key.tag == _MERGE:
                yield from _entries(value)


def _item(node: yaml.Node | None, index: int) -> tuple[int, yaml.Node] | None:
    if not isinstance(node, yaml.SequenceNode) or index >= len(node.value):
        return None
    return node.value[index].start_mark.line + 1, node.value[index]
