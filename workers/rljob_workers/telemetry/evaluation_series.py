"""Under which name `/metrics` shows each figure of the last evaluation, by set and by source. Pure.

A gauge of the newest evaluated version; without the label `source` it is of the whole set. `k` is that of mean@k, std@k
and pass@k. Called by the coordinator; docs/metrics.md is made of `FIGURES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rljob_api.wire.observation import EvaluationReport
from rljob_workers.evaluation import PREFIX
from rljob_workers.telemetry.exposition import Family, Sample


@dataclass(frozen=True, slots=True)
class EvaluationFigure:
    """A figure as `evaluations.jsonl` names it below its set, `@k` for those that have a k."""

    name: str
    unit: str
    formula: str
    series: str

    @property
    def has_k(self) -> bool:
        """Whether it is of k samples."""
        return self.name.endswith("@k")


FIGURES: tuple[EvaluationFigure, ...] = (
    EvaluationFigure(
        "mean@k", "", "mean over prompts of the mean reward of their k answers", "rljob_evaluation_reward_mean"
    ),
    EvaluationFigure(
        "std@k",
        "",
        "mean over prompts of the standard deviation of their k rewards (divided by k)",
        "rljob_evaluation_reward_std",
    ),
    EvaluationFigure(
        "mean_error",
        "",
        "standard error of mean@k: deviation of the prompts' means (n - 1) over the root of their number",
        "rljob_evaluation_reward_mean_error",
    ),
    EvaluationFigure(
        "pass@k",
        "share",
        "chance that one of k answers passes: mean over prompts of 1 - C(n - c, k) / C(n, k)",
        "rljob_evaluation_pass_share",
    ),
    EvaluationFigure("response_length", "tokens", "mean of an answer", "rljob_evaluation_response_length_tokens"),
    EvaluationFigure(
        "truncated_share", "share", "answers that are as long as they may be", "rljob_evaluation_truncated_share"
    ),
    EvaluationFigure(
        "unscored_share", "share", "answers that the reward could not score", "rljob_evaluation_unscored_share"
    ),
    EvaluationFigure("prompts", "", "that were answered", "rljob_evaluation_prompts"),
    EvaluationFigure("samples", "", "answers", "rljob_evaluation_samples"),
    EvaluationFigure(
        "set_aside", "prompts", "of which an engine died too often; only of a set", "rljob_evaluation_set_aside_prompts"
    ),
)

VERSION = "rljob_evaluation_version"

_BY_NAME = {figure.name: figure for figure in FIGURES}

FAMILIES: Mapping[str, Family] = {
    VERSION: Family("Newest version that was evaluated."),
    **{
        figure.series: Family(
            f"{figure.name} of the newest evaluation{f' ({figure.unit})' if figure.unit else ''}: {figure.formula}.",
            ("set", "k") if figure.has_k else ("set",),
            ("source",),
        )
        for figure in FIGURES
    },
}


def samples_of(report: EvaluationReport | None) -> Iterator[Sample]:
    """Samples of all figures that it has."""
    if report is None:
        return
    yield VERSION, (), float(report.version)
    for key, value in report.metrics.items():
        set_name, _, rest = key.removeprefix(PREFIX).partition("/")
        source, _, name = rest.rpartition("/")
        kind, at, k = name.partition("@")
        figure = _BY_NAME.get(f"{kind}@k" if at else name)
        if figure is None:
            continue
        labels = (("set", set_name), *((("k", k),) if at else ()), *((("source", source),) if source else ()))
        yield figure.series, labels, value
