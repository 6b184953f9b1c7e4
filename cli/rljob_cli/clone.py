"""`rljob clone`: a new manifest from a job on a cluster. Prints it and changes nothing."""

import click

from rljob_api.cluster import checkpoint_claim_name
from rljob_cli.cloning import Clone, CloneProblem, clone, read_claim
from rljob_cli.cluster import Cluster, ClusterProblem, NoSuchJob, give_up

_EPILOG = """\b
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

\b
Exit codes: 0 printed, 1 not.

\b
Examples:
  rljob clone quickstart --from-checkpoint > next.yaml
  rljob clone quickstart --from-checkpoint --name quickstart-kl | kubectl apply --server-side -f -"""


@click.command("clone", epilog=_EPILOG)
@click.argument("name")
@click.option("--from-checkpoint", is_flag=True, help="Begin with the weights of the last recorded checkpoint.")
@click.option("--name", "new_name", metavar="NEW", help="Name of the new job.  [default: NAME-2]")
@click.option("-n", "--namespace", help="Namespace of the job.  [default: that of the current context]")
def clone_command(*, name: str, from_checkpoint: bool, new_name: str | None, namespace: str | None) -> None:
    """Print a new manifest made from the RLJob NAME on a cluster."""
    try:
        made = _clone(Cluster.connect(namespace), name, new_name, from_checkpoint=from_checkpoint)
    except ClusterProblem as problem:
        raise give_up(problem) from None
    except CloneProblem as problem:
        raise give_up(ClusterProblem(str(problem))) from None
    click.echo(made.text(), nl=False)


def _clone(cluster: Cluster, name: str, new_name: str | None, *, from_checkpoint: bool) -> Clone:
    """Of the job, or of the claim that one of this name has left."""
    claim = checkpoint_claim_name(name)
    try:
        resource = cluster.job(name)
    except NoSuchJob as missing:
        found = cluster.claim(claim)
        kept = None if found is None else read_claim(name, found)
        if kept is None:
            raise ClusterProblem(f"{missing} Nor is there a claim {claim} that one of this name has left.") from None
        return clone(None, new_name, from_checkpoint=from_checkpoint, kept=kept)
    found = cluster.claim(claim) if from_checkpoint else None
    kept = None if found is None else read_claim(name, found)
    return clone(resource, new_name, from_checkpoint=from_checkpoint, kept=kept)
