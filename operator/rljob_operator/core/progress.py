"""Progress of training, copied from the coordinator into the status, and the stall: no progress, no process dead.

Progress is a step, or what ranks report on the way to one (tokens, rows), bounded between two steps: endless motion
without a step is a stall, too (`Beat.progress`). A stall's message names the ranks that wait and for what. Pure.
"""

from rljob_api.names import Epoch
from rljob_api.status import (
    ConditionType,
    EvaluationStatus,
    ProcessStatus,
    RestartStatus,
    RLJobStatus,
    SetFigureStatus,
    StalenessStatus,
    TrainingStatus,
)
from rljob_api.times import seconds
from rljob_api.wire.launchers import EngineState
from rljob_api.wire.observation import CoordinatorStatus, RankObservation
from rljob_operator.core.conditions import find, is_scaling, is_true
from rljob_operator.core.decision import RestartGlobal
from rljob_operator.core.membership import pods, remaining, with_observations
from rljob_operator.core.observed import Observed, PodFact, PodState
from rljob_operator.core.reachability import contact_since
from rljob_operator.core.reasons import Reason


def refresh(observed: Observed, status: RLJobStatus, now: float) -> RLJobStatus:
    """`status` with all that is observed now. What is not observed stays as it was."""
    status = with_observations(observed, status)
    known = {process.name: process for process in status.infrastructure}
    infrastructure = [
        known.get(fact.name, ProcessStatus(name=fact.name)).model_copy(
            update={"pid": fact.pid, "restarts": fact.num_restarts}
        )
        for fact in observed.infrastructure
    ]
    # A process may have no pod for a moment: what is counted of it must not be forgotten by that.
    there = {fact.name for fact in observed.infrastructure}
    unseen = [process for process in known.values() if process.name in observed.processes - there]
    update: dict[str, object] = {
        "infrastructure": [*infrastructure, *unseen] if infrastructure else status.infrastructure
    }
    if observed.coordinator is not None:
        update["restart"] = _opened(status.restart, observed.coordinator, now)
        update["training"] = _training(status.training, observed.coordinator, observed.num_rollouts, now)
        update["evaluation"] = _evaluation(status.evaluation, observed.coordinator)
    return status.model_copy(update=update)


def has_advanced(before: int | None, step: int | None) -> bool:
    """Whether a step was trained in between. A restore takes the step back, and that is no progress."""
    return step is not None and (before is None or step > before)


def _opened(restart: RestartStatus, seen: CoordinatorStatus, now: float) -> RestartStatus:
    opened = max(restart.opened, min(seen.epoch, restart.epoch))
    at = now if opened == restart.epoch and restart.opened < opened else restart.opened_at
    proven = restart.revision if _an_engine_is_up(restart, seen) else restart.proven_revision
    return restart.model_copy(update={"opened": opened, "opened_at": at, "proven_revision": proven})


def _an_engine_is_up(restart: RestartStatus, seen: CoordinatorStatus) -> bool:
    """With the settings of this epoch: one of an earlier epoch runs on until its pod takes the order."""
    current = [pod for pod in seen.pods if pod.carried is not None and pod.carried.epoch == restart.epoch]
    return any(engine.state is EngineState.RUNNING for pod in current for engine in pod.engines)


def _training(old: TrainingStatus, seen: CoordinatorStatus, num_rollouts: int, now: float) -> TrainingStatus:
    update: dict[str, object] = {
        "step": seen.step,
        "total_steps": num_rollouts,
        "weight_version": seen.published,
        "checkpoint": seen.recorded,
        "checkpoint_folder": seen.recorded_folder,
        "queue_depth": seen.queue.groups_issued,
    }
    if has_advanced(old.step, seen.step):
        update["last_report_time"] = now
    report = seen.last_step
    if report is not None:
        seconds = max(report.seconds, 1e-9)
        update |= {
            "samples_per_second": _rounded(report.samples / seconds),
            "tokens_per_second": _rounded(report.tokens / seconds),
            "reward": _rounded(report.reward),
            "staleness": StalenessStatus(current=report.staleness, max=max(old.staleness.max, report.staleness)),
        }
    return old.model_copy(update=update)


def _evaluation(old: EvaluationStatus | None, seen: CoordinatorStatus) -> EvaluationStatus | None:
    """A coordinator that knows of none may have begun anew: what is known stands, unless a restore took it back."""
    found = seen.evaluation
    if found is None:
        is_void = old is not None and seen.published is not None and seen.published < old.version
        return None if is_void else old
    figures = [(one.name, one.metric, _rounded(one.value)) for one in found.sets]
    shown = ", ".join(f"{name} {value:.2f}" for name, _, value in figures) or "no score"
    return EvaluationStatus(
        version=found.version,
        step=found.version - 1 if found.version > 0 else None,
        sets=[SetFigureStatus(name=name, metric=metric, value=value) for name, metric, value in figures],
        summary=f"{shown} @ {found.version}",
    )


