"""The score in a judge's reply: a number behind `score`, as text or as JSON. Pure; used by the reward `judge`.

A reply that is a JSON object has that object's score. Any other has the score of its last line where that is a
statement (`Score: 8`), as judges are asked for one there, else the one that all its statements agree on, and only
without a statement that of an object which begins or ends it: judges cite what they grade, and a policy would write its
own reward by that. A statement begins a line or a sentence. Its number may have a sign, a fraction and an exponent, and
a scale beside it, `8/10` or `Score (0-10): 8`, which must be the one that was asked for. What could be read in two ways
is no score: ranges (`8-9`), `1,000`, another scale, `8+`, more numbers behind it.

A policy has its part in how long a reply is: patterns take steps in proportion to the length, hence their possessive
repetitions and the bounds of others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_workers.rewards.judge_objects import apart, scores_of, whole_object

_SIGNS = "+\\-\u2212\u2013"
"""Plus, hyphen, minus, and the dash that typography puts for it."""

_FIGURES = r"(?:\d++(?:[.,]\d++)*+|\.\d++)"

_BOUND = rf"[{_SIGNS}]?{_FIGURES}"

_RANGE = rf"(?:from\s+)?(?P<low>{_BOUND})\s*(?:[-\u2212\u2013\u2014]|to|\.\.+|,\s)\s*(?P<high>{_BOUND})"

_TOP = rf"(?:out\s+of|of|max\.?|/)\s*(?P<top>{_FIGURES})"

_BRACKETED = re.compile(rf"\s*[(\[]\s*(?:{_TOP}|{_RANGE})\s*(?:points\s*)?[)\]]", re.IGNORECASE)

_SPOKEN = re.compile(
    rf"\s*(?:out\s+of\s+(?P<top>{_FIGURES})|from\s+(?P<low>{_BOUND})\s+to\s+(?P<high>{_BOUND}))", re.IGNORECASE
)

_OUT_OF = re.compile(rf"\s*(?:/|out\s+of\b|of\b)\s*(?P<top>{_FIGURES})", re.IGNORECASE)

_PERCENT = re.compile(r"\s*(?:%|per\s?cent\b)", re.IGNORECASE)

_HEAD = re.compile(
    r"(?:(?:so|thus|therefore|hence|overall)\b,?\s+)?(?:(?:the|my|your|its|final|overall|total)\s+){0,3}score(?![\w-])"
    r"|I(?:\s+would|'d|\s+will|'ll)?\s+(?:give|assign|award)\s+(?:\w+\s+){0,3}?an?\s+(?:\w+\s+)?score(?![\w-])",
    re.IGNORECASE,
)

_SEPARATOR = re.compile(r"\s*(?P<mark>(?:is|was)\s*:|[:=\uff1a\u2014]|(?:is|was|of|equals)\b)", re.IGNORECASE)

_NUMBER = re.compile(
    rf"\s*(?P<open>[\"'(\[{{]?)\s*(?P<sign>[{_SIGNS}]?)(?P<figures>{_FIGURES})"
    rf"(?:[eE](?P<exponent>[{_SIGNS}]?\d+))?(?!\w)"
)

_CLOSED_BY = {"": "", '"': '"', "'": "'", "(": ")", "[": "]", "{": "}"}

_ANOTHER_NUMBER = re.compile(r"[^\w.;!?(\[]*\d|\W*(?:to|or|and|through|plus|minus|times|x|e)\W*+\d", re.IGNORECASE)
"""Text that, right behind a number, makes it one of several, or a part of a longer one."""

_GRADED = ("+", "-", "~", "*", "^", "\u00b1", "\u00d7", "\u2013", "\u2212")
"""Signs that, without a space behind a number, change it: `8+`."""


def read_score(reply: str, lowest: float, highest: float) -> float | None:
    """The score in `reply`, on the scale from `lowest` to `highest`; None where it has none, or more than one."""
    value = _read(reply, lowest, highest)
    return value if value is not None and lowest <= value <= highest else None


def _read(reply: str, lowest: float, highest: float) -> float | None:
    ends = [found.end() for found in _END_OF_THOUGHTS.finditer(reply)]
    if not ends and _BEGINNING_OF_THOUGHTS.match(reply):
        return None
    # A template may have opened the thoughts. All ends but one are mentioned: by the thoughts, or in a reason.
    for begin in dict.fromkeys((0, *ends[:1], *ends[-1:])):
        fields = whole_object(reply[begin:])
        if fields is not None:
            return _of_fields(fields, lowest, highest)
    return _of_text(reply[ends[-1] if ends else 0 :], lowest, highest)


def _of_text(text: str, lowest: float, highest: float) -> float | None:
    parts = apart(text)
    found = list(_statements(_plain_lines(parts.prose), lowest, highest))
    if not found:
        return _of_fields(parts.fields, lowest, highest)
    if found[-1].ends_reply and found[-1].begins_line:
        return found[-1].value
    values = {one.value for one in found}
    return values.pop() if len(values) == 1 else None


# --- JSON ------------------------------------------------------------------------------------------------------------


def _of_fields(fields: Sequence[tuple[str, Any]], lowest: float, highest: float) -> float | None:
    values = scores_of(fields)
    if len(values) != 1 or isinstance(values[0], bool):
        return None
    if isinstance(values[0], float):
        return values[0]
    return _of_number(values[0], lowest, highest) if isinstance(values[0], str) else None


# --- text ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Statement:
    value: float | None
    """None where it cannot be read."""
    begins_line: bool
    ends_reply: bool
    """True where it stands in the last line."""


def _statements(lines: list[str], lowest: float, highest: float) -> Iterator[_Statement]:
    for place, line in enumerate(lines):
        for number, sentence in enumerate(_SENTENCES.split(line)):
            head = _HEAD.match(sentence)
            if head is None:
                continue
            rest, following = sentence[head.end() :], lines[place + 1 : place + 2]
            if _is_heading(rest) and following:
                rest, is_last = f"{rest.rstrip(': ')}: {following[0]}", place + 2 == len(lines)
                if not _NUMBER_ALONE.fullmatch(following[0]):
                    continue
            else:
                is_last = place + 1 == len(lines)
            if (stated := _stated(rest, lowest, highest)) is not None:
                yield _Statement(stated.value, number == 0, is_last)


_SENTENCES = re.compile(r"(?<=[.!?])\s+")


_NUMBER_ALONE = re.compile(rf"[\"'(\[]?\s*[{_SIGNS}]?{_FIGURES}[^.A-Za-z]*\.?")


def _is_heading(rest: str) -> bool:
    """True where `score` is all of a line, with a scale at most: then its number is the next one."""
    scale = _BRACKETED.match(rest) or _SPOKEN.match(rest)
    return not rest[scale.end() if scale else 0 :].strip(" :\uff1a")


@dataclass(frozen=True, slots=True)
class _Stated:
    value: float | None


def _stated(rest: str, lowest: float, highest: float) -> _Stated | None:
    """The statement behind `score`; None where there is none, such as `score sheet`."""
    scale = _BRACKETED.match(rest) or _SPOKEN.match(rest)
    if scale is not None:
        rest = rest[scale.end() :]
    separator = _SEPARATOR.match(rest)
    if separator is not None:
        rest = rest[separator.end() :]
    elif not re.match(r"\s*[\"'(\[]?[.\d]", rest):
        # A sign without a separator is none that can be known: `Score -5` may have a dash for a colon.
        return None
    if scale is not None and not _is_asked(scale, lowest, highest):
        return _Stated(None)
    return _Stated(_of_number(rest, lowest, highest))


def _of_number(text: str, lowest: float, highest: float) -> float | None:
    """The number that a text begins with, on the asked scale; None where it is none, or one of several."""
    found = _NUMBER.match(text)
    number = None if found is None else _value(found)
    if found is None or number is None:
        return None
    rest, closing = text[found.end() :], _CLOSED_BY[found["open"]]
    scale = _OUT_OF.match(rest)
    if scale is not None:
        rest = rest[scale.end() :]
    if closing:
        if not rest.lstrip().startswith(closing):
            return None
        rest = rest.lstrip()[1:]
    if scale is None and (scale := _BRACKETED.match(rest) or _OUT_OF.match(rest)) is not None:
        rest = rest[scale.end() :]
    if scale is not None and not _is_asked(scale, lowest, highest):
        return None
    if (percent := _PERCENT.match(rest)) is not None:
        if (lowest, highest) != (0.0, 100.0):
            return None
        rest = rest[percent.end() :]
    return None if rest.startswith(_GRADED) or rest[:1].isalnum() or _ANOTHER_NUMBER.match(rest) else number


def _is_asked(scale: re.Match[str], lowest: float, highest: float) -> bool:
    """True where a stated scale is the one that was asked for."""
    parts = scale.groupdict()
    if parts.get("top") is not None:
        return _figures(parts["top"]) == highest
    return (_bound(parts["low"]), _bound(parts["high"])) == (lowest, highest)


def _bound(text: str) -> float | None:
    size = _figures(text.lstrip("+-\u2212\u2013"))
    return None if size is None else size if text[0] not in "-\u2212\u2013" else -size


def _value(found: re.Match[str]) -> float | None:
    size = _figures(found["figures"])
    if size is None:
        return None
    exponent = (found["exponent"] or "0").replace("\u2212", "-").replace("\u2013", "-")
    power = float(f"1e{exponent}")
    return size * power if found["sign"] in ("", "+") else -size * power


_PLAIN = re.compile(r"\d+|\d*\.\d+")


_DECIMAL_COMMA = re.compile(r"0,\d+|\d+,(?!\d{3}$)\d+")


_ENGLISH = re.compile(r"\d{1,3}(?:,\d{3}){2,}|\d{1,3}(?:,\d{3})+\.\d+")


_CONTINENTAL = re.compile(r"\d{1,3}(?:\.\d{3}){2,}|\d{1,3}(?:\.\d{3})+,\d+")


def _figures(text: str) -> float | None:
    """Figures with a decimal point or comma, and marks between thousands. None for `1,000`, which is either."""
    if _PLAIN.fullmatch(text):
        return float(text)
    if _DECIMAL_COMMA.fullmatch(text):
        return float(text.replace(",", "."))
    if _ENGLISH.fullmatch(text):
        return float(text.replace(",", ""))
    return float(text.replace(".", "").replace(",", ".")) if _CONTINENTAL.fullmatch(text) else None


# --- what is no part of a statement ----------------------------------------------------------------------------------


_BEGINNING_OF_THOUGHTS = re.compile(r"\s*<(?:think|thinking|reasoning)>", re.IGNORECASE)


_END_OF_THOUGHTS = re.compile(r"</(?:think|thinking|reasoning)>", re.IGNORECASE)


_LATEX = re.compile(r"\\(?:boxed|fbox|text|textbf|mathbf|mathrm)\s*\{([^{}]*)\}")


_MARKS = re.compile(
    r"\*+|`+|\$+|\\[()\[\]]|(?<!\w)_+|(?<!_)_++(?!\w)|</?(?:b|i|em|strong|p|u|h[1-6]|br)\s*/?>", re.IGNORECASE
)


_TAGGED = re.compile(r"(?P<line>^[^\S\n]*)?<score>(?P<number>[^<]*)</score>", re.MULTILINE | re.IGNORECASE)


_BULLET = re.compile(r"\s*(?:#+\s*|[-\u2022+]\s+|\d+[.)]\s+)*")


def _plain_lines(text: str) -> list[str]:
    """Lines with something in them, without markup; a quotation (`> Score: 10`) is none of the judge's own."""
    for _ in range(3):  # one in another
        text = _LATEX.sub(r"\1", text)
    text = _TAGGED.sub(_statement_of_tag, text)
    text = _MARKS.sub("", text).replace("\u200b", "")
    own = (line for line in text.splitlines() if not line.lstrip().startswith(">"))
    stripped = (_BULLET.sub("", line, count=1).strip() if _HEAD.search(line) else line.strip() for line in own)
    return [line for line in stripped if line]


def _statement_of_tag(found: re.Match[str]) -> str:
    """A line where it begins one, else a sentence."""
    number = found["number"].strip()
    return f". Score: {number}. " if found["line"] is None else f"\nScore: {number}\n"
