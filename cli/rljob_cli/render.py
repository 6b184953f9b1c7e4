"""`rljob render`: the manifest as the job will see it, or what the operator makes of it."""

from contextlib import suppress
from pathlib import Path

import click

from rljob_api.manifest import ManifestError, parse_manifest, read_manifest, render_manifest, resolve_paths
from rljob_api.model_files.size import checkpoint_interval
from rljob_api.open_defaults import Platform, resolve
from rljob_api.spec import RLJob
from rljob_cli.findings import Lines
from rljob_cli.manifests import refuse


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--kubernetes", is_flag=True, help="Print the Kubernetes objects that the operator makes of it instead.")
@click.option(
    "--config", type=click.Path(path_type=Path), help="The operator's options, for --kubernetes; default: its defaults."
)
def render(file: Path, *, kubernetes: bool, config: Path | None) -> None:
    """Print the manifest FILE with all defaults filled in, those that depend on the job for a new run on this machine.

    Paths stay as they are written. Of what FILE names (data, model, reward) only the model's size is looked at, where
    its folder is on this machine: it decides how often the job saves.
    """
    if config is not None and not kubernetes:
        raise click.UsageError("--config is for --kubernetes: give both or none.")
    try:
        written = read_manifest(file)
    except ManifestError as error:
        refuse(error.problems)
    lines = Lines(str(file), written)
    try:
        job = parse_manifest(written, str(file))
        resolution = resolve(job.spec, Platform.CLUSTER if kubernetes else Platform.MACHINE)
        if resolution.problems:
            raise ManifestError(list(resolution.problems))
        job = job.model_copy(update={"spec": resolution.spec})
        if kubernetes:
            text = _objects(job, config)
        else:
            chosen = "".join(f"# by default: {choice}\n" for choice in resolution.choices)
            text = chosen + _with_interval(render_manifest(job), job, file.resolve().parent)
    except ManifestError as error:
        refuse([lines.located(text) for text in error.problems])
    except ValueError as error:
        refuse([lines.located(str(error))])
    click.echo(text, nl=False)


def _with_interval(text: str, job: RLJob, folder: Path) -> str:
    """Says beside `everySteps: null` which number that is; a comment, so that the text means the same job."""
    with suppress(ValueError):  # the model lies elsewhere
        steps = checkpoint_interval(resolve_paths(job, folder).spec)
        return text.replace("    everySteps: null\n", f"    everySteps: null # {steps}, by the model's size\n")
    return text


def _objects(job: RLJob, config: Path | None) -> str:
    from rljob_cli.kubernetes_objects import kubernetes_objects  # a plain render does without
    from rljob_operator.cluster.options_file import load_options

    return kubernetes_objects(job, load_options(config))
