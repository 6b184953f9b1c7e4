"""Random faults for a running job: any process of its tree is killed, or stopped for a while or for good, every few
seconds. The same seed chooses the same kinds of faults; what they meet is the machine's.
"""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass, field
from typing import Any

from .job import RunningJob

STOPS_SECONDS = (0.5, 3.0)
"""Shorter than any patience: no one may be accused."""
INFRASTRUCTURE_KILLS = 5
"""Of one process: one that ends more than ten times in two minutes fails the job, as it should."""


@dataclass(frozen=True)
class Chaos:
    """What happens, and how often."""

    seed: int
    num_faults: int
    seconds_between: tuple[float, float] = (1.0, 4.0)
    stops_for_good: bool = False
    """Then silence has to be found; it takes as long as the job's patience."""


@dataclass
class Tally:
    """What was done to a job."""

    faults: list[str] = field(default_factory=list)

    def kills_of(self, name: str) -> int:
        """Faults of one process that end it."""
        return sum(fault in (f"kill {name}", f"stop {name}") for fault in self.faults)


def strike(job: RunningJob, chaos: Chaos) -> Tally:
    """Carries out all faults, and leaves when the last has been done."""
    dice, tally = random.Random(chaos.seed), Tally()
    while len(tally.faults) < chaos.num_faults:
        time.sleep(dice.uniform(*chaos.seconds_between))
        kind = dice.choice(["kill", "kill", "pause", *(["stop"] if chaos.stops_for_good else [])])
        seconds, pick = dice.uniform(*STOPS_SECONDS), dice.random()
        assert job.process.poll() is None, f"the job ended under {tally.faults}\n{job.stated()}"
        living = sorted(_processes(job.status(), tally).items())
        if living:
            name, pid = living[int(pick * len(living))]
            if _hit(pid, kind, seconds):
                tally.faults.append(f"{kind} {name}")
    return tally


def assert_one_restart_a_cause(job: RunningJob, tally: Tally) -> None:
    """No one who was killed or stopped for good was the cause of two restarts, and who paused the cause of none."""
    status, events = job.status(), job.events()
    in_place = sum(event["scope"] == "InPlace" for event in events)
    restarted = status["restart"]["globalRestarts"]
    again = sum(row["restarts"] for row in status["infrastructure"])
    causes = [fault for fault in tally.faults if not fault.startswith("pause ")]
    what = f"{restarted} global restarts, {in_place} in place, {again} of infrastructure"
    assert restarted + in_place <= len(causes) >= again, f"{what}\nfaults: {tally.faults}\n{job.stated()}"


def _processes(status: dict[str, Any], tally: Tally) -> dict[str, int]:
    """Name -> pid of everything that a fault may hit now."""
    found: dict[str, int | None] = {}
    for role in status.get("roles", []):
        for pod in role["pods"]:
            found[f"launcher of {pod['name']}"] = pod["launcherPid"]
            found[f"engine of {pod['name']}"] = pod["enginePid"]
            found |= {f"{pod['name']}.{rank['rank']}": rank["pid"] for rank in pod["ranks"]}
    for row in status.get("infrastructure", []):
        if tally.kills_of(row["name"]) < INFRASTRUCTURE_KILLS:
            found[row["name"]] = row["pid"]
    return {name: pid for name, pid in found.items() if pid}


def _hit(pid: int, kind: str, seconds: float) -> bool:
    """False where it is gone already: the status is some tenths of a second old."""
    try:
        os.kill(pid, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
        if kind == "pause":
            time.sleep(seconds)
            os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return False
    return True
