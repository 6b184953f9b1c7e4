"""Text of what a record of a checkpoint has, and of what was exported. Pure; for `rljob checkpoint`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from rljob_api.roles import VALUE_ROLE
from rljob_api.spec.measured import BestMode
from rljob_api.wire.checkpoint_report import (
    CheckpointReport,
    ExportReport,
    Progress,
    RecordedModel,
    RecordedReference,
    RecordedRole,
    RecordedState,
)
from rljob_api.wire.checkpoints import BestCheckpoint
from rljob_cli.ui.tables import size_text

_KINDS = {
    "exp_avg": "first moments",
    "exp_avg_sq": "second moments",
    "parameter": "exact weights",
    "own": "random state",
}
"""Kinds of state in a reader's terms."""


def report_text(report: CheckpointReport) -> str:
    """A block of a few lines."""
    rows = [
        ("job", report.job or "not known here: the record lies outside of its run"),
        ("version", f"{_version(report)}{_best(report.best, Path(report.folder).name)}"),
        ("written", f"{report.written_at:%Y-%m-%d %H:%M:%S} UTC{'' if report.is_recorded else ', not recorded'}"),
        ("files", f"{report.files}, {size_text(report.bytes)}; {_state_of_files(report)}"),
        *(row for role in report.roles for row in _role(role)),
    ]
    if report.reference is not None:
        rows.append(("reference", _reference(report.reference)))
    if report.others:
        rows.append(("beside it", ", ".join(f"{name}{_best(report.best, name)}" for name in report.others)))
    title = f"{report.folder}{_latest(report.latest_of)}"
    damage = [f"DAMAGED: {text}" for text in report.damage]
    return "\n".join([title, *(f"  {name:<10} {text}" for name, text in rows), *damage])


def export_text(report: ExportReport) -> str:
    """States what was written, from what, and how it is loaded."""
    files = "1 file" if report.parts == 1 else f"{report.parts} files"
    kind = "ForSequenceClassification" if report.role is VALUE_ROLE else "ForCausalLM"
    return "\n".join(
        [
            f"{report.to}: {_family(report.model_type, report.architecture)}, {report.parameters:,} parameters in"
            f" {_types(report.dtypes)}, {size_text(report.bytes)} in {files}",
            f"  of         {report.record}{_latest(report.latest_of)}",
            f"  tensors    {_origins(report)}",
            f'  load it    AutoModel{kind}.from_pretrained("{report.to}")',
        ]
    )


def progress_text(progress: Progress) -> str:
    """How far it is."""
    share = progress.done_bytes / max(1, progress.total_bytes)
    return f"{progress.what} {size_text(progress.done_bytes)} of {size_text(progress.total_bytes)} ({share:.0%})"


def _latest(folder: str | None) -> str:
    return "" if folder is None else f" (the latest record of {Path(folder)})"


def _best(best: BestCheckpoint | None, name: str) -> str:
    if best is None or best.folder != name:
        return ""
    which = "largest" if best.mode == BestMode.MAX else "smallest"
    return f" (kept as the best: {best.metric} {best.value:.6g}, the {which})"


def _version(report: CheckpointReport) -> str:
    if report.version is None:
        return f"not known: {Path(report.folder).name} is not the name that it was recorded under"
    trained = "before training" if report.version == 0 else f"after rollout {report.version - 1}"
    lineage = "" if report.lineage is None else f", lineage {report.lineage}"
    return f"{report.version} ({trained}), epoch {report.epoch}{lineage}"


def _state_of_files(report: CheckpointReport) -> str:
    if report.is_intact is None:
        return "not verified"
    if report.is_intact:
        return "verified: all are what was written"
    return f"DAMAGED: {len(report.damage)} of them"


def _role(role: RecordedRole) -> Iterator[tuple[str, str]]:
    yield role.role.value, _model(role.model) if role.model is not None else "no readable weights"
    yield "", _state(role.state) if role.state is not None else "no state: a job cannot go on from it"


def _model(model: RecordedModel) -> str:
    files = "1 file" if model.parts == 1 else f"{model.parts} files"
    family = _family(model.model_type, model.architecture)
    return f"{family}, {model.parameters:,} parameters in {_types(model.dtypes)}, {size_text(model.bytes)} in {files}"


def _state(state: RecordedState) -> str:
    ranks = "1 rank" if state.ranks == 1 else f"{state.ranks} ranks"
    steps = "" if state.optimizer_steps is None else f" after {state.optimizer_steps} optimizer steps"
    kinds = [f"{_KINDS.get(kind.kind, kind.kind)} {size_text(kind.bytes)}" for kind in state.kinds]
    return f"state of {ranks}{steps}: {', '.join(kinds)}"


def _reference(reference: RecordedReference) -> str:
    where = size_text(reference.bytes) if reference.is_here else "not here: the record was copied without it"
    return f"version {reference.version} in {', '.join(reference.files)}, {where}"


def _family(model_type: str | None, architecture: str | None) -> str:
    return f"{model_type or 'a model of no known family'}{f' ({architecture})' if architecture else ''}"


def _types(dtypes: Mapping[str, int]) -> str:
    return " and ".join(dtypes)


def _origins(report: ExportReport) -> str:
    counts = {
        "as they were published": report.tensors_published,
        "of the exact weights in the state": report.tensors_exact,
        "converted from published ones": report.tensors_converted,
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)
