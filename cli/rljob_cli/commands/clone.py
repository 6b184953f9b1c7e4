"""`rljob clone`: prints a new manifest made from an RLJob on a cluster, or from the claim that a deleted one has left.

The command reads the objects from the API server; `clone` and `read_claim` are pure and take them as they were read.
Changes nothing on the cluster.
"""

from __future__ import annotations

import copy
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click
import yaml
from pydantic import ValidationError

from rljob_api.cluster import (
    ANNOTATION_RECORDED,
    ANNOTATION_RUN,
    ANNOTATION_RUN_OF,
    ANNOTATION_SPEC,
    CRITIC_PART,
    LATEST,
    RUN_DIR,
    checkpoint_claim_name,
)
from rljob_api.manifest import ManifestError, parsed
from rljob_api.overrides import Override, overridden
from rljob_api.problems import sentences
from rljob_api.revision import read_retained_spec
from rljob_api.roles import TRAITS
from rljob_api.spec import Metadata, RLJob, RLJobSpec
from rljob_api.spec.checkpoint import AccessMode, CheckpointVolumeSpec
from rljob_api.spec.model import ModelSpec
from rljob_api.spec.roles import RoleSpec
from rljob_cli.checks.findings import Lines
from rljob_cli.checks.manifests import refuse
from rljob_cli.checks.overrides import SET_HELP, parsed_or_exit, set_option
from rljob_cli.jobs.cluster import Cluster, ClusterProblem, NoSuchJob, give_up

PARENT_DIR = "/var/lib/rljob-parent"
"""Where the pods of a clone see the volume of the job that it goes on from."""


_VOLUME = "parent-checkpoints"


_LEFT_BEHIND = re.compile(r"^([^/]*\.)?kubernetes\.io/|^rljob\.dev/")
"""Annotations and labels that tools have put there."""


_LONGEST_NAME = 40


class CloneProblem(ValueError):
    """Why there can be no clone, as a sentence."""


@dataclass(frozen=True, slots=True)
class RetainedClaim:
    """The claim that was made for a job's checkpoints, and what its annotations record of them."""

    job: str
    """Name of the job."""
    namespace: str
    run_of: str
    """Uid of the job that trains the run on it, or did last."""
    spec: RLJobSpec | None
    """The spec of that job."""
    recorded: int | None
    """Its last recorded version; None while it runs, and where it was deleted while it ran."""
    folder: str | None
    stays: bool
    """It does not go with its job."""


def read_claim(job: str, raw: dict[str, Any]) -> RetainedClaim | None:
    """Reads what a PersistentVolumeClaim says of its checkpoints; None where no operator has noted anything on it."""
    metadata = raw["metadata"]
    notes = metadata.get("annotations") or {}
    if ANNOTATION_RUN not in notes:
        return None
    version, _, folder = notes.get(ANNOTATION_RECORDED, "").partition(" ")
    return RetainedClaim(
        job=job,
        namespace=metadata["namespace"],
        run_of=notes.get(ANNOTATION_RUN_OF, ""),
        spec=read_retained_spec(notes.get(ANNOTATION_SPEC, "")),
        recorded=int(version) if version.isdecimal() else None,
        folder=folder if version.isdecimal() and folder else None,
        stays=not metadata.get("ownerReferences"),
    )


@dataclass(frozen=True, slots=True)
class _Parent:
    """The checkpoint that a clone begins with."""

    spec: RLJobSpec
    """The spec that it was made by."""
    folder: str
    """Below the checkpoint path."""
    version: int | None
    claim: str
    stays: bool


@dataclass(frozen=True, slots=True)
class Clone:
    """A new job, and sentences for the user who applies it."""

    job: RLJob
    notes: tuple[str, ...]

    def text(self) -> str:
        """The manifest as YAML: what was given, without defaults; the notes are comments at its head."""
        spec = self.job.spec.model_dump(mode="json", exclude_defaults=True)
        head = {"apiVersion": self.job.api_version, "kind": self.job.kind}
        document = {**head, "metadata": self.job.metadata.model_dump(mode="json", exclude_defaults=True), "spec": spec}
        comments = "".join(f"# {note}\n" for note in self.notes)
        return comments + yaml.safe_dump(document, sort_keys=False, width=120, allow_unicode=True)


