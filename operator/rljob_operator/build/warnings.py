"""Sentences for the Events of an accepted job: what a lost node or pod costs, and which operator defaults it overrides.

An override of `workloads.podTemplate` that is not allowed is refused before (`template_protection`). Pure.
"""

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Any

from rljob_api import cluster
from rljob_api.roles import SAVING_ROLES, field_name
from rljob_api.spec import RLJob
from rljob_api.spec.queue import PersistenceKind
from rljob_operator.build.parts import Manifest, part_of
from rljob_operator.build.scheduling import run_volume, shares_node
from rljob_operator.build.template import administrator_template
from rljob_operator.build.template_patch import DIRECTIVE, MERGE_KEYS
from rljob_operator.options import OperatorOptions

_NODE_LOCAL = ("emptyDir", "hostPath")


def warnings(job: RLJob) -> list[str]:
    """A sentence each: field, what it costs, and the cure."""
    found = (_checkpoint_volume(job), _checkpoint_path(job), _control_state(job))
    return [sentence for sentence in found if sentence is not None]


def _checkpoint_volume(job: RLJob) -> str | None:
    source = next((key for key in run_volume(job) if key in _NODE_LOCAL), None)
    if source is not None:
        return (
            f"roles.actor.template.spec.volumes[run]: {source} is the node's own disk, so a lost node takes all"
            " checkpoints with it. Use storage that all nodes share."
        )
    if shares_node(job):
        savers = [field_name(role) for role in SAVING_ROLES if job.spec.roles.of(role) is not None]
        who = ", ".join(savers).capitalize()
        return (
            f"checkpoint.volume.accessMode: ReadWriteOnce is not shared storage. {who} and coordinator share a node,"
            " and a lost node takes the job down until the volume can be mounted elsewhere (never, where it is the"
            " node's own disk). Give ReadWriteMany and a class of storage that all nodes share."
        )
    return None


def _checkpoint_path(job: RLJob) -> str | None:
    path = PurePosixPath(job.spec.checkpoint.path or ".")
    place = PurePosixPath(cluster.RUN_DIR) / path
    if ".." not in place.parts and PurePosixPath(cluster.RUN_DIR) in (place, *place.parents):
        return None
    return (
        f"checkpoint.path: {path} is not on the checkpoint volume, which is mounted at {cluster.RUN_DIR}, so a"
        " lost pod takes the checkpoints with it unless a volume lies there. Give a path relative to the run folder."
    )


def _control_state(job: RLJob) -> str | None:
    if job.spec.transfer_queue.redis.persistence.kind is not PersistenceKind.EMPTY_DIR:
        return None
    return (
        "transferQueue.redis.persistence.kind: EmptyDir goes with its pod, so the loss of that pod takes the job back"
        " to its last checkpoint. Give Claim to lose nothing."
    )


_LONGEST_VALUE = 80


def overridden(options: OperatorOptions, made: Iterable[Manifest]) -> list[str]:
    """A sentence for each such field of the objects `made`, with all parts of the job that have it."""
    if not options.workloads.pod_template:
        return []
    whose: dict[str, list[str]] = {}
    for manifest in made:
        if "template" not in manifest.get("spec", {}):
            continue
        part = part_of(manifest["metadata"]["labels"])
        where = part.component if part.role is None else f"roles.{field_name(part.role)}"
        for difference in _differences(
            administrator_template(options.workloads, part).patch, manifest["spec"]["template"], ""
        ):
            whose.setdefault(difference, []).append(where)
    return [f"{' and '.join(parts)}: {difference}" for difference, parts in whose.items()]


def _differences(default: Any, found: Any, path: str) -> Iterator[str]:  # noqa: ANN401 - JSON
    key = path.rpartition(".")[2]
    if isinstance(default, dict):
        for name, value in default.items():
            inner = found.get(name) if isinstance(found, dict) else None
            yield from _differences(value, inner, f"{path}.{name}" if path else name)
    elif isinstance(default, list) and key in MERGE_KEYS and isinstance(found, list):
        merged_by = MERGE_KEYS[key]
        there = {entry[merged_by]: entry for entry in found}
        for entry in default:
            if DIRECTIVE not in entry:
                yield from _differences(entry, there.get(entry[merged_by]), f"{path}[{entry[merged_by]}]")
    elif not _holds(default, found):
        has = "has none" if found is None else f"has {_shown(found)}"
        yield (
            f"{path}: the job {has}, where the operator's workloads.podTemplate has {_shown(default)}."
            " What the job says counts."
        )


def _holds(default: Any, found: Any) -> bool:  # noqa: ANN401 - JSON
    """The operator adds tolerations of its own; and what the administrator takes away (null) a job may give."""
    if isinstance(default, list) and isinstance(found, list):
        return all(each in found for each in default)
    return default is None or default == found


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
