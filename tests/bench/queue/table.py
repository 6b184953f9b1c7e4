"""The figures as a table for people."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from tests.bench.queue.figures import OURS, PEER, Figure, Unit

_DIGITS = {Unit.MILLISECONDS: 3, Unit.GIGABYTES_PER_SECOND: 2, Unit.TIMES: 2, Unit.PERCENT_OF_CORE: 2}


def print_table(figures: Sequence[Figure], load_before: float) -> None:
    """Medians of every side, ratios to the peer's best side of that line, and the aims."""
    sides = sorted(dict.fromkeys(side for figure in figures for side in figure.values), key=_place)
    ours = [side for side in sides if any(side in figure.ratios() for figure in figures)]
    table = Table(title="TransferQueue beside the peer: medians; ratios are to the peer's best side of the line")
    for column in ("", "figure", "unit"):
        table.add_column(column, no_wrap=True)
    for side in sides:
        table.add_column(side, justify="right")
    for side in ours:
        table.add_column(f"{side} / peer", justify="right")
    table.add_column("aim", justify="right")
    for figure in figures:
        table.add_row(*_cells(figure, sides, ours))
    load = os.getloadavg()[0]
    Console(width=max(120, 40 + 14 * (len(sides) + len(ours)))).print(
        table, f"{os.cpu_count()} cores; load average before {load_before:.1f}, after {load:.1f}"
    )


def _place(side: str) -> tuple[bool, bool, str]:
    """Ours first, then the peer's, then what is neither."""
    return not side.startswith(OURS), not side.startswith(PEER), side


def _cells(figure: Figure, sides: Sequence[str], ours: Sequence[str]) -> list[str]:
    medians, ratios = figure.medians(), figure.ratios()
    cells = [figure.workload, figure.name, figure.unit.value]
    cells += [_value(side, medians.get(side), figure) for side in sides]
    cells += [_ratio(ratios.get(side), figure.aim) for side in ours]
    aim = "" if figure.aim is None else f">= {figure.aim:g}x"
    return [*cells, aim if figure.limit is None else f"<= {figure.limit:g}"]


def _value(side: str, value: float | None, figure: Figure) -> str:
    if value is None:
        return ""
    judged = figure.limit if side.startswith(OURS) else None
    colour = "" if judged is None else "[green]" if value <= judged else "[red]"
    return f"{colour}{value:.{_DIGITS.get(figure.unit, 1)}f}"


def _ratio(ratio: float | None, aim: float | None) -> str:
    if ratio is None:
        return ""
    colour = "" if aim is None else "[green]" if ratio >= aim else "[red]"
    return f"{colour}{ratio:.2f}x"