def clone(
    resource: dict[str, Any] | None, name: str | None, *, from_checkpoint: bool, retained: RetainedClaim | None = None
) -> Clone:
    """A job of another name with the same spec; from the last recorded checkpoint, or from the start.

    `retained` is the claim that was made for the job, or for an earlier one of its name; without `resource` it has the
    spec of a job that is gone.
    """
    old = _old_job(resource) if resource is not None else _job_that_is_gone(retained)
    named = name or f"{old.metadata.name[: _LONGEST_NAME - 2].rstrip('-')}-2"
    if named == old.metadata.name:
        raise CloneProblem(f"--name: {named} is the job itself. Give another name.")
    spec = old.spec.model_copy(update={"suspend": False, "restart_request": None})
    gone = ", which is gone" if resource is None else ", which it leaves as it is"
    notes = [f"A copy of the RLJob {old.metadata.name}{gone}."]
    volume = spec.checkpoint.volume
    if volume.claim_name is not None:
        spec = _with_volume(spec, volume.model_copy(update={"claim_name": None}))
        notes.append(
            f"Checkpoints of the two must not mix: this one gets a claim of its own instead of {volume.claim_name}."
        )
    if from_checkpoint:
        spec, origin = _from_checkpoint(old, spec, _parent(old, resource, retained))
        notes += origin
    return Clone(_renamed(old, named, spec), tuple(notes))


def with_overrides(made: Clone, overrides: Sequence[Override]) -> Clone:
    """The clone with these fields set. ManifestError where one is no field, or the job is not valid with them."""
    if not overrides:
        return made
    document = made.job.model_dump(mode="json", exclude_defaults=True)
    return Clone(parsed(overridden(document, overrides)), made.notes)


def _parent(old: RLJob, resource: dict[str, Any] | None, retained: RetainedClaim | None) -> _Parent:
    """The checkpoint that a clone begins with: by the job's status, else by the claim that an earlier job has left."""
    training = {} if resource is None else resource.get("status", {}).get("training", {})
    claim = old.spec.checkpoint.volume.claim_name or checkpoint_claim_name(old.metadata.name)
    if "checkpointFolder" in training:
        stays = retained is not None and retained.stays
        return _Parent(old.spec, training["checkpointFolder"], training["checkpoint"], claim, stays=stays)
    own = None if resource is None else resource["metadata"].get("uid")
    if retained is None or retained.run_of == own or retained.spec is None:
        raise CloneProblem(
            f"The RLJob {old.metadata.name} has recorded no checkpoint yet. Wait for one, or leave --from-checkpoint"
            " out."
        )
    return _Parent(retained.spec, retained.folder or LATEST, retained.recorded, claim, stays=retained.stays)


def _job_that_is_gone(retained: RetainedClaim | None) -> RLJob:
    """The job by the spec that its claim retains."""
    assert retained is not None, "the command has found one of the two"
    if retained.spec is None:
        raise CloneProblem(
            f"The claim {checkpoint_claim_name(retained.job)} keeps no spec that this version of rljob knows. Write a"
            " manifest of another name whose model.path is the last folder on it."
        )
    metadata = Metadata(name=retained.job, namespace=retained.namespace)
    return RLJob(metadata=metadata, spec=retained.spec)


def _old_job(resource: dict[str, Any]) -> RLJob:
    metadata = resource["metadata"]
    described = {key: metadata[key] for key in ("name", "namespace") if key in metadata}
    for key in ("labels", "annotations"):
        described[key] = {name: text for name, text in metadata.get(key, {}).items() if not _LEFT_BEHIND.search(name)}
    try:
        return RLJob.model_validate(
            {**{key: resource[key] for key in ("apiVersion", "kind", "spec")}, "metadata": described}
        )
    except ValidationError as error:
        raise CloneProblem(
            f"The RLJob {metadata['name']} is not one that this version of rljob knows: {sentences(error)[0]}"
        ) from error


