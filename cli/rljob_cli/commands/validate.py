"""`rljob validate`: checks a manifest and what it names, and prints what `checks` finds.

Starts nothing but a reward's trial, and not even that with --static.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import click

from rljob_api.manifest import ManifestError
from rljob_api.names import EXIT_BAD_MANIFEST
from rljob_api.open_defaults import JobPlace
from rljob_cli.checks.findings import Level, any_overlaps
from rljob_cli.checks.manifests import Examined, examine, refuse
from rljob_cli.checks.overrides import SET_HELP, parsed_or_exit, set_option
from rljob_cli.checks.rewards import TRIED, trial_findings

_EPILOG = f"""\b
What is checked, all in one pass, each problem with the line of its field:
  every field, its type and bounds, and the rules between fields (rljob docs lists them)
  the model: that trainer and engine compute its family, that answers fit its positions, that its tokenizer fits it
  the prompts: that every row has its keys, a label and only known characters; which are twice there, or too long
  the sets of an evaluation: the same of their prompts, and that each leaves room for an answer
  the reward: it is loaded and tried on two rows, in a process of its own (`rljob reward` shows more of it)
  the engine's interpreter, and devices of this machine that no role asks for

\b
--cluster: for a manifest that goes to a cluster. Its rules hold as well; folders and modules that are not on this
machine are no problem then, and are listed as not checked.

{SET_HELP}
\b
Exit codes: 0 valid (warnings apart), 64 not.

\b
Examples:
  rljob validate examples/quickstart.yaml
  rljob validate job.yaml --cluster
  rljob validate job.yaml --set rollout.maxStaleness=0
  rljob validate job.yaml --output json | jq -r '.problems[]'"""


@click.command(epilog=_EPILOG)
@click.argument("file", type=click.Path(path_type=Path))
@set_option
@click.option(
    "--cluster", is_flag=True, help="The job is for a cluster: ask its rules, and do not miss what is not here."
)
@click.option("--static", is_flag=True, help="Run no code of yours: the reward is looked for and not tried.")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", help="For people or for programs.")
def validate(
    file: Path, *, overrides: tuple[str, ...], cluster: bool, static: bool, output: Literal["text", "json"]
) -> None:
    """Check the manifest FILE, and the data, model and reward that it names.

    Prints one sentence for each problem, warning and thing that cannot be checked here, and exits with 64 if there is
    any problem.
    """
    place = JobPlace.CLUSTER if cluster else JobPlace.MACHINE
    try:
        examined = examine(file, place, overrides=parsed_or_exit(overrides))
    except ManifestError as error:
        _end(file, {Level.PROBLEM: list(error.problems)}, [], output)
    if not static:
        _try_reward(examined, place)
    found = {level: examined.sentences(level) for level in Level}
    _end(file, found, [examined.lines.located(str(choice)) for choice in examined.choices], output)


def _try_reward(examined: Examined, place: JobPlace) -> None:
    """Only where all that it needs is here, and none of it was refused."""
    if examined.job is None or any_overlaps(TRIED, examined.refused):
        return
    if any(text.startswith(TRIED) for text in examined.findings.problems):
        return
    if place is JobPlace.CLUSTER and examined.findings.of(Level.UNCHECKED):
        return
    examined.findings.add(trial_findings(examined.job.spec))


def _end(file: Path, found: dict[Level, list[str]], choices: list[str], output: Literal["text", "json"]) -> None:
    problems, warnings = found[Level.PROBLEM], found.get(Level.WARNING, [])
    not_checked = found.get(Level.UNCHECKED, [])
    if output == "json":
        report = {
            "valid": not problems,
            "problems": problems,
            "warnings": warnings,
            "notChecked": not_checked,
            "defaults": choices,
        }
        click.echo(json.dumps(report, ensure_ascii=False))
        raise click.exceptions.Exit(EXIT_BAD_MANIFEST if problems else 0)
    for text in warnings:
        click.echo(f"warning: {text}", err=True)
    for text in not_checked:
        click.echo(f"not checked here: {text}", err=True)
    if problems:
        refuse(problems)
    for text in choices:
        if "gpus" in text:  # other choices are no news: `rljob render` has them
            click.echo(f"by default: {text}.", err=True)
    click.echo(f"{file} is valid.")
    raise click.exceptions.Exit(0)
