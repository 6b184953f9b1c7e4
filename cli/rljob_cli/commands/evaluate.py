"""`rljob evaluate`: scores the evaluation sets of a manifest with one checkpoint, by the job's own kind of engines.

`jobs.evaluation` has a process of the workers do it; here is what is asked, refused and printed.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import click

from rljob_cli.checks.machine import engine_problem, extra_problem
from rljob_cli.checks.manifests import checked_job_or_exit, refuse
from rljob_cli.checks.overrides import SET_HELP, parsed_or_exit, set_option
from rljob_cli.jobs.checkpoints import CheckpointRefused, folder_with_records
from rljob_cli.ui.evaluation import progress_text, results_text

if TYPE_CHECKING:
    from rljob_api.wire.checkpoint_evaluation import CheckpointEvaluation, ScoredSamples
    from rljob_cli.jobs.evaluation import EvaluationRefused

_OF_TRAINING = ("stopWhen=null", "checkpoint.keepBest=null")
"""They name figures, such as mean@8, which --set may take away from what is evaluated here."""

_EPILOG = f"""\b
What happens:
  The engines of spec.roles.rollout are started with the checkpoint's weights, and answer the sets of spec.evaluation as
  they do during training: by the same sampling, seeds and reward. Nothing is trained. everySteps, atStart,
  engineShare, stopWhen and keepBest mean nothing here. How far it is appears every few seconds.

\b
DIR:
  a record (rljob-out/job/checkpoints/120-e1-0123456789ab); a folder whose latest record is meant: that of a run (its
  --out) or a checkpoint.path; or a Hugging Face folder, such as `rljob checkpoint export` makes.

\b
--out FILE gets a line more, of the form of a run's evaluations.jsonl, with the checkpoint instead of an epoch.

{SET_HELP}
\b
Exit codes: 0 scored, 1 not (an engine cannot be started, a record is damaged), 64 bad manifest, no such set, no
checkpoint there or one of another model, 130 interrupted.

\b
Examples:
  rljob evaluate job.yaml --checkpoint rljob-out/job                                the latest checkpoint of a run
  rljob evaluate job.yaml --checkpoint policy --set-name held-out                   an exported folder, one set
  rljob evaluate job.yaml --checkpoint rljob-out/job --set evaluation.sets[0].samplesPerPrompt=16
  rljob evaluate job.yaml --checkpoint rljob-out/job --output json | jq '.metrics["eval/held-out/mean@8"]'"""


@click.command(epilog=_EPILOG)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--checkpoint", "folder", required=True, metavar="DIR", type=click.Path(path_type=Path), help="What is evaluated."
)
@click.option("--set-name", "names", metavar="NAME", multiple=True, help="Score this set alone. May be repeated.")
@set_option
@click.option(
    "--verify/--no-verify", default=True, help="Compare the weights of a record with their checksums, or not."
)
@click.option("--out", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False), help="Append a line here.")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", help="For people or for programs.")
def evaluate(
    *,
    file: Path,
    folder: Path,
    names: tuple[str, ...],
    overrides: tuple[str, ...],
    verify: bool,
    out: Path | None,
    output: Literal["text", "json"],
) -> None:
    """Score the evaluation sets of the manifest FILE with one checkpoint, on this machine and without training."""
    job, lines = checked_job_or_exit(file, None, parsed_or_exit((*overrides, *_OF_TRAINING)))
    problem = extra_problem("worker", "rljob evaluate") or engine_problem(job.spec.roles.rollout.engine)
    if problem is not None:
        refuse([lines.located(problem)])
    # Imported here, so that --help and bad manifests do not wait for it.
    from rljob_cli.jobs import evaluation

    began = time.time()
    try:
        job = evaluation.with_sets(job, names)
        records = folder_with_records(folder)
        _require_writable(out)
        pods = evaluation.engine_pods(job.spec.roles)
        found = evaluation.evaluate(job, records, pods, _print_progress, is_verified=verify)
    except (evaluation.EvaluationRefused, CheckpointRefused) as error:
        _refuse(error)
    if out is not None:
        _append(out, _record(found, began))
    if output == "json":
        click.echo(found.model_dump_json(by_alias=True))
    else:
        assert job.spec.evaluation is not None
        click.echo(results_text(found, job.spec.evaluation.sets, time.time() - began))


def _record(found: CheckpointEvaluation, at: float) -> dict[str, Any]:
    line = {"time": at, "version": found.version, "checkpoint": found.folder, "samples": found.samples}
    return line | dict(sorted(found.metrics.items()))


def _require_writable(out: Path | None) -> None:
    """Before minutes of work are done for nothing."""
    if out is None:
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.open("a").close()
    except OSError as error:
        refuse([f"--out: {out} cannot be written ({error.strerror}). Give a file elsewhere."])


def _append(out: Path, line: dict[str, Any]) -> None:
    try:
        with out.open("a") as lines:
            lines.write(json.dumps(line) + "\n")
    except OSError as error:
        click.echo(f"--out: {out} was not written ({error.strerror}); the result stands below.", err=True)


def _print_progress(progress: ScoredSamples) -> None:
    click.echo(progress_text(progress), err=True)


def _refuse(error: EvaluationRefused | CheckpointRefused) -> NoReturn:
    click.echo(str(error), err=True)
    raise click.exceptions.Exit(error.exit_code)
