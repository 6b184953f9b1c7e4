"""`rljob reward`: tries the reward of a job on its first rows and prints what each answer is worth. Needs no model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import click

from rljob_api.manifest import ManifestError
from rljob_api.names import EXIT_BAD_MANIFEST
from rljob_cli.checks.findings import Level
from rljob_cli.checks.manifests import checked_job, refuse
from rljob_cli.checks.rewards import Trial, field_of, findings_of, name_of, try_reward
from rljob_cli.ui.tables import drawn, table

_PLAIN_WIDTH = 140


_SHOWN = 48
"""Characters of a prompt or answer in the table."""


_EPILOG = """\b
Each row is answered in four ways whose worth you know: by its label, by nothing, by another row's label, and by its own
prompt. The label should earn most. What your function prints is shown above the table; where it raises, the table says
what, and the file and line.

\b
Exit codes: 0 it gives scores, 64 it cannot be loaded, fails on every row, or the manifest is bad.

\b
Examples:
  rljob reward job.yaml --rows 8
  rljob reward job.yaml --output json | jq '.rows[].answers[] | select(.what == "label") | .reward'"""


@click.command(epilog=_EPILOG)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--rows", type=click.IntRange(1, 1000), default=8, show_default=True, help="Try so many of the first rows."
)
@click.option("--output", type=click.Choice(["text", "json"]), default="text", help="For people or for programs.")
def reward(file: Path, rows: int, output: Literal["text", "json"]) -> None:
    """Try the reward of the manifest FILE on the first rows of its data, in a process of its own."""
    try:
        job, examined = checked_job(file)
    except ManifestError as error:
        refuse(error.problems)
    trial = try_reward(job.spec, rows)
    found = list(findings_of(trial, field_of(job.spec), name_of(job.spec)))
    located = [(finding.level, examined.lines.located(finding.text)) for finding in found]
    problems = [text for level, text in located if level is Level.PROBLEM]
    warnings = [text for level, text in located if level is Level.WARNING]
    if output == "json":
        click.echo(json.dumps({"rows": trial.rows, "problems": problems, "warnings": warnings}, ensure_ascii=False))
    else:
        if trial.printed:
            click.echo(trial.printed, err=True)
        if trial.rows:
            click.echo(_table(trial))
        for text in warnings:
            click.echo(f"warning: {text}", err=True)
        for text in problems:
            click.echo(text, err=True)
    raise click.exceptions.Exit(EXIT_BAD_MANIFEST if problems else 0)


def _table(trial: Trial) -> str:
    made = table("row:", "prompt", "answered by", "answer")
    made.add_column("reward", justify="right")  # may wrap: a failure is a sentence
    for row in trial.rows:
        for index, answer in enumerate(row["answers"]):
            first = (str(row["row"]), _short(row["prompt"])) if index == 0 else ("", "")
            worth = _worth(answer)
            made.add_row(*first, answer["what"], _short(answer["response"]), worth)
    return drawn(made, _PLAIN_WIDTH, has_markup=False)


def _worth(answer: dict[str, Any]) -> str:
    if answer["error"] is not None:
        return f"failed: {answer['error']}"
    metrics = [f"{name} {value:g}" for name, value in answer["metrics"].items()]
    return "\n".join([f"{answer['reward']:g}", *metrics])


def _short(text: str) -> str:
    shown = json.dumps(text, ensure_ascii=False)[1:-1]
    return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 3]}..."
