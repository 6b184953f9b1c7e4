"""Shapes of calls to Redis: what a call has for its name, its keys and the kind of each argument. Pure.

Ids, counters, times and bytes become their kind; names stay. A client is named by its role, as it is registered.
Neither the order of calls nor how often a question is asked again is the same in two runs: a shape is recorded once.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.recorded.jobs.types import types_of

COUNTED = ("raise_epoch", "begin_life", "publish", "record", "commit_training")
"""Functions that a job without trouble calls once for each epoch, rank, version, checkpoint and step."""

OF_MANY = ("beats", "collected")
"""Functions that take as many ranks or chunks as there are just now: their arguments behind the caller are left out."""

_LINE = re.compile(rb"\+[\d.]+ \[\d+ (?P<client>\S+?)\] (?P<call>.*)\r\n", re.DOTALL)
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_FUNCTION = re.compile(r"_[0-9a-f]{12}$")
_NUMBER = re.compile(r"[-+(]?(\d+(\.\d+)?(e[-+]?\d+)?|inf)")
_ID = re.compile(r"[0-9a-f]{8,}")
_DTYPE = re.compile(r"b?u?(float|int)\d+")
_BYTES = re.compile(r"\\[xab]")
_PIECES = re.compile(r"([|:/@,-])")


@dataclass(frozen=True, slots=True)
class Call:
    """One call, its arguments without quotes, as MONITOR escapes them."""

    is_of_a_script: bool
    parts: tuple[str, ...]

    @property
    def function(self) -> str | None:
        """The function of the queue that it calls, without the digest of its library."""
        return _FUNCTION.sub("", self.parts[1]) if self.parts[0].upper() == "FCALL" else None


def calls_of(lines: Iterable[bytes]) -> Iterator[Call]:
    """Without those that clients of any program make when they connect or look whether the server is there."""
    for line in lines:
        found = _LINE.fullmatch(line)
        assert found is not None, line
        parts = tuple(_QUOTED.findall(found["call"].decode()))
        if parts[0].upper() not in ("AUTH", "HELLO", "CLIENT", "PING", "INFO"):
            yield Call(found["client"] == b"lua", parts)


def shapes(lines: Iterable[bytes]) -> set[str]:
    """The shapes of a server's calls, with keys and types of the JSON in them; of commands of a script their keys.

    The layout of columns is the same in every run, and stands there as it is.
    """
    calls = list(calls_of(lines))
    roles = _roles(calls)
    found: set[str] = set()
    for call in calls:
        if call.is_of_a_script:
            found.add(f"script {_kinds(call.parts[:1] + call.parts[1:2], {})}")
        else:
            shape = _of_client(call, roles)
            found |= {shape, *(f"{shape} | {fact}" for part in call.parts for fact in _facts_of(part, call.function))}
    return found


def counts(lines: Iterable[bytes]) -> set[str]:
    """How often each counted function was called; a call that is repeated has its number and counts once."""
    distinct = {call.parts for call in calls_of(lines) if call.function in COUNTED}
    of = Counter(_FUNCTION.sub("", parts[1]) for parts in distinct)
    return {f"{name}: {of[name]}" for name in COUNTED}


def _roles(calls: Iterable[Call]) -> Mapping[str, str]:
    """Incarnation -> role and rank, as the coordinator registers them."""
    registered = (call.parts for call in calls if call.function == "begin_life")
    return {parts[7]: f"<{parts[8]}>" for parts in registered}


def _of_client(call: Call, roles: Mapping[str, str]) -> str:
    command, *arguments = call.parts
    if command.upper() == "FUNCTION":
        return f"{command} {arguments[0]} {arguments[1]} the library"
    if command.upper() == "EVAL":
        return f"{command} a script {_kinds(arguments[1:], roles)}"
    if call.function is None:
        return f"{command} {_kinds(arguments, roles)}".rstrip()
    caller = next((part for part in arguments[3:5] if part in roles or part.startswith("admin-")), "")
    behind = arguments[1:5] if call.function in OF_MANY else arguments[1:]
    return f"FCALL {call.function} {_kinds(behind, {caller: roles.get(caller, '<admin>')})}"


def _kinds(parts: Sequence[str], names: Mapping[str, str]) -> str:
    return " ".join(_collapsed([_kind(part, names) for part in parts]))


def _kind(part: str, names: Mapping[str, str]) -> str:
    """A part's kind; a key's, with that of each of its pieces."""
    if not part or part in names:
        return names[part] if part else "EMPTY"
    if _BYTES.search(part):
        return "BYTES"
    if part[:1] in ("{", "["):
        return "JSON"
    if " " in part:
        return "TEXT"
    if _NUMBER.fullmatch(part):
        return "#"
    return "".join(_kind_of_piece(piece, names) for piece in _PIECES.split(part.replace('\\"', "")))


def _kind_of_piece(piece: str, names: Mapping[str, str]) -> str:
    if piece in names:
        return names[piece]
    if _ID.fullmatch(piece):
        return "ID"
    return piece if _DTYPE.fullmatch(piece) else re.sub(r"\d+", "#", piece)


def _facts_of(part: str, function: str | None) -> Iterator[str]:
    if part[:1] not in ("{", "[") or _BYTES.search(part):
        return
    try:
        text = json.loads(f'"{part}"')
        value = json.loads(text)
    except ValueError:
        yield "no JSON"
        return
    yield from [text] if function == "adopt_layout" else types_of(value)


_LONGEST_PERIOD = 6


def _collapsed(parts: list[str]) -> list[str]:
    """Repetitions once, with a plus: how many rows, keys or ranks there are in a call is chance."""
    found: list[str] = []
    at = 0
    while at < len(parts):
        period = next((n for n in range(1, _LONGEST_PERIOD + 1) if parts[at : at + n] == parts[at + n : at + 2 * n]), 0)
        if not period:
            found.append(parts[at])
            at += 1
            continue
        unit = parts[at : at + period]
        while parts[at : at + period] == unit:
            at += period
        found.append(f"({' '.join(unit)})+" if period > 1 else f"{unit[0]}+")
    return found
