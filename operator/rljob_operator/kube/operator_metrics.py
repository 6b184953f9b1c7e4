"""Prometheus metrics of the operator: counters of its own work, and the series of every job.

Names and labels are a public surface. Series of jobs are computed at each scrape from the cache, so that those of a
deleted job disappear with it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from itertools import product
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rljob_api.names import Scope
from rljob_api.times import seconds

Raw = Mapping[str, Any]


_LABELS = ("namespace", "job")
"""A scraper with `honorLabels` leaves them what they are: the job's, not the operator's."""


CONDITIONS = ("Accepted", "Ready", "CoordinatorReachable")
"""Those that the phase does not imply. Each is a line of every scrape for every job."""


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
    """The phase of a job; one that was not written yet is Pending."""
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


disable_created_metrics()  # type: ignore[no-untyped-call]


_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


_COARSE = (0.005, 0.025, 0.1, 0.25, 1, 5)
"""For what has many labels: each scrape costs the loop as long as it has lines."""


_RESTART = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)


RESTART_STAGES = ("persisted", "told", "ready")


class Metrics:
    """All of them, in one registry."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.turn_seconds = Histogram(
            "rljob_operator_reconcile_seconds", "Duration of a turn.", ["result"], registry=registry, buckets=_FAST
        )
        self.turn_errors = Counter(
            "rljob_operator_reconcile_errors", "Turns that failed, by kind of error.", ["kind"], registry=registry
        )
        self.queue_depth = Gauge("rljob_operator_queue_depth", "Jobs that wait for a turn.", registry=registry)
        self.queue_lag = Gauge(
            "rljob_operator_queue_lag_seconds", "How long the longest waiting job waits.", registry=registry
        )
        self.queue_wait = Histogram(
            "rljob_operator_queue_wait_seconds",
            "From due to the turn, by urgency: alarm or progress.",
            ["urgency"],
            registry=registry,
            buckets=_FAST,
        )
        self.watch_age = Gauge(
            "rljob_operator_watch_age_seconds",
            "Since a watch was opened or has reported anything; of several namespaces the longest.",
            ["resource"],
            registry=registry,
        )
        self.watch_open = Gauge(
            "rljob_operator_watch_open",
            "1 while the watch of a kind is open in every namespace, else 0.",
            ["resource"],
            registry=registry,
        )
        self.census_age = Gauge(
            "rljob_operator_census_age_seconds",
            "Since RLJobs were counted, which finds what their watch has missed.",
            registry=registry,
        )
        self.watch_restarts = Counter(
            "rljob_operator_watch_restarts",
            "Watches that were begun anew, by cause.",
            ["resource", "cause"],
            registry=registry,
        )
        self.api_requests = Counter(
            "rljob_operator_api_requests",
            "Requests to the API server.",
            ["verb", "resource", "code"],
            registry=registry,
        )
        self.api_seconds = Histogram(
            "rljob_operator_api_request_seconds",
            "Their duration.",
            ["verb", "resource"],
            registry=registry,
            buckets=_COARSE,
        )
        self.coordinator_requests = Counter(
            "rljob_operator_coordinator_requests", "Requests to coordinators.", ["request", "result"], registry=registry
        )
        self.decisions = Counter(
            "rljob_operator_decisions",
            "Decisions that were told, by reason and scope.",
            ["reason", "scope"],
            registry=registry,
        )
        self.restart_seconds = Histogram(
            "rljob_operator_restart_seconds",
            "From the moment a failure was seen to a stage of its restart: persisted, told, ready.",
            ["scope", "stage"],
            registry=registry,
            buckets=_RESTART,
        )
        for scope, stage in product(Scope, RESTART_STAGES):
            # A series that begins with its first restart hides it: Prometheus counts what comes after the first value.
            self.restart_seconds.labels(scope.value, stage)
        self.jobs = Gauge("rljob_operator_jobs", "RLJobs by phase.", ["phase"], registry=registry)
        self.contended = Gauge(
            "rljob_operator_namespace_contended",
            "1 for a namespace whose RLJobs this operator would take care of and another one does.",
            ["job_namespace"],
            registry=registry,
        )
        self.leader = Gauge("rljob_operator_leader", "1 while this replica leads.", registry=registry)
        self.build_info = Gauge(
            "rljob_build_info", "1; labels say what runs.", ["component", "version"], registry=registry
        )
        self.build_info.labels("operator", version("rljob")).set(1)
        ProcessCollector(registry=registry)
        self.job_series = JobSeries(registry)