def _renamed(old: RLJob, name: str, spec: RLJobSpec) -> RLJob:
    """Checked again: also a name is a user's input."""
    try:
        made = old.model_copy(update={"spec": spec}).model_dump(mode="json")
        return RLJob.model_validate({**made, "metadata": {**made["metadata"], "name": name}})
    except ValidationError as error:
        raise CloneProblem(sentences(error)[0]) from error


def _from_checkpoint(old: RLJob, spec: RLJobSpec, parent: _Parent) -> tuple[RLJobSpec, list[str]]:
    """The spec with the last checkpoint as its model, mounted read-only where the model is loaded."""
    below = posixpath.join(RUN_DIR, parent.spec.checkpoint.path or "checkpoints", parent.folder)
    path = posixpath.normpath(below)
    which = "its last checkpoint" if parent.version is None else f"its checkpoint {parent.version}"
    measured = "" if spec.has_teacher else " (with a reference role: also what rows are measured against)"
    notes = [f"Version 0{measured} is {which}."]
    if path.startswith(f"{RUN_DIR}/"):
        path = posixpath.join(PARENT_DIR, path.removeprefix(f"{RUN_DIR}/"))
        spec = _with_mounts(spec, parent.claim)
        notes += _claim_notes(old, parent)
    else:
        notes.append(
            f"{path} is on no volume of the job: the template of each role that loads the model has to mount it."
        )
    notes.append("The old job must not go on, since it deletes its older checkpoints: let it end, or suspend it.")
    notes.append(
        "Rollouts are counted from 0 and prompts are drawn from the first again: see numRollouts, shuffleSeed."
    )
    spec, of_critic = _with_critic(spec, parent, path)
    model = ModelSpec(path=path, dtype=old.spec.model.dtype)  # the tokenizer lies in the folder
    return spec.model_copy(update={"model": model}), notes + of_critic


def _with_critic(spec: RLJobSpec, parent: _Parent, path: str) -> tuple[RLJobSpec, list[str]]:
    """The spec whose critic begins with the one in the checkpoint at `path`, where both jobs have one."""
    critic = spec.roles.critic
    if critic is None or parent.spec.roles.critic is None:
        return spec, []
    critic = critic.model_copy(update={"model_path": posixpath.join(path, CRITIC_PART)})
    note = "The critic begins with the values of that checkpoint, and with a new optimizer, as the policy does."
    return spec.model_copy(update={"roles": spec.roles.model_copy(update={"critic": critic})}), [note]


def _claim_notes(old: RLJob, parent: _Parent) -> Iterator[str]:
    volume, claim = old.spec.checkpoint.volume, parent.claim
    if volume.claim_name is not None:
        yield f"It lies on your claim {claim}, which has to be in this job's namespace."
    elif parent.stays:
        yield f"It lies on the claim {claim}: keep that as long as this job runs."
    else:
        yield (
            f"It lies on the claim {claim}, which goes with the RLJob {old.metadata.name}: keep that as long as this"
            " one runs (ttlSecondsAfterFinished deletes it too), or copy the folder elsewhere and change model.path."
        )
    if volume.access_mode is AccessMode.READ_WRITE_ONCE:
        yield "ReadWriteOnce: all pods that mount it, those of the roles that load a model, must fit onto one node."


def _with_volume(spec: RLJobSpec, volume: CheckpointVolumeSpec) -> RLJobSpec:
    return spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"volume": volume})})


def _with_mounts(spec: RLJobSpec, claim: str) -> RLJobSpec:
    roles = spec.roles.present().items()
    mounted = {role.value: _with_mount(given, claim) for role, given in roles if TRAITS[role].loads_model}
    return spec.model_copy(update={"roles": spec.roles.model_copy(update=mounted)})


