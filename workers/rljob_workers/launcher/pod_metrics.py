"""`/metrics` of a launcher: its pod's gauges in Prometheus' text format. Pure; called by `probes`."""

from __future__ import annotations

from collections.abc import Sequence

from rljob_api.wire.launchers import EngineState
from rljob_workers.launcher.loop_plugins import EngineFacts, LauncherState

_RUNNING = "rljob_pod_engine_running"
_STARTS = "rljob_pod_engine_starts_total"


def exposition(job: str, role: str, container_restarts: int, state: LauncherState) -> str:
    """All samples. `role` and `replica` of the order are labels; names come from the list below."""
    order = state.order
    replica = "" if order is None else str(order.pod.replica)
    labels = f'job="{job}",role="{role}",replica="{replica}"'
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
    own = "".join(f"# TYPE {name} {kind}\n{name}{{{labels}}} {value}\n" for name, kind, value in rows)
    return own + _engines(labels, state.engines)


def _engines(labels: str, engines: Sequence[EngineFacts]) -> str:
    """The only engine of a pod has the pod's labels; of several, each has its index as one more."""
    several = len(engines) > 1
    known = [
        (f'{labels},engine="{index}"' if several else labels, engine)
        for index, engine in enumerate(engines)
        if engine.state is not None
    ]
    if not known:
        return ""
    running = [f"{_RUNNING}{{{own}}} {float(one.state is EngineState.RUNNING)}\n" for own, one in known]
    starts = [f"{_STARTS}{{{own}}} {one.starts}\n" for own, one in known]
    return "".join([f"# TYPE {_RUNNING} gauge\n", *running, f"# TYPE {_STARTS} counter\n", *starts])
