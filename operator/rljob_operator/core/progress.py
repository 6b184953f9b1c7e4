"""Progress: what the coordinator says of training and the platform of its processes, copied into the status."""

from rljob_api.status import ProcessStatus, RestartStatus, RLJobStatus, StalenessStatus, TrainingStatus
from rljob_api.wire.launchers import EngineState
from rljob_api.wire.observation import CoordinatorStatus
from rljob_operator.core.observed import Observed
from rljob_operator.core.roster import enrol
from rljob_operator.core.wording import rounded


def refresh(observed: Observed, status: RLJobStatus, now: float) -> RLJobStatus:
    """`status` with all that is observed now. What is not observed stays as it was."""
    status = enrol(observed, status)
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
            "samples_per_second": rounded(report.samples / seconds),
            "tokens_per_second": rounded(report.tokens / seconds),
            "reward": rounded(report.reward),
            "staleness": StalenessStatus(current=report.staleness, max=max(old.staleness.max, report.staleness)),
        }
    return old.model_copy(update=update)
