"""`/metrics`: the coordinator's state and the ranks' counters in Prometheus' text format.

Called by the coordinator in its thread. Cardinality is bounded: label values are roles, replicas and ranks of the job,
names come from the lists below and from nowhere else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rljob_api.wire.observation import CoordinatorStatus, ServerState
from rljob_workers.dcs.coordinator.queue_metrics import Labels, Sample, queue_samples
from rljob_workers.dcs.counters import COUNTERS

if TYPE_CHECKING:
    from rljob_workers.dcs.coordinator.coordinator import Coordinator


def exposition(coordinator: Coordinator) -> str:
    """All samples, grouped by name."""
    status = coordinator.status()
    samples = [*_job_samples(status), *_step_samples(status), *_pod_samples(status), *_counter_samples(coordinator)]
    queue = coordinator.queue.scraped()
    samples += [] if queue is None else queue_samples(queue)
    grouped: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        grouped[sample[0]].append(sample)
    return "".join(_family(coordinator.job_name, name, rows) for name, rows in sorted(grouped.items()))


def _family(job: str, name: str, samples: list[Sample]) -> str:
    kind = "counter" if name.endswith("_total") else "gauge"
    lines = [f"# TYPE {name} {kind}\n"]
    for _, labels, value in samples:
        inside = ",".join(f'{key}="{text}"' for key, text in (("job", job), *labels))
        lines.append(f"{name}{{{inside}}} {value}\n")
    return "".join(lines)


def _job_samples(status: CoordinatorStatus) -> Iterator[Sample]:
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


def _step_samples(status: CoordinatorStatus) -> Iterator[Sample]:
    report = status.last_step
    if report is None:
        return
    yield "rljob_step", (), float(report.step)
    yield "rljob_reward", (), report.reward
    yield "rljob_loss", (), report.loss
    yield "rljob_staleness", (), float(report.staleness)
    yield "rljob_step_seconds", (), report.seconds
    yield "rljob_step_samples", (), float(report.samples)
    yield "rljob_step_tokens", (), float(report.tokens)


def _pod_samples(status: CoordinatorStatus) -> Iterator[Sample]:
    for pod in status.pods:
        for rank in pod.ranks:
            labels = _rank_labels(pod.pod.role.value, pod.pod.replica, rank.rank)
            yield "rljob_rank_ready", labels, float(rank.state == "Ready")
            yield "rljob_rank_beat_age_seconds", labels, rank.beat_age_seconds


def _counter_samples(coordinator: Coordinator) -> Iterator[Sample]:
    for entry in coordinator.pods.ranks().values():
        key = entry.hello.life.key
        heard = coordinator.pods.beats.get(entry.hello.life.incarnation)
        if heard is None:
            continue
        labels = _rank_labels(key.role.value, key.replica, key.rank)
        for name, value in heard.beat.counters.items():
            if name in COUNTERS:
                yield f"rljob_rank_{name}_total", labels, value


def _rank_labels(role: str, replica: int, rank: int) -> Labels:
    return (("role", role), ("replica", str(replica)), ("rank", str(rank)))
