"""What is measured of one run, of the lines of its steps. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Step = Mapping[str, float]
"""A line of metrics.jsonl, or of `trl_grpo`."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Which steps count: those in between are of a full pipeline."""

    before: int
    """First steps, while the pipeline fills."""
    steps: int
    after: int
    """Last ones: engines have nothing new to begin, and slow answers that others were trained before come now."""

    @property
    def all(self) -> int:
        """Steps of the run."""
        return self.before + self.steps + self.after

    @classmethod
    def at(cls, max_staleness: int, steps: int) -> Counted:
        """So many steps of a job."""
        return cls(max_staleness + 3, steps, max_staleness + 2)


@dataclass(frozen=True, slots=True)
class Figures:
    """A line of the table."""

    variant: str
    max_staleness: int | None
    """None: of TRL, which has none."""
    steps: int
    """That were counted."""
    samples_per_second: float
    of_possible: float | None
    """Share of what engines and trainer could make at most; None: that is not known."""
    actor_idle: float | None
    engines_idle: float | None
    staleness_mean: float | None
    """Versions, of all tokens that were trained."""
    staleness_max: float | None
    too_old: float | None
    """Share of the drawn tokens that were not learnt from, for their age; None: of orders that have none."""
    length_first: float
    """Mean response of the first third of the counted steps, in tokens."""
    length_last: float
    """Of the last third."""

    @property
    def pace(self) -> float | None:
        """Share of what is possible that slots in use have made: 1 where simulated engines are as fast as they shall be
        and the slower part; None: not known."""
        if self.of_possible is None or self.engines_idle is None:
            return None
        return self.of_possible / max(1e-9, 1 - self.engines_idle)


def figures_of(
    variant: str, max_staleness: int | None, lines: Sequence[Step], counted: Counted, possible: float | None
) -> Figures:
    """`lines` of all steps in order; `possible` in samples per second."""
    if len(lines) != counted.all:
        raise ValueError(f"{variant}: {len(lines)} steps were trained, not {counted.all}.")
    begun, part = lines[counted.before - 1], lines[counted.before : counted.before + counted.steps]
    rate = sum(line["samples"] for line in part) / (part[-1]["time"] - begun["time"])
    third = max(1, counted.steps // 3)
    return Figures(
        variant=variant,
        max_staleness=max_staleness,
        steps=counted.steps,
        samples_per_second=rate,
        of_possible=None if possible is None else rate / possible,
        actor_idle=_mean(part, "idle/actor", by="seconds"),
        engines_idle=_mean(part, "idle/engines", by="seconds"),
        staleness_mean=_mean(part, "staleness/mean"),
        staleness_max=max((line["staleness/max"] for line in part if "staleness/max" in line), default=None),
        too_old=_mean(part, "staleness/too_old_share"),
        length_first=_length(part[:third]),
        length_last=_length(part[-third:]),
    )


def _mean(lines: Sequence[Step], name: str, by: str = "tokens") -> float | None:
    """Weighed by another figure of each step."""
    found = [line for line in lines if name in line]
    return sum(line[name] * line[by] for line in found) / sum(line[by] for line in found) if found else None


def _length(lines: Sequence[Step]) -> float:
    return sum(line["tokens"] for line in lines) / sum(line["samples"] for line in lines)


def possible_rate(
    *, slots: int, tokens_per_second: float, mean_length: float, trained_per_second: float | None = None
) -> float:
    """Samples per second of engines that are never idle, or of the trainer where that is slower."""
    made = slots * tokens_per_second / mean_length
    return made if trained_per_second is None else min(made, trained_per_second)


HEAD = (
    f"{'variant':<34} {'staleness':>9} {'samples/s':>9} {'x Bound':>7} {'possible':>8} {'actor':>6} {'engines':>7}"
    f" {'versions old':>13} {'too':>5} {'mean length':>13}\n"
    f"{'':<34} {'<=':>9} {'':>9} {'':>7} {'':>8} {'idle':>6} {'idle':>7} {'mean, max':>13} {'old':>5}"
    f" {'first, last':>13}"
)


def row_of(figures: Figures, bound: Figures | None) -> str:
    """A row below HEAD; `bound`: the variant Bound at the same staleness."""
    staleness = "" if figures.max_staleness is None else str(figures.max_staleness)
    ratio = "" if bound is None else f"{figures.samples_per_second / bound.samples_per_second:.2f}"
    old = "" if figures.staleness_mean is None else f"{figures.staleness_mean:.2f}, {figures.staleness_max or 0:.0f}"
    lengths = f"{figures.length_first:.1f}, {figures.length_last:.1f}"
    return (
        f"{figures.variant:<34} {staleness:>9} {figures.samples_per_second:>9.1f} {ratio:>7}"
        f" {_share(figures.of_possible):>8} {_share(figures.actor_idle):>6} {_share(figures.engines_idle):>7}"
        f" {old:>13} {_share(figures.too_old):>5} {lengths:>13}"
    )


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
