"""What an operator's process holds, and whether it grows with the jobs that came and went. The arithmetic is pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

KIB_PER_JOB = 8.0
"""Growth that is borne, for each job that came and went. An RLJob of the soak has 39 in the operator's cache."""
SLACK_KIB = 1024.0
"""What the allocator keeps, whatever the number of jobs. Beside it one object per job is seen from 33 jobs on, as the
third of an hour's calm has."""


@dataclass(frozen=True)
class Reading:
    """Memory of one moment."""

    jobs: int
    """That came and went in this process until then."""
    live: int
    """Jobs there were at the time."""
    rss_kib: float


def resident_kib(pid: int) -> float:
    """VmRSS of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("VmRSS:")))


def growth(readings: Sequence[Reading]) -> tuple[int, float]:
    """Jobs and KiB between the second third of the readings and the last one: the first third is the warm-up.

    Each third is its median, since a reading may fall into a turn that holds more for a moment.
    """
    third = len(readings) // 3
    assert third >= 1, f"{len(readings)} readings show no growth: at least three are needed"
    before, after = readings[third : 2 * third], readings[2 * third :]
    jobs = median(each.jobs for each in after) - median(each.jobs for each in before)
    return int(jobs), median(each.rss_kib for each in after) - median(each.rss_kib for each in before)


def is_flat(readings: Sequence[Reading]) -> bool:
    """Whether memory grows by less than an object for each job."""
    jobs, kib = growth(readings)
    return kib <= SLACK_KIB + KIB_PER_JOB * jobs
