"""The page of metrics says of every figure of a step what the tables of the code say of it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from rljob_workers.algorithms.aggregation import token_mean
from rljob_workers.algorithms.objective import Metric
from rljob_workers.algorithms.supervised import SupervisedObjective
from rljob_workers.algorithms.value import ValueObjective
from rljob_workers.telemetry.evaluation_series import FIGURES
from rljob_workers.telemetry.step_series import series_of
from rljob_workers.trainers.megatron.expert_load import EXPERT_METRICS
from rljob_workers.training.step_metrics import CRITIC_METRICS, METRICS, Figure
from tests.objectives import clip_objective

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"


def table(title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """In Markdown."""
    lines = ("|".join(["", *(f" {cell} " if cell else " " for cell in row), ""]) for row in rows)
    return "\n".join([f"## {title}", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *lines, ""])


def series(name: str) -> str:
    """What Prometheus calls a figure."""
    family, labels = series_of(name)
    return f"`{family}`" + "".join(f", {key} `{value}`" for key, value in labels)


def plain(title: str, figures: Iterable[Figure]) -> str:
    rows = [(f"`{one.name}`", one.unit, one.formula, series(one.name)) for one in figures]
    return table(title, ("name", "unit", "what", "on a cluster"), rows)


def objective(title: str, metrics: Iterable[Metric]) -> str:
    rows = [(f"`{one.name}`", one.unit, one.reduction.value, one.formula, series(one.name)) for one in metrics]
    return table(title, ("name", "unit", "taken as", "what", "on a cluster"), rows)


def evaluations() -> str:
    """In `evaluations.jsonl`, and on a cluster of the newest of them."""
    labels = {True: ", by `set`, `k` and, of one source, `source`", False: ", by `set` and, of one source, `source`"}
    rows = [(f"`eval/SET/{one.name}`", one.unit, one.formula, f"`{one.series}`{labels[one.has_k]}") for one in FIGURES]
    return table("Of an evaluation", ("name", "unit", "what", "on a cluster"), rows)


def tables() -> str:
    policy = clip_objective(token_mean, kl=0.1, cap=2.0)
    return "\n".join(
        [
            plain("Of every step", METRICS),
            objective("Of the policy", policy.metrics),
            objective("Of a critic", ValueObjective.metrics),
            plain("Of a critic's steps", CRITIC_METRICS),
            objective("Of experts, with the backend Megatron", EXPERT_METRICS),
            objective("Of supervised fine-tuning", SupervisedObjective.metrics),
            evaluations(),
        ]
    )


def test_the_page_is_that_of_the_tables() -> None:
    text = PAGE.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    wanted = f"{head}{BEGIN}\n\n{tables()}\n{END}{tail}"
    if os.environ.get("RLJOB_WRITE_GOLDENS"):
        PAGE.write_text(wanted)
    assert text == wanted, "run it with RLJOB_WRITE_GOLDENS=1"


def test_names_are_unique_and_have_a_group() -> None:
    tables = (METRICS, clip_objective().metrics, ValueObjective.metrics, CRITIC_METRICS, EXPERT_METRICS)
    names = [one.name for metrics in tables for one in metrics]
    assert len(set(names)) == len(names)
    assert all(name.count("/") == 1 for name in names)
