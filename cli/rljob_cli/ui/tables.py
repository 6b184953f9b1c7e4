"""Tables of plain text: how `rljob` draws one, and sizes in it. For commands and for `ui.plan` and `ui.queue`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

PLAIN_WIDTH = 160
"""Where stdout is no terminal: a line of a table is one line, also for grep."""


def table(*columns: str) -> Table:
    """A column whose name ends with a colon is of numbers."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        made.add_column(name.rstrip(":"), justify="right" if name.endswith(":") else "left", no_wrap=True)
    return made


def drawn(made: Table, plain_width: int = PLAIN_WIDTH, *, has_markup: bool = True) -> str:
    """The table as wide as the terminal; `plain_width` characters where stdout is none."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else plain_width, markup=has_markup)
    with console.capture() as text:
        console.print(made)
    return "\n".join(line.rstrip() for line in text.get().splitlines())


def size_text(size: int) -> str:
    """Bytes in the largest unit in which there is 1 or more."""
    value = float(size)
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
