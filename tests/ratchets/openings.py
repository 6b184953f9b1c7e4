"""Sentences that begin with Of, What, Whose, That, Those or By: the reader meets neither subject nor verb there.

Pure. A docstring, comment, message or paragraph counts once, by its first word.
"""

import re
from collections.abc import Iterable, Iterator

from tests.ratchets.source import Text

OPENINGS = frozenset({"of", "what", "whose", "that", "those", "by"})
_FIRST = re.compile(r"[\s*_(\"']*([A-Za-z]+)\b(?!['\u2019.:])")
_FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.|#+)\s+")


def openers(texts: Iterable[Text]) -> tuple[Text, ...]:
    """Texts that begin with one of `OPENINGS`, in whatever case."""
    return tuple(each for each in texts if _first(each.text).lower() in OPENINGS)


def sentence_openers(texts: Iterable[Text]) -> tuple[Text, ...]:
    """The same in capitals alone: a message is often made of parts, and only its first one begins a sentence."""
    return tuple(each for each in openers(texts) if _first(each.text)[0].isupper())


def paragraphs(page: str) -> Iterator[Text]:
    """Paragraphs, headings and list items of a page in Markdown; tables and blocks of code are none."""
    text = _FENCE.sub(lambda block: "\n" * block.group().count("\n"), page)
    begins = True
    for number, line in enumerate(text.split("\n"), 1):
        item = _ITEM.match(line)
        prose = bool(line.strip()) and not line.startswith(("|", "    ", "<", "!"))
        if prose and (begins or item):
            yield Text(number, line[item.end() :] if item else line)
        begins = not line.strip() or line.startswith("#")


def _first(text: str) -> str:
    found = _FIRST.match(text)
    return found.group(1) if found else ""
