"""`rljob restart`: requests a restart of a job on a cluster through spec.restartRequest, and waits for it with --wait.

The operator carries the request out; this module only writes it and polls the status.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import click

from rljob_api.names import Role
from rljob_api.roles import field_name
from rljob_api.status import Phase
from rljob_cli.jobs.cluster import Cluster, ClusterProblem, Unreachable, give_up
from rljob_cli.ui.reporter import Reporter

_EPILOG = """\b
What happens:
  spec.restartRequest of the RLJob gets a new id with the role and the reason; the operator carries it out once and
  writes the id into status.restart.handledRequest. It is not counted towards restartPolicy.maxGlobalRestarts. Without
  --role the whole job restarts from its last checkpoint; so it does with --role actor, and critic. Any other role
  restarts alone.

\b
Exit codes: 0 asked for (with --wait: carried out), 1 not. For programs, --output json prints one object a line; its
"kind" is request (namespace, name, id), progress (phase, ready) or, with --wait, result (id, epoch).

\b
Examples:
  rljob restart quickstart --reason "a new driver on node 3"
  rljob restart quickstart --role reference --reason "it is slow" --wait"""


_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class _Request:
    name: str
    id: str
    role: Role | None
    reason: str


@click.command(epilog=_EPILOG)
@click.argument("name")
@click.option("-n", "--namespace", help="Namespace of the job.  [default: that of the current context]")
@click.option("--role", type=click.Choice([role.value for role in Role]), help="Restart this role alone.")
@click.option("--reason", required=True, help="Why; told in events and conditions.")
@click.option("--wait", "waits", is_flag=True, help="Wait until the operator has carried it out.")
@click.option("--timeout", type=click.IntRange(1), default=600, show_default=True, help="Seconds to --wait.")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", help="For people or for programs.")
def restart(
    *,
    name: str,
    namespace: str | None,
    role: str | None,
    reason: str,
    waits: bool,
    timeout: int,
    output: Literal["text", "json"],
) -> None:
    """Restart the RLJob NAME on a cluster, or one role of it."""
    request = _Request(name, _new_id(), None if role is None else Role(role), reason)
    reporter = Reporter(output)
    try:
        cluster = Cluster.connect(namespace)
        _check(cluster.job(name), request)
        wanted = {"id": request.id, "role": role, "reason": reason}
        cluster.change(name, {"spec": {"restartRequest": wanted}})
        what = "the job" if role is None else role
        sentence = f"A restart of {what} was asked for (id {request.id})."
        reporter.report("request", sentence, namespace=cluster.namespace, name=name, id=request.id)
        if waits:
            _wait(cluster, request, reporter, timeout)
    except ClusterProblem as problem:
        raise give_up(problem) from None


def _new_id() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(2)}"


def has_role(job: dict[str, Any], role: Role) -> bool:
    """Whether an RLJob, as the API server has it, has the role: by its spec, or where that says nothing its status."""
    reported = {row["name"] for row in job.get("status", {}).get("roles", [])}
    return job["spec"]["roles"].get(field_name(role)) is not None or role.value in reported


def _check(job: dict[str, Any], request: _Request) -> None:
    """Raises ClusterProblem where a restart means nothing."""
    _refuse_ended(job, request, "There is nothing to restart.")
    if job["spec"].get("suspend"):
        raise ClusterProblem(f"The RLJob {request.name} is suspended. Set spec.suspend to false, and it starts anew.")
    if request.role is not None and not has_role(job, request.role):
        raise ClusterProblem(f"--role: {request.role} is no role of the RLJob {request.name}. Name another or none.")


def _wait(cluster: Cluster, request: _Request, reporter: Reporter, seconds: int) -> None:
    """Until the status records that the operator carried it out; reports each phase in between."""
    deadline = time.monotonic() + seconds
    phase, unanswered = "", ""
    while time.monotonic() < deadline:
        try:
            job = cluster.job(request.name)
        except Unreachable as problem:
            unanswered = f" {problem}"
        else:
            unanswered = ""
            epoch = _epoch_after(job, request)
            if epoch is not None:
                sentence = f"The restart was carried out; the job is in epoch {epoch}."
                return reporter.report("result", sentence, id=request.id, epoch=epoch)
            phase = _report_phase(job, phase, reporter)
        time.sleep(_POLL_SECONDS)
    raise ClusterProblem(
        f"The restart {request.id} of the RLJob {request.name} was not carried out within {seconds} s (phase"
        f" {phase or 'unknown'}). See whether the operator runs; the request stands.{unanswered}"
    )


def _epoch_after(job: dict[str, Any], request: _Request) -> int | None:
    """The epoch once the request was carried out, None before. Raises ClusterProblem where it never will be."""
    done = job.get("status", {}).get("restart", {})
    if done.get("handledRequest") == request.id:
        return int(done.get("epoch", 0))
    _refuse_ended(job, request, f"The restart {request.id} was not carried out.")
    standing = (job["spec"].get("restartRequest") or {}).get("id")
    if standing != request.id:
        raise ClusterProblem(
            f"The request {request.id} was replaced by {standing or 'none'} before it was carried out. Ask again."
        )
    return None


def _report_phase(job: dict[str, Any], before: str, reporter: Reporter) -> str:
    status = job.get("status", {})
    phase = str(status.get("phase", ""))
    if phase and phase != before:
        ready = {role["name"]: role.get("ready", 0) for role in status.get("roles", [])}
        counts = ", ".join(f"{role} {count}" for role, count in ready.items())
        reporter.report("progress", f"{phase}" + (f" (ready: {counts})" if counts else ""), phase=phase, ready=ready)
    return phase


def _refuse_ended(job: dict[str, Any], request: _Request, consequence: str) -> None:
    phase = job.get("status", {}).get("phase")
    if phase == Phase.DELETING:
        raise ClusterProblem(
            f"The RLJob {request.name} is being deleted. {consequence} Apply it again once it is gone."
        )
    if phase in (Phase.SUCCEEDED, Phase.FAILED):
        raise ClusterProblem(
            f"The RLJob {request.name} has {'succeeded' if phase == Phase.SUCCEEDED else 'failed'}. {consequence} A new"
            f" job goes on from its checkpoint: rljob clone {request.name} --from-checkpoint"
        )