def _with_mount(role: RoleSpec, claim: str) -> RoleSpec:
    """The role with one more volume in its pods; one of the same name, from an earlier clone, gives way."""
    template = copy.deepcopy(role.template)
    pod = template.setdefault("spec", {})
    volume = {"name": _VOLUME, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
    pod["volumes"] = _with_named(pod.get("volumes", []), volume)
    containers = pod.setdefault("containers", [])
    worker = next((container for container in containers if container.get("name") == "worker"), None)
    if worker is None:
        worker = {"name": "worker"}
        containers.append(worker)
    mount = {"name": _VOLUME, "mountPath": PARENT_DIR, "readOnly": True}
    worker["volumeMounts"] = _with_named(worker.get("volumeMounts", []), mount)
    return role.model_copy(update={"template": template})


def _with_named(entries: list[dict[str, Any]], entry: dict[str, Any]) -> list[dict[str, Any]]:
    return [*(other for other in entries if other.get("name") != entry["name"]), entry]


_EPILOG = f"""\b
What for:
  Some fields of a job cannot change (rljob docs lists them). A clone is a new job with the same spec, in which they can
  be changed before it is applied. With --from-checkpoint its model is the last recorded checkpoint of the old job: it
  goes on with the weights, and begins anew with optimizer, data and count of rollouts.

\b
Where the checkpoint is:
  On the volume of the old job, which every role that loads the model then mounts read-only, by a patch of its pod
  template. The comments at the head of the manifest say what this asks of you.

\b
When the old job is gone:
  Its claim NAME-checkpoints has stayed (checkpoint.volume.onDelete: Retain), and keeps its spec: the same command works
  with the name of the job. So it does where a job is NameTaken by the claim of an earlier one: then the clone has the
  spec of the new one and the weights of the old.

{SET_HELP}
\b
Exit codes: 0 printed, 1 not, 64 --set is at fault.

\b
Examples:
  rljob clone quickstart --from-checkpoint > next.yaml
  rljob clone quickstart --from-checkpoint --set algorithm.kl.coefficient=0.01 > stronger-kl.yaml
  rljob clone quickstart --from-checkpoint --name quickstart-kl | kubectl apply --server-side -f -"""


@click.command("clone", epilog=_EPILOG)
@click.argument("name")
@set_option
@click.option("--from-checkpoint", is_flag=True, help="Begin with the weights of the last recorded checkpoint.")
@click.option("--name", "new_name", metavar="NEW", help="Name of the new job.  [default: NAME-2]")
@click.option("-n", "--namespace", help="Namespace of the job.  [default: that of the current context]")
def clone_command(
    *, name: str, overrides: tuple[str, ...], from_checkpoint: bool, new_name: str | None, namespace: str | None
) -> None:
    """Print a new manifest made from the RLJob NAME on a cluster."""
    given = parsed_or_exit(overrides)
    try:
        made = with_overrides(
            _clone(Cluster.connect(namespace), name, new_name, from_checkpoint=from_checkpoint), given
        )
    except ManifestError as error:
        refuse(Lines(name, "", [override.path for override in given]).located(text) for text in error.problems)
    except ClusterProblem as problem:
        raise give_up(problem) from None
    except CloneProblem as problem:
        raise give_up(ClusterProblem(str(problem))) from None
    click.echo(made.text(), nl=False)


def _clone(cluster: Cluster, name: str, new_name: str | None, *, from_checkpoint: bool) -> Clone:
    """A clone of the job, or of the claim that one of this name has left."""
    claim = checkpoint_claim_name(name)
    try:
        resource = cluster.job(name)
    except NoSuchJob as missing:
        found = cluster.claim(claim)
        retained = None if found is None else read_claim(name, found)
        if retained is None:
            raise ClusterProblem(f"{missing} Nor is there a claim {claim} that one of this name has left.") from None
        return clone(None, new_name, from_checkpoint=from_checkpoint, retained=retained)
    found = cluster.claim(claim) if from_checkpoint else None
    retained = None if found is None else read_claim(name, found)
    return clone(resource, new_name, from_checkpoint=from_checkpoint, retained=retained)
