"""What was measured: a value per side and round, and the ratios of the medians. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

OURS = "ours"
PEER = "peer"


class Unit(StrEnum):
    """How a figure is shown, and whether less or more of it is better."""

    MILLISECONDS = "ms"
    GIGABYTES_PER_SECOND = "GB/s"
    REQUESTS_PER_SECOND = "requests/s"
    ROWS_PER_SECOND = "rows/s"
    TIMES = "x"
    MEBIBYTES = "MiB"
    PERCENT_OF_CORE = "% of a core"

    @property
    def less_is_better(self) -> bool:
        return self in (Unit.MILLISECONDS, Unit.TIMES, Unit.MEBIBYTES, Unit.PERCENT_OF_CORE)


@dataclass
class Figure:
    """One line of the table."""

    workload: str
    name: str
    unit: Unit
    aim: float | None = None
    """Least ratio of ours to the best of the peer's sides."""
    limit: float | None = None
    """Greatest value of ours."""
    values: dict[str, list[float]] = field(default_factory=dict)
    """Side -> value of every round."""

    def add(self, side: str, value: float) -> None:
        self.values.setdefault(side, []).append(value)

    def medians(self) -> dict[str, float]:
        return {side: statistics.median(values) for side, values in self.values.items()}

    def best_peer(self) -> str | None:
        """The peer's best side: ratios are to the strongest opponent."""
        peers = {side: value for side, value in self.medians().items() if side.startswith(PEER)}
        if not peers:
            return None
        return (min if self.unit.less_is_better else max)(peers, key=lambda side: peers[side])

    def ratios(self) -> dict[str, float]:
        """Of each of our sides to the peer's best: above 1, ours is better."""
        best, medians = self.best_peer(), self.medians()
        if best is None:
            return {}
        peer = medians[best]
        return {
            side: peer / value if self.unit.less_is_better else value / peer
            for side, value in medians.items()
            if side.startswith(OURS)
        }


def as_rows(figures: Sequence[Figure]) -> list[Mapping[str, object]]:
    """For `--output json`."""
    return [
        {
            "workload": figure.workload,
            "figure": figure.name,
            "unit": figure.unit.value,
            "aim": figure.aim,
            "limit": figure.limit,
            "medians": {side: round(value, 4) for side, value in figure.medians().items()},
            "best_peer": figure.best_peer(),
            "ratios": {side: round(ratio, 3) for side, ratio in figure.ratios().items()},
            "rounds": {side: [round(value, 4) for value in values] for side, values in figure.values.items()},
        }
        for figure in figures
    ]
