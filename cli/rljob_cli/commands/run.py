"""`rljob run`: trains a job on this machine, or prints with --dry-run what it would start.

Checks the manifest and the machine, then calls `rljob_operator.local`, which it imports only then. Starts no process
itself and decides nothing about a restart.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from rljob_api.cluster_rules import given_cluster_fields
from rljob_api.machine.devices import machine_devices
from rljob_cli.checks.findings import Level
from rljob_cli.checks.machine import engine_problem, extra_problem, tracker_problem, trainer_problem
from rljob_cli.checks.manifests import EarlierRun, checked_job_or_exit, refuse, run_folder
from rljob_cli.checks.overrides import SET_HELP, parsed_or_exit, set_option
from rljob_cli.checks.rewards import trial_findings, try_reward
from rljob_cli.checks.row_lengths import row_lengths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rljob_api.spec import RLJob
    from rljob_cli.checks.findings import Lines


def print_plan(job: RLJob, lines: Lines, output: Literal["text", "json"]) -> None:
    """Prints the plan; what would be refused ends the process with its sentence."""
    from rljob_cli.jobs.run_plan import ModelShapes, plan_json, run_plan
    from rljob_cli.ui.plan import plan_text
    from rljob_operator.local.device_placement import place

    try:
        machine = machine_devices()
        placed = place(job.spec.roles, machine.names, machine.source)
        shapes = ModelShapes.of(job.spec)
    except ValueError as error:
        refuse([lines.located(str(error))])
    for finding in trial_findings(job.spec):
        if finding.level is Level.PROBLEM:
            refuse([lines.located(finding.text)])
        click.echo(f"warning: {lines.located(finding.text)}", err=True)
    plan = run_plan(job, machine, placed, shapes, row_lengths(job.spec, shapes.policy.max_positions))
    click.echo(json.dumps(plan_json(plan)) if output == "json" else plan_text(plan))


_EPILOG = f"""\b
What happens:
  Every role of the job becomes processes of this machine, with a Redis of their own in between. They train until
  spec.rollout.numRollouts rollouts are trained and the last checkpoint is recorded. What dies is restarted by
  spec.restartPolicy; every decision stands in events.jsonl with its reason.

\b
Stop and resume:
  Ctrl-C saves a checkpoint and stops (a second Ctrl-C kills). The same command with the same folder goes on from
  there. So it does after a crash, of the machine too. --fresh starts over: what the earlier run wrote, by its record
  run.json, is kept as FOLDER.1 (then .2 ...), or deleted with --delete-earlier; other files stay where they are.

\b
On one machine:
  Fields that are for a cluster (image, resources, template, volume, deadlines ...) are checked and then not
  looked at; the first line says which. suspend: true is refused.

{SET_HELP}
\b
The folder (default rljob-out/NAME):
  status.json    the RLJob's status, with the processes    events.jsonl   every decision: time, reason, role, scope
  metrics.jsonl  a line per trained step                   samples.jsonl  a line per trained sample, with --audit
  timeline.json  open it in https://ui.perfetto.dev        checkpoints/   safetensors, Hugging Face's names
  logs/          a file per process                        trackers/      with telemetry.reportTo: how far each is

\b
Devices:
  Roles with gpus get this machine's, in the order actor, critic, rollout, actorFwd, reference: those of
  CUDA_VISIBLE_DEVICES, else all. Too few are refused with the arithmetic. --dry-run shows who gets which, and what
  would be in its memory; RLJOB_DEVICES=fake:8 pretends that there are eight, on which a run computes with the CPU.

\b
For programs, --output json prints one object a line; its "kind" is
  start   name, out, totalSteps
  event   as in events.jsonl: time, reason, role, scope, message
  step    as in metrics.jsonl: step, epoch, reward, loss, staleness, samplesPerSecond, ..., and restates, the epoch of
          the line that it replaces, where a restart has repeated the step
  result  the last one: phase, reason, message, steps, rewardFirst, rewardLast, seconds, checkpoint, resume, ...

