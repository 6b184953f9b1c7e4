"""The answers to `rljob evaluate` as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rljob_cli.ui.tables import drawn, table

if TYPE_CHECKING:
    from rljob_api.spec.evaluation import EvaluationSetSpec
    from rljob_api.wire.checkpoint_evaluation import CheckpointEvaluation, ScoredSamples

_PREFIX = "eval/"

_LAST = ("response_length", "truncated_share", "unscored_share", "prompts", "samples")
"""Columns that follow what the answers are worth."""


def progress_text(progress: ScoredSamples) -> str:
    """How far it is."""
    if progress.scored is None:
        return "engines start"
    return f"scored {progress.scored} of {progress.total} samples ({progress.scored / max(1, progress.total):.0%})"


def results_text(found: CheckpointEvaluation, sets: Sequence[EvaluationSetSpec], seconds: float) -> str:
    """A row for each set, and below it for each of its sources."""
    version = "" if found.version is None else f" (version {found.version})"
    again = f", {found.reward_retries} calls of rewards made again" if found.reward_retries else ""
    lines = [f"{found.folder}{version}: {found.samples} samples in {seconds:.1f} s{again}"]
    for each in sets:
        rows = list(_rows(found.metrics, each.name))
        found_names = rows[0][1]  # a set's; its sources have no others
        names = [name for name in found_names if name not in _LAST] + [name for name in _LAST if name in found_names]
        made = table("set", *(f"{name}:" for name in names))
        for title, values in rows:
            made.add_row(title, *(f"{values[name]:.4g}" if name in values else "" for name in names))
        lines += ["", drawn(made)]
    return "\n".join(lines)


def _rows(metrics: Mapping[str, float], name: str) -> Iterator[tuple[str, dict[str, float]]]:
    """Rows of a set, then of its sources in their order. A source may have slashes in its name."""
    by_title: dict[str, dict[str, float]] = {name: {}}
    for key, value in metrics.items():
        if key.startswith(f"{_PREFIX}{name}/"):
            title, _, metric = key.removeprefix(_PREFIX).rpartition("/")
            by_title.setdefault(title, {})[metric] = value
    yield from by_title.items()
