"""`rljob checkpoint`: says what lies in a record of a checkpoint, and makes a Hugging Face folder of it.

`jobs.checkpoints` finds the records and has a process of the workers read them; `ui.checkpoint` makes text of the
answers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

import click

from rljob_api.names import EXIT_FAILED, Role
from rljob_api.roles import LEADING_ROLE, SAVING_ROLES
from rljob_api.wire.checkpoint_report import CheckpointQuestion, ExportDtype, ExportQuestion, Progress
from rljob_cli.jobs.checkpoints import CheckpointRefused, ask_workers, folder_with_records, job_of
from rljob_cli.ui.checkpoint import export_text, progress_text, report_text

Output = Literal["text", "json"]


F = TypeVar("F", bound=Callable[..., Any])


_DIR = """\b
DIR:
  a record (rljob-out/job/checkpoints/120-e1-0123456789ab), also one that was copied elsewhere; or a folder whose latest
  record is meant: that of a run (its --out), a checkpoint.path, or `checkpoints/` on the volume of a cluster's job."""


_GROUP_EPILOG = f"""{_DIR}

\b
Examples:
  rljob checkpoint show rljob-out/quickstart                           what is in the latest record, and is it whole?
  rljob checkpoint export rljob-out/quickstart --to policy             a folder that transformers loads
  rljob checkpoint export rljob-out/job --to exact --dtype float32     the weights that the optimizer has

\b
Exit codes: 0 done, 1 not (the record is damaged), 2 wrong use, 64 no record there, or it cannot be exported so."""


_SHOW_EPILOG = f"""\b
What it shows:
  job, version (rollouts trained), epoch and lineage, when it was written, whether all files are what was written;
  of each role that trains its model, and the state that a job goes on from: how many ranks wrote it, optimizer steps,
  moments, exact weights (float32, where the published ones are rounded), random state; the rows' reference version.

\b
Every byte is read to verify it, and how far that is appears every few seconds. --no-verify reads names and heads alone.

{_DIR}

\b
Examples:
  rljob checkpoint show rljob-out/job
  rljob checkpoint show rljob-out/job/checkpoints/latest --no-verify
  rljob checkpoint show rljob-out/job --output json | jq '.roles[] | {{role, steps: .state.optimizerSteps}}'

\b
Exit codes: 0 shown, 1 files are damaged (each is named), 64 there is no record."""


_EXPORT_EPILOG = f"""\b
What it makes:
  FOLDER with config.json, generation_config.json and the tokenizer where the record has them, and model.safetensors (or
  parts of at most 5 GB with their index): for from_pretrained, for engines, for model.path of another job. A record is
  such a folder already, with what only its job can use beside; this one has the weights alone, in a type of choice.

\b
--dtype:
  float32     the exact weights: what the optimizer has, out of the state of all ranks, whatever backend and number of
              ranks wrote it. Where the published weights are float32 they are the same
  bfloat16, float16   the published weights where they have that type already, else the exact ones, rounded once
  left out    as they were published

\b
--role critic: its model with the value head, a ...ForSequenceClassification: a reward model.
One tensor is in memory at a time. FOLDER is written beside and renamed, so that it is there whole or not at all.

{_DIR}

\b
Examples:
  rljob checkpoint export rljob-out/job --to policy
  rljob checkpoint export rljob-out/job/checkpoints/120-e1-0123456789ab --to exact --dtype float32
  rljob checkpoint export rljob-out/job --to reward-model --role critic

\b
Exit codes: 0 exported, 1 not (a file that is needed is damaged, the disk is full), 64 FOLDER is not empty, there is no
record, or the record has no such model."""


def _options(command: F) -> F:
    output = click.option(
        "--output", type=click.Choice(["text", "json"]), default="text", help="For people or for programs."
    )
    verify = click.option("--verify/--no-verify", default=True, help="Compare what is read with its checksums, or not.")
    return click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))(verify(output(command)))


@click.group("checkpoint", epilog=_GROUP_EPILOG)
def checkpoint() -> None:
    """Say what lies in a record of a checkpoint, or make a Hugging Face folder of it."""


@checkpoint.command(epilog=_SHOW_EPILOG, short_help="Say what lies in a record, and whether it is whole.")
@_options
def show(*, folder: Path, verify: bool, output: Output) -> None:
    """Say what lies in the record DIR, or in the latest one of DIR, and whether its files are what was written."""
    try:
        records = folder_with_records(folder).absolute()
        found = ask_workers(CheckpointQuestion(folder=str(records), is_verified=verify), _print_progress).checkpoint
    except CheckpointRefused as error:
        _refuse(error)
    assert found is not None
    report = found.model_copy(update={"job": job_of(Path(found.folder))})
    click.echo(report.model_dump_json() if output == "json" else report_text(report))
    raise click.exceptions.Exit(EXIT_FAILED if report.damage else 0)


@checkpoint.command(epilog=_EXPORT_EPILOG, short_help="Make a Hugging Face folder of a record.")
@_options
@click.option("--to", required=True, metavar="FOLDER", type=click.Path(path_type=Path), help="To be made.")
@click.option(
    "--dtype",
    type=click.Choice([dtype.value for dtype in ExportDtype]),
    help="Type of the weights.  [default: as they were published]",
)
@click.option(
    "--role",
    type=click.Choice([role.value for role in SAVING_ROLES]),
    default=LEADING_ROLE.value,
    show_default=True,
    help="Whose model.",
)
def export(*, folder: Path, verify: bool, output: Output, to: Path, dtype: str | None, role: str) -> None:
    """Make a Hugging Face folder of the record DIR, or of the latest one of DIR."""
    try:
        question = ExportQuestion(
            folder=str(folder_with_records(folder).absolute()),
            to=str(to.absolute()),
            role=Role(role),
            dtype=None if dtype is None else ExportDtype(dtype),
            is_verified=verify,
        )
        found = ask_workers(question, _print_progress).exported
    except CheckpointRefused as error:
        _refuse(error)
    assert found is not None
    click.echo(found.model_dump_json() if output == "json" else export_text(found))


def _print_progress(progress: Progress) -> None:
    click.echo(progress_text(progress), err=True)


def _refuse(error: CheckpointRefused) -> NoReturn:
    click.echo(str(error), err=True)
    raise click.exceptions.Exit(error.exit_code)
