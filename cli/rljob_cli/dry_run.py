"""`rljob run --dry-run`: reads what a run would begin with, and prints the plan of it. Starts nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

import click

from rljob_api.machine.devices import machine_devices
from rljob_api.model_files.size import model_shape
from rljob_cli.findings import Level
from rljob_cli.manifests import refuse
from rljob_cli.reward_trial import trial_findings
from rljob_cli.row_lengths import row_lengths
from rljob_cli.run_plan import plan_json, run_plan
from rljob_cli.run_plan_text import plan_text
from rljob_operator.local.device_placement import place

if TYPE_CHECKING:
    from rljob_api.spec import RLJob
    from rljob_cli.findings import Lines


def dry_run(job: RLJob, lines: Lines, output: Literal["text", "json"]) -> None:
    """Prints the plan; what would be refused ends the process with its sentence."""
    try:
        machine = machine_devices()
        placed = place(job.spec.roles, machine.names, machine.source)
        shape = model_shape(job.spec.model)
    except ValueError as error:
        refuse([lines.located(str(error))])
    for finding in trial_findings(job.spec):
        if finding.level is Level.PROBLEM:
            refuse([lines.located(finding.text)])
        click.echo(f"warning: {lines.located(finding.text)}", err=True)
    plan = run_plan(job, machine, placed, shape, row_lengths(job.spec, shape.max_positions))
    click.echo(json.dumps(plan_json(plan)) if output == "json" else plan_text(plan))
