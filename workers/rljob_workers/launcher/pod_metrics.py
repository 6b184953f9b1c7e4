"""`/metrics` of a launcher: its pod's gauges in Prometheus' text format. Pure; called by `probes`."""

from __future__ import annotations

from rljob_api.wire.launchers import EngineState
from rljob_workers.launcher.loop_plugins import LauncherState


def exposition(job: str, role: str, container_restarts: int, state: LauncherState) -> str:
    """All samples. `role` and `replica` of the order are labels; names come from the list below."""
    order = state.order
    replica = "" if order is None else str(order.pod.replica)
    labels = f'{{job="{job}",role="{role}",replica="{replica}"}}'
    rows: list[tuple[str, str, float]] = [
        ("rljob_pod_ranks", "gauge", state.num_ranks),
        ("rljob_pod_ranks_up", "gauge", state.ranks_up),
        ("rljob_pod_ranks_ready", "gauge", state.ranks_ready),
        ("rljob_pod_rank_starts_total", "counter", state.rank_starts),
        ("rljob_pod_container_restarts_total", "counter", container_restarts),
        ("rljob_pod_seen_seq", "gauge", state.seen_seq),
    ]
    if order is not None:
        rows += [("rljob_pod_epoch", "gauge", order.epoch), ("rljob_pod_generation", "gauge", order.generation)]
    if state.engine is not None:
        rows += [
            ("rljob_pod_engine_running", "gauge", float(state.engine is EngineState.RUNNING)),
            ("rljob_pod_engine_starts_total", "counter", state.engine_starts),
        ]
    return "".join(f"# TYPE {name} {kind}\n{name}{labels} {value}\n" for name, kind, value in rows)
