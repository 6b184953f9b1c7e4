"""`rljob audit`: prints what the sample log of a run proves.

Reads the run folder; the proof itself is in `jobs.sample_log`.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import click
from pydantic import ValidationError

from rljob_api.names import EXIT_BAD_MANIFEST, EXIT_FAILED
from rljob_api.problems import first_problem
from rljob_api.spec import RLJob
from rljob_api.status import Phase, RLJobStatus
from rljob_cli.jobs.sample_log import AuditReport, audit_run
from rljob_operator.core.reasons import Reason

_EPILOG = """\b
Exit codes: 0 everything holds, 1 something does not, 64 the folder has nothing to audit.

\b
Example:
  rljob run examples/quickstart.yaml --audit
  rljob audit rljob-out/quickstart"""


@click.command(epilog=_EPILOG)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--output", type=click.Choice(["text", "json"]), default="text", help="For people or for programs.")
def audit(folder: Path, output: Literal["text", "json"]) -> None:
    """Prove from samples.jsonl that the run in FOLDER trained every sample exactly once.

    A critic's training is proven from samples.critic.jsonl alike. Also that none was staler than
    spec.rollout.maxStaleness. Steps that a restart took back and trained again count
    once, as trained last. Of a run that is not at its end, the steps are audited whose checkpoint is recorded.
    """
    missing = _missing(folder)
    if missing is not None:
        click.echo(missing, err=True)
        raise click.exceptions.Exit(EXIT_BAD_MANIFEST)
    try:
        job = RLJob.model_validate_json((folder / "job.json").read_bytes())
        status = RLJobStatus.model_validate_json((folder / "status.json").read_bytes())
    except ValidationError as error:
        click.echo(
            f"{folder} was written by another version of rljob: {first_problem(error)}. Audit it with that.", err=True
        )
        raise click.exceptions.Exit(EXIT_BAD_MANIFEST) from error
    report = audit_run(folder, job.spec, steps=_proven_steps(job, status))
    click.echo(_json(report) if output == "json" else _text(report, job))
    raise click.exceptions.Exit(EXIT_FAILED if report.problems else 0)


def _missing(folder: Path) -> str | None:
    if not folder.is_dir():
        return f"{folder} is not a folder. Give the folder of a run (its --out, by default rljob-out/NAME)."
    if not (folder / "job.json").exists() or not (folder / "status.json").exists():
        return f"{folder} is not the folder of a run: it has no job.json or no status.json. Give the --out of a run."
    if not (folder / "samples.jsonl").exists():
        return (
            f"{folder} has no samples.jsonl: its run did not log samples. Run the job with --audit, "
            "or set telemetry.sampleLog."
        )
    return None


def _proven_steps(job: RLJob, status: RLJobStatus) -> int:
    """Lines of a step are durable before its checkpoint is recorded; later ones may be missing."""
    has_trained_all = status.phase is Phase.SUCCEEDED and status.reason != Reason.STOP_CONDITION_MET
    return job.spec.rollout.num_rollouts if has_trained_all else status.training.checkpoint or 0


def _json(report: AuditReport) -> str:
    return json.dumps({"holds": not report.problems, **asdict(report)}, ensure_ascii=False)


def _text(report: AuditReport, job: RLJob) -> str:
    bound = job.spec.rollout.max_staleness
    verdict = [f"FAILED: {problem}" for problem in report.problems] or ["Holds: every sample was trained exactly once."]
    figures = [
        f"  samples    {report.lines - report.voided} in {report.steps} steps, epochs of the run: {report.epochs}",
        f"  voided     {report.voided} (trained, lost with a restart, and trained again)",
        f"  staleness  at most {report.max_staleness} of {bound} allowed",
    ]
    redrawn = report.redrawn
    if redrawn.groups:
        figures.append(
            f"  redrawn    {redrawn.draws} draws of {redrawn.groups} groups, which a filter refused; the most:"
            f" {'; '.join(redrawn.examples)}"
        )
    if redrawn.last_refused:
        figures.append(f"  kept       {redrawn.last_refused} groups of which it refused the last draw as well")
    exchanged = report.exchanged
    if exchanged.earlier or exchanged.later:
        figures.append(
            f"  exchanged  {exchanged.earlier} groups were trained in an earlier rollout than they were begun for,"
            f" {exchanged.later} in a later one, at most {exchanged.furthest} later"
        )
    if exchanged.too_old:
        figures.append(f"  too old    {exchanged.too_old} samples, of which no token was learnt from by then")
    return "\n".join([*verdict, *figures])
