"""`rljob render`: the manifest as the job will see it."""

from pathlib import Path

import click

from rljob_api.manifest import ManifestError, load_manifest, render_manifest
from rljob_cli.manifests import refuse


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
def render(file: Path) -> None:
    """Print the manifest FILE with all defaults filled in.

    Paths stay as they are written. What FILE names (data, model, reward) is not looked at.
    """
    try:
        job = load_manifest(file)
    except ManifestError as error:
        refuse(error.problems)
    click.echo(render_manifest(job), nl=False)
