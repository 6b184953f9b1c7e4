"""Samples for people: a page for each, or a line in a table. Pure, but for the width of the terminal.

Text that a model has made is shown without its control characters: a terminal would obey them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rljob_api.base import without_middle
from rljob_cli.generations import Line

if TYPE_CHECKING:
    from rich.table import Table

PLAIN_WIDTH = 160
"""Where nobody looks: a line of a table is one line, also for grep."""
CUT_CHARACTERS = 40
"""Of a text in a table."""


def pages_text(lines: Sequence[Line], max_characters: int | None) -> str:
    """A page for each sample; texts longer than `max_characters` are without their middle."""
    return "\n\n".join("\n".join([_headline(line), *_texts(line, max_characters)]) for line in lines)


def table_text(lines: Sequence[Line]) -> str:
    """A line for each sample."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    with console.capture() as drawn:
        console.print(_table(lines))
    return "\n".join(line.rstrip() for line in drawn.get().splitlines())


def _headline(line: Line) -> str:
    worth = [f"reward {line['reward']:g}", f"advantage {line['advantage']:+.3g}"] if line["valid"] else ["not scored"]
    tokens = f"{line['promptTokens']} + {line['responseTokens']} tokens"
    facts = [_place(line), *worth, _finish(line), tokens, f"made by {_versions(line)}"]
    return f"== {' | '.join(facts)}"


def _place(line: Line) -> str:
    return f"rollout {line['rollout']} group {line['group']} sample {line['index']}"


def _finish(line: Line) -> str:
    reason: str = line["finishReason"]
    return {"stop": "stopped", "length": "cut off", "abort": "aborted"}.get(reason, reason)


def _versions(line: Line) -> str:
    """Versions in the order of the tokens, with how many each has made where there are several."""
    spans = line["versions"]
    if len(spans) == 1:
        return f"v{spans[0]['version']}"
    return ", ".join(f"v{span['version']} ({span['end'] - span['start']})" for span in spans)


def _texts(line: Line, max_characters: int | None) -> list[str]:
    return [
        f"{name}{_indented(_shown(line[key], max_characters))}"
        for name, key in (("prompt    ", "prompt"), ("response  ", "response"))
    ]


def _indented(text: str) -> str:
    return text.replace("\n", "\n          ")


def _shown(text: str, limit: int | None) -> str:
    whole = harmless(text)
    return whole if limit is None else without_middle(whole, limit, ", see --full")


def harmless(text: str) -> str:
    """Control characters as escapes, but for line breaks and tabs."""
    return "".join(char if char in "\n\t" or char.isprintable() else repr(char)[1:-1] for char in text)


def _table(lines: Sequence[Line]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("rollout", "group", "sample", "reward", "advantage"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("finish", "tokens", "made by", "prompt", "response"):
        table.add_column(name, no_wrap=True)
    for line in lines:
        place = [str(line[key]) for key in ("rollout", "group", "index")]
        worth = [f"{line['reward']:g}", f"{line['advantage']:+.3g}"] if line["valid"] else ["-", "-"]
        texts = [_cut(harmless(line[key])) for key in ("prompt", "response")]
        facts = [*place, *worth, line["finishReason"], str(line["responseTokens"]), _versions(line), *texts]
        table.add_row(*map(Text, facts))  # not as markup, which brackets in a text would be
    return table


def _cut(text: str) -> str:
    flat = text.replace("\n", "\\n").replace("\t", "\\t")
    return flat if len(flat) <= CUT_CHARACTERS else f"{flat[: CUT_CHARACTERS // 2]}...{flat[-CUT_CHARACTERS // 2 :]}"
