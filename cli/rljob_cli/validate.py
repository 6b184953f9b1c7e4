"""`rljob validate`: is this manifest right, and is what it names there?"""

import json
from pathlib import Path
from typing import Literal

import click

from rljob_api.manifest import ManifestError
from rljob_api.names import EXIT_BAD_MANIFEST
from rljob_cli.manifests import checked_job, refuse

_EPILOG = """\b
What is checked:
  every field, its type and bounds, and the rules between fields (rljob docs lists them)
  that model, tokenizer, prompts and reward are there, that every prompt has its keys and only known characters

\b
Exit codes: 0 valid, 64 not.

\b
Examples:
  rljob validate examples/quickstart.yaml
  rljob validate job.yaml --output json | jq -r '.problems[]'"""


@click.command(epilog=_EPILOG)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--output", type=click.Choice(["text", "json"]), default="text", help="For people or for programs.")
def validate(file: Path, output: Literal["text", "json"]) -> None:
    """Check the manifest FILE, and the data, model and reward that it names.

    Prints one sentence for each problem and exits with 64 if there is any.
    """
    problems: tuple[str, ...] = ()
    try:
        checked_job(file)
    except ManifestError as error:
        problems = error.problems
    if output == "json":
        click.echo(json.dumps({"valid": not problems, "problems": problems}, ensure_ascii=False))
        raise click.exceptions.Exit(EXIT_BAD_MANIFEST if problems else 0)
    if problems:
        refuse(problems)
    click.echo(f"{file} is valid.")
