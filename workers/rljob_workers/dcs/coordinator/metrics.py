"""`/metrics`: the coordinator's state, its process and the ranks' counters in Prometheus' text format.

Called by the coordinator in its thread. Cardinality is bounded: label values are roles, replicas and ranks of the job,
figures of its last step, and sets and sources of its evaluations; names come from `FAMILIES` and from nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from rljob_api.wire.observation import CoordinatorStatus, ServerState
from rljob_api.wire.ranks import StepReport
from rljob_workers.dcs.coordinator import demand, queue_room
from rljob_workers.dcs.membership import counters
from rljob_workers.telemetry import evaluation_series, step_series
from rljob_workers.telemetry.exposition import Family, Labels, Sample, render

if TYPE_CHECKING:
    from rljob_workers.dcs.coordinator.coordinator import Coordinator


FAMILIES = {
    "rljob_build_info": Family("1; labels say what runs.", ("component", "version")),
    "rljob_server_open": Family("1 while the control Redis is open for the job."),
    "rljob_epoch": Family("Incarnation of the whole job."),
    "rljob_failures_unacknowledged": Family("Failures that wait for the operator."),
    "rljob_groups_issued": Family("Groups that were issued and not trained."),
    "rljob_groups_capacity": Family("How many may be."),
    "rljob_published_version": Family("Newest published weight version."),
    "rljob_recorded_version": Family("Version of the last recorded checkpoint."),
    "rljob_rows_ready": Family("Rows that wait for a task.", ("task",)),
    "rljob_step": Family("Last trained rollout id."),
    "rljob_reward": Family("Mean reward of the last step."),
    "rljob_loss": Family("Loss of the last step."),
    "rljob_staleness": Family("Last step's rollout id minus the oldest version in it."),
    "rljob_step_seconds": Family("Duration of the last step."),
    "rljob_step_samples": Family("Samples of the last step."),
    "rljob_step_tokens": Family("Tokens of the last step."),
    "rljob_group_samples": Family("Samples that a whole group has."),
    "rljob_rank_ready": Family("1 while the rank is ready.", counters.RANK_LABELS),
    "rljob_rank_beat_age_seconds": Family("Since its last beat.", counters.RANK_LABELS),
    **step_series.FAMILIES,
    **evaluation_series.FAMILIES,
    **counters.FAMILIES,
    **demand.FAMILIES,
    **queue_room.FAMILIES,
}
"""All that a coordinator may export of the job."""

_BUILD: Labels = (("component", "coordinator"), ("version", version("rljob")))

_PROCESS = CollectorRegistry()
ProcessCollector(registry=_PROCESS)  # process_*, under the names and without labels as every Prometheus client has them


def exposition(coordinator: Coordinator) -> str:
    """All samples, grouped by name."""
    status = coordinator.status()
    samples = [
        *_job_samples(status),
        ("rljob_group_samples", (), float(coordinator.group_samples)),
        *step_samples(status.last_step),
        *evaluation_series.samples_of(coordinator.evaluated),
        *_pod_samples(status),
        *_counter_samples(coordinator),
    ]
    queue = coordinator.queue.scraped()
    samples += [] if queue is None else queue_room.queue_samples(queue)
    samples += coordinator.ranks.demand.samples()
    of_job = render(FAMILIES, (("job", coordinator.job_name),), samples)
    return of_job + generate_latest(_PROCESS).decode()


def _job_samples(status: CoordinatorStatus) -> Iterator[Sample]:
    yield "rljob_build_info", _BUILD, 1.0
    yield "rljob_server_open", (), float(status.server is ServerState.OPEN)
    yield "rljob_epoch", (), float(status.epoch)
    yield "rljob_failures_unacknowledged", (), float(len(status.failures))
    yield "rljob_groups_issued", (), float(status.queue.groups_issued)
    yield "rljob_groups_capacity", (), float(status.queue.groups_capacity)
    if status.published is not None:
        yield "rljob_published_version", (), float(status.published)
    if status.recorded is not None:
        yield "rljob_recorded_version", (), float(status.recorded)
    for task, rows in status.queue.rows_ready.items():
        yield "rljob_rows_ready", (("task", task),), float(rows)


def step_samples(report: StepReport | None) -> Iterator[Sample]:
    """Of the last step, as all roles have reported it."""
    if report is None:
        return
    yield "rljob_step", (), float(report.step)
    yield "rljob_reward", (), report.reward
    yield "rljob_loss", (), report.loss
    yield "rljob_staleness", (), float(report.staleness)
    yield "rljob_step_seconds", (), report.seconds
    yield "rljob_step_samples", (), float(report.samples)
    yield "rljob_step_tokens", (), float(report.tokens)
    yield from step_series.samples_of(report.metrics)


def _pod_samples(status: CoordinatorStatus) -> Iterator[Sample]:
    for pod in status.pods:
        for rank in pod.ranks:
            labels = _rank_labels(pod.pod.role.value, pod.pod.replica, rank.rank)
            yield "rljob_rank_ready", labels, float(rank.state == "Ready")
            yield "rljob_rank_beat_age_seconds", labels, rank.beat_age_seconds


def _counter_samples(coordinator: Coordinator) -> Iterator[Sample]:
    for entry in coordinator.ranks.by_rank().values():
        key = entry.hello.incarnation.key
        received = coordinator.ranks.beats.get(entry.hello.incarnation.id)
        if received is None:
            continue
        labels = _rank_labels(key.role.value, key.replica, key.rank)
        for name, value in {**counters.from_zero(key.role), **received.beat.counters}.items():
            if name in counters.COUNTERS:
                yield f"rljob_rank_{name}_total", labels, value


def _rank_labels(role: str, replica: int, rank: int) -> Labels:
    return tuple(zip(counters.RANK_LABELS, (role, str(replica), str(rank)), strict=True))
