"""`/metrics` of a launcher: its pod's gauges in Prometheus' text format. Pure; called by `probes`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rljob_api.wire.launchers import EngineState
from rljob_workers.launcher.loop_plugins import EngineFacts, LauncherState
from rljob_workers.telemetry.exposition import Family, Labels, Sample, render

_POD = ("role", "replica")
_ENGINE = ("engine",)

FAMILIES = {
    "rljob_pod_ranks": Family("Ranks of the pod.", _POD),
    "rljob_pod_ranks_up": Family("Its ranks that run.", _POD),
    "rljob_pod_ranks_ready": Family("Its ranks that are ready.", _POD),
    "rljob_pod_rank_starts_total": Family("Starts of its ranks.", _POD),
    "rljob_pod_container_restarts_total": Family("Restarts of its container.", _POD),
    "rljob_pod_seen_seq": Family("Highest number of a change of the queue that it has seen.", _POD),
    "rljob_pod_epoch": Family("Epoch that it was ordered.", _POD),
    "rljob_pod_generation": Family("Generation that it was ordered.", _POD),
    "rljob_pod_engine_running": Family("1 while the engine runs.", _POD, _ENGINE),
    "rljob_pod_engine_starts_total": Family("Starts of the engine.", _POD, _ENGINE),
}
"""All that a launcher may tell."""


def exposition(job: str, role: str, container_restarts: int, state: LauncherState) -> str:
    """All samples. `role` and `replica` of the order are labels."""
    order = state.order
    pod = tuple(zip(_POD, (role, "" if order is None else str(order.pod.replica)), strict=True))
    figures: dict[str, float] = {
        "ranks": state.num_ranks,
        "ranks_up": state.ranks_up,
        "ranks_ready": state.ranks_ready,
        "rank_starts_total": state.rank_starts,
        "container_restarts_total": container_restarts,
        "seen_seq": state.seen_seq,
    }
    if order is not None:
        figures |= {"epoch": order.epoch, "generation": order.generation}
    own: list[Sample] = [(f"rljob_pod_{name}", pod, value) for name, value in figures.items()]
    return render(FAMILIES, (("job", job),), [*own, *_of_engines(pod, state.engines)])


def _of_engines(pod: Labels, engines: Sequence[EngineFacts]) -> Iterator[Sample]:
    """The only engine of a pod has the pod's labels; of several, each has its index as one more."""
    for index, engine in enumerate(engines):
        if engine.state is not None:
            labels = (*pod, ("engine", str(index))) if len(engines) > 1 else pod
            yield "rljob_pod_engine_running", labels, float(engine.state is EngineState.RUNNING)
            yield "rljob_pod_engine_starts_total", labels, engine.starts
