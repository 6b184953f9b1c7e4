"""`rljob init`: writes a job to begin with, its manifest and its data, and nothing over what is there."""

from __future__ import annotations

from pathlib import Path

import click

from rljob_api.names import EXIT_BAD_MANIFEST
from rljob_cli.starters import STARTERS, files_of

_EPILOG = """\b
quickstart  a tiny model with random weights learns to reverse two digits, in half a minute on two cores

\b
Exit codes: 0 written, 64 a file is there already or cannot be written.

\b
Examples:
  rljob init quickstart
  rljob init quickstart --to first && rljob run first/quickstart.yaml"""


@click.command(epilog=_EPILOG)
@click.argument("starter", type=click.Choice(list(STARTERS)))
@click.option("--to", type=click.Path(path_type=Path), default=Path(), help="Folder.  [default: the current one]")
def init(starter: str, to: Path) -> None:
    """Write the manifest and the data of a job to begin with."""
    files = {to / name: text for name, text in files_of(starter).items()}
    there = [str(path) for path in files if path.exists()]
    if there:
        click.echo(f"--to: {', '.join(there)} is there already. Give another folder, or move it away.", err=True)
        raise click.exceptions.Exit(EXIT_BAD_MANIFEST)
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        click.echo(f"--to: {error.filename} cannot be written ({error.strerror}). Give another folder.", err=True)
        raise click.exceptions.Exit(EXIT_BAD_MANIFEST) from error
    manifest = next(iter(files))
    click.echo(f"Wrote {', '.join(map(str, files))}. Try: rljob run {manifest}")
