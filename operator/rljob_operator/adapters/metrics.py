"""The operator's metrics: `rljob_operator_*`, and those of every process of ours: `process_*`, `rljob_build_info`.

Names and labels are pinned by a test.
Labels hold the name of a job in `job_series` alone: what else is told of one job is its status, its events and its
workers' metrics.
"""

from importlib.metadata import version
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics

from rljob_api.names import Scope
from rljob_operator.adapters.job_series import JobSeries

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
            "Since the last sign of life of a watch; of several namespaces the longest.",
            ["resource"],
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
        self.leader = Gauge("rljob_operator_leader", "1 while this replica leads.", registry=registry)
        self.build_info = Gauge(
            "rljob_build_info", "1; labels say what runs.", ["component", "version"], registry=registry
        )
        self.build_info.labels("operator", version("rljob")).set(1)
        ProcessCollector(registry=registry)
        self.job_series = JobSeries(registry)
