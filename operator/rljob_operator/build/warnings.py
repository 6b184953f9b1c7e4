"""What a user should know of a job that is accepted all the same: what the loss of a node or pod will cost.

Sentences for Warning events; told once.
"""

from pathlib import PurePosixPath

from rljob_api import cluster
from rljob_api.spec import PersistenceKind, RLJob
from rljob_operator.build.parts import Owner, Site
from rljob_operator.build.placement import run_volume, shares_node
from rljob_operator.options import OperatorOptions

_NODE_LOCAL = ("emptyDir", "hostPath")


def warnings(job: RLJob) -> list[str]:
    """A sentence each: field, what it costs, and the cure."""
    site = Site.of(job, Owner(namespace="", uid=""), OperatorOptions())
    found = (_checkpoint_volume(site), _checkpoint_path(site), _control_state(site))
    return [sentence for sentence in found if sentence is not None]


def _checkpoint_volume(site: Site) -> str | None:
    source = next((key for key in run_volume(site) if key in _NODE_LOCAL), None)
    if source is not None:
        return (
            f"roles.actor.template.spec.volumes[run]: {source} is the node's own disk, so a lost node takes all"
            " checkpoints with it. Use storage that all nodes share."
        )
    if shares_node(site):
        return (
            "checkpoint.volume.accessMode: ReadWriteOnce is not shared storage. Actor and coordinator share a node, and"
            " a lost node takes the job down until the volume can be mounted elsewhere (never, where it is the node's"
            " own disk). Give ReadWriteMany and a class of storage that all nodes share."
        )
    return None


def _checkpoint_path(site: Site) -> str | None:
    path = PurePosixPath(site.job.spec.checkpoint.path or ".")
    place = PurePosixPath(cluster.RUN_DIR) / path
    if ".." not in place.parts and PurePosixPath(cluster.RUN_DIR) in (place, *place.parents):
        return None
    return (
        f"checkpoint.path: {path} is not on the checkpoint volume, which is mounted at {cluster.RUN_DIR}, so a"
        " lost pod takes the checkpoints with it unless a volume lies there. Give a path relative to the run folder."
    )


def _control_state(site: Site) -> str | None:
    if site.job.spec.transfer_queue.redis.persistence.kind is not PersistenceKind.EMPTY_DIR:
        return None
    return (
        "transferQueue.redis.persistence.kind: EmptyDir goes with its pod, so the loss of that pod takes the job back"
        " to its last checkpoint. Give Claim to lose nothing."
    )
