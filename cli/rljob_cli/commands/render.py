"""`rljob render`, `rljob crd` and `rljob docs`: commands that give what is made from the models.

A manifest with its defaults or the Kubernetes objects of a job, the CRD, the reference. Only the last writes files, and
none asks a cluster. The objects are for reading: they have no owner, which exists only after the job is applied, and no
Secret, which the operator draws.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
import yaml

from rljob_api.manifest import ManifestError, document_of, parsed, read_manifest, render_manifest, resolve_paths
from rljob_api.model_files.size import checkpoint_interval
from rljob_api.open_defaults import JobPlace, resolve
from rljob_api.overrides import overridden
from rljob_api.spec import RLJob
from rljob_api.status import RLJobStatus
from rljob_cli.checks.findings import Lines
from rljob_cli.checks.manifests import refuse
from rljob_cli.checks.overrides import SET_HELP, parsed_or_exit, set_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rljob_operator.build import Manifest
    from rljob_operator.options import OperatorOptions


_NAMESPACE = "default"


class _Dumper(yaml.SafeDumper):
    """Text of several lines as a block, and every object in full."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the signature is yaml's
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def kubernetes_objects(job: RLJob, options: OperatorOptions) -> str:
    """The objects as YAML, and as comments what the operator would say. ValueError where a template is refused."""
    from rljob_operator.build import Owner, Platform, manifests, overridden, warnings

    owner = Owner(namespace=job.metadata.namespace or _NAMESPACE, uid="")
    objects = manifests(job, owner, RLJobStatus(), options, Platform(pod_groups=True, device_claims=True))
    for found in objects:
        found["metadata"].pop("ownerReferences", None)
    comments = [*warnings(job), *overridden(options, objects)]
    return "".join(f"# {sentence}\n" for sentence in comments) + as_yaml(objects)


def as_yaml(objects: Sequence[Manifest]) -> str:
    """The objects in their order, for a reader."""
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=120)


@click.command(epilog=SET_HELP)
@click.argument("file", type=click.Path(path_type=Path))
@set_option
@click.option("--kubernetes", is_flag=True, help="Print the Kubernetes objects that the operator makes of it instead.")
@click.option(
    "--config", type=click.Path(path_type=Path), help="The operator's options, for --kubernetes; default: its defaults."
)
def render(file: Path, *, overrides: tuple[str, ...], kubernetes: bool, config: Path | None) -> None:
    """Print the manifest FILE with all defaults filled in, those that depend on the job for a new run on this machine.

    Paths stay as they are written. Of what FILE names (data, model, reward) only the model's size is looked at, where
    its folder is on this machine: it decides how often the job saves.
    """
    if config is not None and not kubernetes:
        raise click.UsageError("--config is for --kubernetes: give both or none.")
    given = parsed_or_exit(overrides)
    try:
        written = read_manifest(file)
    except ManifestError as error:
        refuse(error.problems)
    lines = Lines(str(file), written, [override.path for override in given])
    try:
        job = parsed(overridden(document_of(written, str(file)), given))
        resolution = resolve(job.spec, JobPlace.CLUSTER if kubernetes else JobPlace.MACHINE)
        if resolution.problems:
            raise ManifestError(list(resolution.problems))
        job = job.model_copy(update={"spec": resolution.spec})
        if kubernetes:
            from rljob_operator.cluster.options_file import load_options

            text = kubernetes_objects(job, load_options(config))
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
    with suppress(ValueError, OSError):  # the model lies elsewhere
        steps = checkpoint_interval(resolve_paths(job, folder).spec)
        return text.replace("    everySteps: null\n", f"    everySteps: null # {steps}, by the model's size\n")
    return text


@click.command()
def crd() -> None:
    """Print the CustomResourceDefinition of RLJob.

    Apply it with: rljob crd | kubectl apply --server-side -f -
    """
    from rljob_api.generate.crd import crd_text

    click.echo(crd_text(), nl=False)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def docs(folder: Path) -> None:
    """Write the reference of the spec to FOLDER as Markdown: an index, and a page for each section.

    Every field with type, default and meaning, an example, and what is refused.
    """
    from rljob_api.generate.reference import reference

    folder.mkdir(parents=True, exist_ok=True)
    for name, text in reference().items():
        (folder / name).write_text(text)
