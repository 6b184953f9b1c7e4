"""What a launcher does next: the order of its pod against what runs. Level-triggered: asked again at every turn.

Pure. Called by `launcher`; knows neither processes nor the coordinator. An incarnation that died is started again only
by an order with a later epoch or generation: whether, is not the launcher's to decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from rljob_api.wire.epochs import PodOrder, PodPhase

DONE_GRACE_SECONDS = 10.0
"""How long ranks may take to leave a job that is done; nothing is lost with them."""

TERMINATION_GRACE_SECONDS = 25.0
"""How long ranks may drain when the launcher itself got SIGTERM; the kubelet's default gives 30 s to both. Ranks that
save may take what the pod is given (terminationGracePeriodSeconds): to be ended here would lose what they save."""


STOPPED_SLACK_SECONDS = 5.0
"""Beyond heartbeatTimeoutSeconds, so that a rank which has beaten before is named by its silence. This is for the
others, that have not registered, or are busy by their own report."""


@dataclass(frozen=True, slots=True)
class RankView:
    """The latest incarnation in one process slot."""

    rank: int
    epoch: int
    generation: int
    alive: bool
    drain_asked_at: float | None = None
    """When SIGTERM was sent, in seconds of the launcher's clock."""
    killed: bool = False
    """SIGKILL was sent; the incarnation is not collected yet."""
    stopped_seconds: float | None = None
    """For which it was seen to be stopped (SIGSTOP); None: it is not."""


@dataclass(frozen=True, slots=True)
class EngineView:
    """One of the pod's engine servers."""

    index: int
    alive: bool
    start_not_before: float = 0.0
    """Grows when engines die young."""
    gives_up_on: tuple[int, int] | None = None
    """(epoch, generation) under which it refused its configuration: it would do so again."""


@dataclass(frozen=True, slots=True)
class PodView:
    """All that runs in the pod."""

    num_ranks: int
    drain_seconds: float
    """How long ranks may drain."""
    ranks: tuple[RankView, ...] = ()
    engines: tuple[EngineView, ...] = ()
    terminating: bool = False
    """The launcher got SIGTERM."""
    saves: bool = False
    """Its ranks write checkpoints when they drain."""
    silence_seconds: float = 10.0
    """heartbeatTimeoutSeconds."""


@dataclass(frozen=True, slots=True)
class StartRank:
    """Fork a new incarnation."""

    rank: int


@dataclass(frozen=True, slots=True)
class DrainRank:
    """SIGTERM: finish or hand back, then exit 0."""

    rank: int


@dataclass(frozen=True, slots=True)
class KillRank:
    """SIGKILL."""

    rank: int
    why: str


@dataclass(frozen=True, slots=True)
class StartEngine:
    """Start an engine server."""

    index: int


@dataclass(frozen=True, slots=True)
class KillEngine:
    """SIGKILL: an engine has nothing to save."""

    index: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Nothing runs any more: the launcher exits."""


Step: TypeAlias = StartRank | DrainRank | KillRank | StartEngine | KillEngine | Leave


def plan(order: PodOrder | None, pod: PodView, now: float) -> list[Step]:
    """The steps that bring the pod nearer to its order; none when it is there or must wait."""
    if pod.terminating:
        return _end(pod, pod.drain_seconds if pod.saves else TERMINATION_GRACE_SECONDS, now)
    if order is None:
        return []
    if order.phase is PodPhase.DONE:
        return [*_kill_stopped(pod), *_end(pod, DONE_GRACE_SECONDS, now)]
    old = [view for view in _alive(pod) if _is_older(view, order)]
    outdated = [KillRank(view.rank, _outdated(view, order)) for view in old if not view.killed]
    if order.phase is PodPhase.DRAIN:
        current = [view for view in _alive(pod) if not _is_older(view, order)]
        return [*outdated, *_drain(current, pod.drain_seconds, now)]
    return [*outdated, *_kill_silent(order, pod), *_start_engines(order, pod, now), *_start_ranks(order, pod)]


def _kill_silent(order: PodOrder, pod: PodView) -> list[Step]:
    limit = pod.silence_seconds + STOPPED_SLACK_SECONDS
    return [
        KillRank(view.rank, f"it was stopped (SIGSTOP) for {view.stopped_seconds:.0f} s")
        for view in _alive(pod)
        if (view.stopped_seconds or 0.0) >= limit and not view.killed and not _is_older(view, order)
    ]


def _kill_stopped(pod: PodView) -> list[Step]:
    """Of a job that is done: they would not leave in any time."""
    stopped = [view for view in _alive(pod) if view.stopped_seconds is not None and not view.killed]
    return [KillRank(view.rank, "it is stopped (SIGSTOP), and the job is done") for view in stopped]


def _start_ranks(order: PodOrder, pod: PodView) -> list[Step]:
    latest = {view.rank: view for view in pod.ranks}
    return [
        StartRank(rank)
        for rank in range(pod.num_ranks)
        if rank not in latest or (not latest[rank].alive and _is_older(latest[rank], order))
    ]


def _start_engines(order: PodOrder, pod: PodView, now: float) -> list[Step]:
    return [StartEngine(engine.index) for engine in pod.engines if _may_start(order, engine, now)]


def _may_start(order: PodOrder, engine: EngineView, now: float) -> bool:
    if engine.alive or now < engine.start_not_before:
        return False
    return engine.gives_up_on is None or engine.gives_up_on < (order.epoch, order.generation)


def _drain(views: list[RankView], grace_seconds: float, now: float) -> list[Step]:
    steps: list[Step] = []
    for view in views:
        if view.drain_asked_at is None:
            steps.append(DrainRank(view.rank))
        elif now - view.drain_asked_at >= grace_seconds and not view.killed:
            steps.append(KillRank(view.rank, f"it has not drained within {grace_seconds:g} s"))
    return steps


def _end(pod: PodView, grace_seconds: float, now: float) -> list[Step]:
    """Ranks first, since they still talk to their engines; then the engines; then the launcher."""
    if alive := _alive(pod):
        return _drain(alive, grace_seconds, now)
    return [KillEngine(engine.index) for engine in pod.engines if engine.alive] or [Leave()]


def _alive(pod: PodView) -> list[RankView]:
    return [view for view in pod.ranks if view.alive]


def _is_older(view: RankView, order: PodOrder) -> bool:
    return (view.epoch, view.generation) < (order.epoch, order.generation)


def _outdated(view: RankView, order: PodOrder) -> str:
    return (
        f"it is of epoch {view.epoch}, generation {view.generation};"
        f" the order is epoch {order.epoch}, generation {order.generation}"
    )