\b
Exit codes: 0 succeeded, 1 failed, 64 bad manifest, 130 interrupted.

\b
Examples:
  rljob run examples/quickstart.yaml
  rljob run job.yaml --out /data/runs/first --audit
  rljob run job.yaml --set training.optimizer.learningRate=1e-6 --set metadata.name=slower
  rljob clone job | rljob run -               # from standard input; its paths are of the current folder
  RLJOB_DEVICES=fake:8 rljob run job.yaml --dry-run
  rljob run job.yaml --output json | jq 'select(.kind == "step") | .reward'"""


@click.command(epilog=_EPILOG)
@click.argument("file", type=click.Path(path_type=Path))
@set_option
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the run.  [default: rljob-out/NAME]")
@click.option("--fresh", is_flag=True, help="Start over; the earlier run in the folder is kept beside it.")
@click.option("--delete-earlier", is_flag=True, help="With --fresh: delete what the earlier run wrote instead.")
@click.option("--audit", is_flag=True, help="Log every trained sample (sets spec.telemetry.sampleLog).")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", help="For people or for programs.")
@click.option("--dry-run", is_flag=True, help="Start nothing: print processes, devices, settings and memory.")
def run(
    *,
    file: Path,
    overrides: tuple[str, ...],
    out: Path | None,
    fresh: bool,
    delete_earlier: bool,
    audit: bool,
    output: Literal["text", "json"],
    dry_run: bool,
) -> None:
    """Train the job of the manifest FILE on this machine, or go on where an earlier run of it stopped."""
    if delete_earlier and not fresh:
        raise click.UsageError("--delete-earlier deletes what --fresh keeps: give both.")
    job, lines = checked_job_or_exit(file, None if fresh else EarlierRun(out), parsed_or_exit(overrides))
    _mind_the_machine(job, lines)
    if dry_run:
        print_plan(job, lines, output)
        return
    engine = job.spec.roles.rollout.engine
    problem = extra_problem("worker", "rljob run") or trainer_problem(job.spec) or engine_problem(engine)
    problem = problem or tracker_problem(job.spec)
    if problem is None and engine.traits.compiles:  # before a server takes minutes to start
        problem = try_reward(job.spec, rows=0).problem if job.spec.rollout.reward.functions else None
    if problem is not None:
        refuse([lines.located(problem)])
    if audit:
        job = _with_audit(job)
    # Imported here, so that --help and bad manifests do not wait for it.
    from rljob_operator.local.earlier_run import Earlier
    from rljob_operator.local.errors import RunRefused
    from rljob_operator.local.start import run_job

    resume = _resume(file, overrides, out)
    folder = run_folder(out, job.metadata.name)
    earlier = (Earlier.DELETED if delete_earlier else Earlier.RETAINED) if fresh else Earlier.GOES_ON
    try:
        code = run_job(job, folder, earlier=earlier, output=output, resume=resume)
    except RunRefused as error:
        refuse([lines.located(str(error))])
    raise click.exceptions.Exit(code)


def _resume(file: Path, overrides: Sequence[str], out: Path | None) -> str:
    """The command that goes on with this run."""
    given = [option for text in overrides for option in ("--set", text)]
    return shlex.join(["rljob", "run", str(file), *given, *([] if out is None else ["--out", str(out)])])


def _mind_the_machine(job: RLJob, lines: Lines) -> None:
    """Refuses what asks for the opposite of a run, and says which fields are not looked at."""
    if job.spec.suspend:
        refuse([lines.located("spec.suspend: true asks that nothing runs. Set it to false; Ctrl-C stops a run.")])
    given = given_cluster_fields(job.spec)
    if given:
        mean = "means" if len(given) == 1 else "mean"
        click.echo(f"{', '.join(f'spec.{field}' for field in given)} {mean} nothing on one machine.", err=True)


def _with_audit(job: RLJob) -> RLJob:
    spec = job.spec.model_copy(update={"telemetry": job.spec.telemetry.model_copy(update={"sample_log": True})})
    return job.model_copy(update={"spec": spec})