def _rounded(value: float) -> float:
    """To four significant digits: a status is read, `metrics` have the rest."""
    return float(f"{value:.4g}")


def stalled(observed: Observed, status: RLJobStatus, now: float) -> RestartGlobal | None:
    """A global restart when nothing has come forward for stallTimeoutSeconds, though tickets were given."""
    limit = observed.policy.stall_timeout_seconds
    if observed.open_coordinator is None or observed.open_coordinator.queue.draining_since is not None:
        return None
    stalls = stalls_at(observed, status, now)
    if now < stalls:
        return None
    if not is_true(status, ConditionType.READY) and (_is_rank_busy(observed) or _is_pod_starting(observed, status)):
        return None
    if _is_without_engine(observed.open_coordinator):
        return None
    still = now - stalls + limit
    message = (
        f"no step was trained and nothing was done for one in {still:.0f} s (stallTimeoutSeconds {limit}): "
        f"{_waiting_ranks(observed, status)}"
    )
    return RestartGlobal(Reason.STALLED, message, ids=(f"stall/{status.restart.epoch}",))


def stalls_at(observed: Observed, status: RLJobStatus, now: float) -> float:
    """When the job will be stalled, counted from the last progress, step, restart, readiness and end of a drain.

    And from the first answer of the coordinator after a lost contact that was reported.
    """
    ready = find(status, ConditionType.READY)
    # What comes and goes again would put a stall off for ever: only the roles' readiness counts.
    since_ready = 0.0
    if ready is not None and ready.status == "True" and ready.reason == Reason.READY:
        since_ready = seconds(ready.last_transition_time)
    last_step = status.training.last_report_time or 0.0
    since_epoch = max(
        status.restart.decided_at or 0.0, status.restart.backoff_until or 0.0, status.restart.opened_at or 0.0
    )
    since = max(last_step, since_epoch, since_ready, contact_since(status), *_reported_times(observed, now))
    return since + observed.policy.stall_timeout_seconds


def _reported_times(observed: Observed, now: float) -> list[float]:
    """When the job last advanced, and when a drain ended, as the coordinator reports."""
    if observed.coordinator is None:
        return []
    drained = observed.coordinator.queue.drained_until
    return [now - observed.coordinator.progress_age_seconds, *([] if drained is None else [min(drained, now)])]


def _is_pod_starting(observed: Observed, status: RLJobStatus) -> bool:
    """A pod that its platform has not started, which Ready names, or a launcher that has not registered.

    That has a limit of its own, after which the pod is replaced. A restart before it would cure nothing.
    """
    return not is_scaling(status) and any(
        _is_starting(observed, observed.facts.get(key)) for key, _ in remaining(status)
    )


def _is_starting(observed: Observed, fact: PodFact | None) -> bool:
    if fact is None or fact.state is PodState.PENDING:
        return True
    return fact.state is PodState.RUNNING and observed.observations.get((fact.pod, fact.incarnation)) is None


def _is_rank_busy(observed: Observed) -> bool:
    """Start-up is as long as the ranks announce: each has its own announced deadline."""
    coordinator = observed.coordinator
    if coordinator is None:
        return False
    return any((rank.busy_left_seconds or 0) > 0 for pod in coordinator.pods for rank in pod.ranks)


def _is_without_engine(coordinator: CoordinatorStatus) -> bool:
    """Every engine is about to start again: its launcher limits each start, and failures limit how many there are."""
    engines = [engine for pod in coordinator.pods for engine in pod.engines]
    return bool(engines) and all(engine.state is not EngineState.RUNNING for engine in engines)


def _waiting_ranks(observed: Observed, status: RLJobStatus) -> str:
    waiting = [
        f"{key}.{rank.rank} {_what(rank)}"
        for key, pod in pods(status)
        if (seen := observed.observations.get((key, pod.incarnation))) is not None
        for rank in seen.ranks
        if rank.epoch == Epoch(status.restart.epoch)
    ]
    return "; ".join(waiting) if waiting else "no rank has registered"


def _what(rank: RankObservation) -> str:
    """Who is at work is as telling as who waits: the others wait for it."""
    if rank.waiting is not None:
        return f"waits for {rank.waiting}"
    return "is at work" if rank.busy is None else f"is busy with {rank.busy.what}"
