"""Measured: what a phase of the load cost the operator, from /proc, its own metrics and its answers to probes.

Reads only; every figure is a difference of two readings, so that phases can be put side by side.
"""

import os
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

_TICKS = os.sysconf("SC_CLK_TCK")
PROBE_SECONDS = 0.5
"""Between two probes. Each is an answer of the loop: it is as late as the loop is."""

Labels = tuple[tuple[str, str], ...]


def cpu_seconds(pid: int) -> float:
    """User and system time that a process has used; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_mib(pid: int, what: str = "VmRSS") -> float:
    """Resident memory, or its peak (VmHWM)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(what + ":"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"/proc/{pid}/status says nothing of {what}")


def fetch(url: str, timeout: float = 30.0) -> str:
    """The body of an answer of this machine."""
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return str(answer.read().decode())


@dataclass(frozen=True)
class Reading:
    """One moment."""

    at: float
    operator_cpu: float
    control_plane_cpu: float
    rss_mib: float
    samples: Mapping[tuple[str, Labels], float]

    def sum_by(self, name: str, *labels: str) -> Counter[str]:
        """Values of a metric, summed over all labels but these."""
        found: Counter[str] = Counter()
        for (sample, given), value in self.samples.items():
            if sample == name:
                of = dict(given)
                found[" ".join(of[label] for label in labels)] += value  # type: ignore[assignment]
        return found


@dataclass
class Probes:
    """Asks `/healthz` again and again and notes how long the answer took."""

    url: str
    _latencies: list[float] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """In a thread of its own."""
        threading.Thread(target=self._run, daemon=True).start()

    def take(self) -> list[float]:
        """The latencies since the last call, in seconds."""
        taken, self._latencies = self._latencies, []
        return taken

    def stop(self) -> None:
        """Asks no more."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(PROBE_SECONDS):
            begin = time.perf_counter()
            try:
                fetch(self.url)
            except OSError:
                continue
            self._latencies.append(time.perf_counter() - begin)


@dataclass
class Meter:
    """Reads the operator."""

    operator: int
    control_plane: list[int]
    metrics_url: str

    def read(self) -> Reading:
        """Now."""
        families = text_string_to_metric_families(fetch(self.metrics_url))
        samples = {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}
        return Reading(
            at=time.monotonic(),
            operator_cpu=cpu_seconds(self.operator),
            control_plane_cpu=sum(map(cpu_seconds, self.control_plane)),
            rss_mib=memory_mib(self.operator),
            samples=samples,
        )


def compared(phase: str, before: Reading, after: Reading, num_jobs: int, latencies: list[float]) -> dict[str, Any]:
    """What a phase cost, ready to be printed."""
    wall = after.at - before.at
    cpu = after.operator_cpu - before.operator_cpu
    requests = after.sum_by("rljob_operator_api_requests_total", "verb", "resource")
    requests.subtract(before.sum_by("rljob_operator_api_requests_total", "verb", "resource"))
    asked = after.sum_by("rljob_operator_coordinator_requests_total", "request")
    asked.subtract(before.sum_by("rljob_operator_coordinator_requests_total", "request"))
    turns = _difference(before, after, "rljob_operator_reconcile_seconds")
    waits = _difference(before, after, "rljob_operator_queue_wait_seconds")
    alarms = _difference(before, after, "rljob_operator_queue_wait_seconds", urgency="alarm")
    errors = after.sum_by("rljob_operator_reconcile_errors_total", "kind")
    errors.subtract(before.sum_by("rljob_operator_reconcile_errors_total", "kind"))
    num_turns = turns[-1][1] if turns else 0.0
    written = requests["patch rljobs"]
    return {
        "phase": phase,
        "wall_s": round(wall, 1),
        "operator_cpu_s": round(cpu, 2),
        "operator_cpu_percent": round(100 * cpu / wall, 1),
        "cpu_ms_per_job": round(1000 * cpu / num_jobs, 2),
        "control_plane_cpu_s": round(after.control_plane_cpu - before.control_plane_cpu, 1),
        "rss_mib": round(after.rss_mib),
        "turns_per_job": round(num_turns / num_jobs, 2),
        "turn_p50_ms": _milliseconds(quantile(turns, 0.5)),
        "turn_p99_ms": _milliseconds(quantile(turns, 0.99)),
        "queue_wait_p99_ms": _milliseconds(quantile(waits, 0.99)),
        "alarm_wait_p99_ms": _milliseconds(quantile(alarms, 0.99)),
        "loop_p50_ms": _milliseconds(_nearest(latencies, 0.5)),
        "loop_p99_ms": _milliseconds(_nearest(latencies, 0.99)),
        "api_requests_per_job": round(sum(requests.values()) / num_jobs, 2),
        "status_writes_per_job_in_15_s": round(written / num_jobs * 15 / max(wall, 15), 2),
        "api_requests": {name: int(count) for name, count in requests.most_common() if count},
        "coordinator_requests": {name: int(count) for name, count in asked.most_common() if count},
        "turn_errors": {name: int(count) for name, count in errors.items() if count},
    }


def quantile(buckets: list[tuple[float, float]], share: float) -> float | None:
    """From a histogram's cumulative (bound, count), linear within a bucket, as Prometheus does it."""
    if not buckets or not buckets[-1][1]:
        return None
    rank, lower, below = share * buckets[-1][1], 0.0, 0.0
    for bound, count in buckets:
        if count >= rank:
            if bound == float("inf"):
                return lower
            return lower + (bound - lower) * (rank - below) / max(count - below, 1e-9)
        lower, below = bound, count
    return lower


def _difference(before: Reading, after: Reading, name: str, **only: str) -> list[tuple[float, float]]:
    """Of the samples that have these labels."""
    counts = after.sum_by(f"{name}_bucket", *only, "le")
    counts.subtract(before.sum_by(f"{name}_bucket", *only, "le"))
    reported = ((text.split(), count) for text, count in counts.items())
    return sorted((float(text[-1]), count) for text, count in reported if text[:-1] == list(only.values()))


def _nearest(values: list[float], share: float) -> float | None:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 1)
