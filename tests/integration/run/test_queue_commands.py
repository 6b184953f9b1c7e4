"""`rljob queue` on a real run: every command of its page, and a drain that ends in the job's success."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from rljob_api.names import EXIT_BAD_MANIFEST
from rljob_cli.main import cli

from .job import RunningJob, at_leisure, kill, make_simulated, stop

PAGE = Path(__file__).parents[3] / "docs/queue.md"
SHOWN_RUN = "rljob-out/quickstart"
"""How the page calls the folder of a run."""


def commands_of_the_page() -> list[list[str]]:
    blocks = re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ rljob queue ")]
    return [shlex.split(line, comments=True) for line in lines]


def rljob(*arguments: str) -> Result:
    """In this process: what a command costs is mostly its start."""
    return CliRunner().invoke(cli, arguments)


def facts(job: RunningJob, *arguments: str) -> dict[str, Any]:
    """The last JSON line of `rljob queue`."""
    name, *others = arguments
    done = rljob("queue", name, str(job.out), *others, "--output", "json")
    assert done.exit_code == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def look_at_rows(job: RunningJob) -> None:
    """A row that is not ready to be trained while its reference is stopped, and its first tokens."""
    found: list[dict[str, Any]] = []
    reference = job.rank_pid("reference")

    def is_shown() -> bool:
        rows = facts(job, "peek", "actor_train", "--state", "unready", "--field", "tokens", "--values", "3")["rows"]
        found[:] = [row for row in rows if row["field"] is not None]
        return bool(found)

    stop(reference)
    job.wait_for("a row with tokens", is_shown)
    os.kill(reference, signal.SIGCONT)
    assert found[0]["groupState"] == "put"
    assert found[0]["states"]["actor_train"] == "unready"
    assert found[0]["lengths"]["tokens"] == found[0]["field"]["length"] > 3
    assert found[0]["field"]["dtype"] == "int32"
    assert len(found[0]["field"]["values"]) == 3


def every_command_of_the_page_runs(job: RunningJob) -> None:
    commands = [command for command in commands_of_the_page() if SHOWN_RUN in command]
    assert {command[2] for command in commands} == {"stats", "peek", "check", "drain"}
    for command in commands:
        done = rljob(*[str(job.out) if text == SHOWN_RUN else text for text in command[1:]])
        assert (done.exit_code, done.stderr) == (0, ""), command
        if "drain" in command:  # of a change that is taken back before its supervisor has looked there is no event
            reason = "TicketsGiven" if "--off" in command else "QueueDraining"
            job.wait_for("the word of it", lambda reported=reason: len(text_of(job, reported)) == 1)  # type: ignore[misc] # bound per turn


def text_of(job: RunningJob, reason: str) -> list[dict[str, Any]]:
    return [event for event in job.events() if event["reason"] == reason]


def the_drain_outlives_restarts(job: RunningJob) -> None:
    """The request stands when a process dies."""
    reported = len(text_of(job, "QueueDraining"))
    assert facts(job, "drain") == {"kind": "result", "drained": True}
    drained = facts(job, "stats")
    assert (drained["ticketsInWork"], drained["leases"], drained["withheld"]) == (0, [], "Draining")
    job.wait_for("the last trained step", lambda: job.step() == drained["published"] - 1)
    epoch = job.epoch()
    kill(job.infrastructure_pid("coordinator"))
    kill(job.rank_pid("actor"))
    job.wait_for("the next epoch", lambda: job.epoch() > epoch and job.ready())
    after = facts(job, "stats")
    assert (after["drainingSince"], after["ticketsInWork"]) == (drained["drainingSince"], 0)
    assert len(text_of(job, "QueueDraining")) == reported + 1
    job.wait_for("the word in the status", lambda: job.status()["reason"] == "QueueDraining")
    assert facts(job, "drain", "--off") == {"kind": "result", "tickets": "Give"}
    job.wait_for("the word of its end", lambda: len(text_of(job, "TicketsGiven")) == reported + 1)


def test_the_queue_of_a_run_is_looked_at_proven_and_drained(tmp_path: Path) -> None:
    """A rollout a second, and no checkpoint: what the page looks at stays in the queue, and the job outlasts it."""
    manifest = make_simulated(tmp_path, rollout={"numRollouts": 120}, checkpoint={"everySteps": 1000})
    with RunningJob(tmp_path, at_leisure(manifest, tmp_path, seconds=1.0)) as job:
        job.wait_for_step(3)
        look_at_rows(job)
        every_command_of_the_page_runs(job)
        the_drain_outlives_restarts(job)
        job.assert_succeeded()
        over = rljob("queue", "stats", str(job.out))
        assert (over.exit_code, over.stdout) == (EXIT_BAD_MANIFEST, "")
        assert over.stderr.startswith(f"Nothing runs in {job.out}: ")
