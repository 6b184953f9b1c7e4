"""What the operator's /metrics say of each job: a few series, read from the statuses that it knows.

Made at each scrape from the cache alone, so that a job that is gone leaves nothing behind and a new leader goes on with
the numbers of the last one. A status that says something else than it should costs that one series, never the scrape.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rljob_api.times import seconds

Raw = Mapping[str, Any]

_LABELS = ("namespace", "job")
"""A scraper with `honorLabels` leaves them what they are: the job's, not the operator's."""
CONDITIONS = ("Accepted", "Ready", "CoordinatorReachable")
"""Those that the phase does not tell. Each is a line of every scrape for every job."""


class JobSeries(Collector):
    """Registers itself. `source` is filled in when the operator leads; until then there is no job."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.source: Callable[[], Iterable[Raw]] = lambda: ()
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Every family, each with a sample for those jobs that have one."""
        jobs = [(_key(raw), raw["status"]) for raw in self.source()]
        phase = GaugeMetricFamily("rljob_operator_job_phase", "1 for the phase of a job.", labels=[*_LABELS, "phase"])
        condition = GaugeMetricFamily(
            "rljob_operator_job_condition",
            "1 while a condition of a job is True, else 0.",
            labels=[*_LABELS, "condition"],
        )
        for key, status in jobs:
            phase.add_metric([*key, phase_of(status)], 1)
            for kind, holds in _conditions(status):
                condition.add_metric([*key, kind], holds)
        yield from (phase, condition)
        yield _family(GaugeMetricFamily, "step", "Last trained rollout id of a job.", jobs, "training", "step")
        yield _family(
            GaugeMetricFamily, "total_steps", "Rollouts that a job is to train.", jobs, "training", "totalSteps"
        )
        yield _family(
            CounterMetricFamily, "global_restarts", "Global restarts of a job.", jobs, "restart", "globalRestarts"
        )
        yield _family(GaugeMetricFamily, "rollouts", "Rollout replicas of a job.", jobs, "scaling", "replicas")
        yield _family(
            GaugeMetricFamily, "rollouts_wanted", "Rollout replicas that are wanted.", jobs, "scaling", "desired"
        )
        yield _family(
            GaugeMetricFamily, "ended_timestamp_seconds", "When a job has succeeded or failed.", jobs, "endedAt"
        )


def phase_of(status: Raw) -> str:
    """The phase of a job; one that nobody has written yet is Pending."""
    phase = status.get("phase")
    return phase if isinstance(phase, str) else "Pending"


def _key(raw: Raw) -> tuple[str, str]:
    return raw["metadata"]["namespace"], raw["metadata"]["name"]


def _family(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    text: str,
    jobs: Iterable[tuple[tuple[str, str], Raw]],
    *path: str,
) -> Metric:
    family = kind(f"rljob_operator_job_{name}", text, labels=_LABELS)
    for key, status in jobs:
        if (value := _number(status, path)) is not None:
            family.add_metric(key, value)
    return family


def _number(status: Raw, path: tuple[str, ...]) -> float | None:
    found: Any = status
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    if isinstance(found, str):
        try:
            return seconds(found)
        except ValueError:
            return None
    return float(found) if isinstance(found, int | float) else None


def _conditions(status: Raw) -> Iterator[tuple[str, float]]:
    conditions = status.get("conditions")
    for one in conditions if isinstance(conditions, list) else ():
        if isinstance(one, Mapping) and one.get("type") in CONDITIONS:
            yield one["type"], float(one.get("status") == "True")
