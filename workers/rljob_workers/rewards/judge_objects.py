"""JSON objects in a judge's reply: the reply itself, or one apart from prose. Pure; used by `judge_scores`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class Fields(list[tuple[str, Any]]):
    """Names and values of an object: a name that is there twice stays twice."""


_DECODER = json.JSONDecoder(object_pairs_hook=Fields, parse_int=float)


_FENCES = re.compile(r"\A```\w*|```\Z")


def whole_object(text: str) -> Fields | None:
    """The object that all of `text` is, but for marks of code around it; None where it is none."""
    bare = _FENCES.sub("", text.strip()).strip()
    if not bare.startswith("{"):
        return None
    try:
        found = _DECODER.decode(bare)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, Fields) else None


@dataclass(frozen=True, slots=True)
class Parts:
    """A reply's prose, and its object where that is apart from it."""

    prose: str
    fields: Sequence[tuple[str, Any]] = ()
    """Names and values of an object with a score; empty where there is none."""


_BEGINS = re.compile(r"\s*(?:```\w*\s*)?")


_GOES_ON_BELOW = re.compile(r"\s*?(?:```)?[^\S\n]*\n")


_ENDS = re.compile(r"[\s.`]*")


def apart(text: str) -> Parts:
    """The first object apart from prose, where it begins or ends the text and has a score.

    An object that was cut off is left out of the prose: its reason may cite a score.
    """
    begin = text.find("{")
    if begin < 0:
        return Parts(text)
    try:
        found, end = _DECODER.raw_decode(text, begin)
    except json.JSONDecodeError as error:
        is_cut_off = error.msg.startswith("Unterminated string") or error.pos >= len(text.rstrip())
        return Parts(text[:begin] if is_cut_off else text)
    except (ValueError, RecursionError):  # integers of thousands of figures, objects in thousands of others
        return Parts(text)
    before, behind = text[:begin], text[end:]
    is_apart = _ENDS.fullmatch(behind) or (_BEGINS.fullmatch(before) and _GOES_ON_BELOW.match(behind))
    if not isinstance(found, Fields) or not scores_of(found) or not is_apart:
        return Parts(text)
    return Parts(f"{before}\n{behind}", found)


def scores_of(fields: Sequence[tuple[str, Any]]) -> list[Any]:
    """Values under the name `score`, in small or capital letters."""
    return [value for name, value in fields if name.strip().casefold() == "score"]
