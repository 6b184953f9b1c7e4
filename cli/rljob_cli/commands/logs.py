"""`rljob logs`: prints the ends of a job's logs, of a run's files or from a cluster, also after the job has ended.

Reads the run folder itself; imports the client of the cluster (`jobs.cluster_logs`) only for a job on a cluster.
"""

from __future__ import annotations

from pathlib import Path

import click

from rljob_api.names import EXIT_BAD_MANIFEST, EXIT_SUCCEEDED, Role
from rljob_api.wire.logs import LOGS_DIR, LogTail, last_incarnations

_EPILOG = """\b
JOB is the folder of a run on this machine, or the name of an RLJob on a cluster (by your kubeconfig).

\b
On a machine all logs are files below logs/, and this prints their ends. On a cluster:
  while pods run     the ends of their logs, as kubectl logs has them
  when it has ended  the last 64 KiB of each rank's and engine's log, kept beside the checkpoints. A pod that lives
                     for seconds reads the volume: you need the rights to create, get and delete pods and for pods/log
  with --previous    the life before the present one of each rank and engine: what one wrote that died

\b
Exit codes: 0 printed, 1 the cluster does not answer or nothing is kept, 2 wrong use, 64 there is no such run.

\b
Examples:
  rljob logs rljob-out/quickstart --role actor
  rljob logs quickstart
  rljob logs quickstart --role rollout --previous"""


_READ_BYTES = 1 << 20


@click.command(epilog=_EPILOG)
@click.argument("job")
@click.option("--namespace", "-n", help="Namespace of the RLJob.  [default: that of your kubeconfig's context]")
@click.option("--role", type=click.Choice([role.value for role in Role]), help="Print logs of this role only.")
@click.option("--previous", is_flag=True, help="Print logs of the incarnation before the present one.")
@click.option("--lines", type=click.IntRange(min=1), default=100, show_default=True, help="Lines of each log's end.")
def logs(*, job: str, namespace: str | None, role: str | None, previous: bool, lines: int) -> None:
    """Print the ends of the logs of JOB."""
    wanted = None if role is None else Role(role)
    folder = Path(job)
    is_local = namespace is None and folder.is_dir()
    found = _of_run(folder, wanted, previous=previous) if is_local else _of_job(job, namespace, wanted, previous, lines)
    if not found:
        what = "no life before the present one has left a log" if previous else "there are no logs"
        click.echo(f"{job}: {what}{'' if role is None else f' of {role}'}.", err=True)
        raise click.exceptions.Exit(EXIT_SUCCEEDED)
    for tail in found:
        click.echo(f"==> {tail.name} <==")
        click.echo("\n".join(tail.text.rstrip("\n").split("\n")[-lines:]))


def _of_run(folder: Path, role: Role | None, *, previous: bool) -> list[LogTail]:
    """Ends of the files of a run folder. A log of the infrastructure has no incarnations to distinguish."""
    if not (folder / "job.json").exists():
        click.echo(f"{folder} is not the folder of a run: it has no job.json. Give the --out of a run.", err=True)
        raise click.exceptions.Exit(EXIT_BAD_MANIFEST)
    found = []
    for file in sorted((folder / LOGS_DIR).glob("*.log" if role is None else f"{role.value}-[0-9]*.log")):
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - _READ_BYTES))
            text = log.read().decode(errors="replace")
        text = last_incarnations(text)[1 if previous else 0]
        if text:
            found.append(LogTail.model_construct(name=file.stem, incarnation="", text=text))
    return found


def _of_job(job: str, namespace: str | None, role: Role | None, previous: bool, lines: int) -> list[LogTail]:
    from rljob_cli.jobs.cluster import Cluster, ClusterProblem, give_up
    from rljob_cli.jobs.cluster_logs import ClusterLogs

    try:
        asked = ClusterLogs(Cluster.connect(namespace), job)
        return asked.retained(role, previous=True) if previous else asked.current(role, lines)
    except ClusterProblem as problem:
        raise give_up(problem) from None
