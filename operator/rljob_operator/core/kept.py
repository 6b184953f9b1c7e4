"""Kept: what an earlier job of this name has left for this one, on a claim that outlived it.

Pure. Called by `decide`. The claim says how far the run was recorded, which is enough to know that nothing is left to
do; the coordinator, which sees the files, says above which epoch this job has to begin.
"""

from rljob_api.names import Epoch
from rljob_api.status import RLJobStatus
from rljob_api.wire.observation import ServerState
from rljob_operator.core.decision import Event, decision_id
from rljob_operator.core.observed import Observed
from rljob_operator.core.reasons import Reason

Step = tuple[RLJobStatus, tuple[Event, ...]]


def trained_before(observed: Observed) -> str | None:
    """The sentence for a job that has nothing left to train, so that none of its pods need be started; or None."""
    kept, count = observed.kept, observed.num_rollouts
    if kept is None or kept.recorded is None or kept.recorded < count:
        return None
    return (
        f"all {count} rollouts were trained by an earlier job of this name: the claim {kept.claim} has version "
        f"{kept.recorded}, and nothing was started. Raise rollout.numRollouts to train further, or delete the claim to "
        "start over"
    )


def with_record(observed: Observed, status: RLJobStatus) -> RLJobStatus:
    """`status` with the progress of the run that the claim tells of."""
    kept = observed.kept
    if kept is None or kept.recorded is None:
        return status
    update: dict[str, object] = {
        "total_steps": observed.num_rollouts,
        "weight_version": kept.recorded,
        "checkpoint": kept.recorded,
        "checkpoint_folder": kept.folder,
        "step": kept.recorded - 1 if kept.recorded > 0 else None,
    }
    return status.model_copy(update={"training": status.training.model_copy(update=update)})


def continued(observed: Observed, status: RLJobStatus, now: float) -> Step:
    """`status` with an epoch above all in which these checkpoints were trained on, unless it has begun one already.

    Nothing was started yet that would have to be restarted: launchers wait for the first epoch that is opened.
    """
    seen, restart = observed.coordinator, status.restart
    if seen is None or seen.server is ServerState.OPENING or seen.epoch > 0 or restart.opened >= restart.epoch:
        return status, ()
    earlier = seen.earlier_epoch
    if earlier < restart.epoch:
        return status, ()
    epoch, reason = Epoch(earlier + 1), Reason.RESUMED
    whose = " of an earlier job, whose last checkpoint it goes on from" if restart.opened == 0 else ""
    message = f"epoch {epoch} begins after epoch {earlier}{whose}"
    update = {"epoch": epoch, "decision_id": decision_id(epoch, reason, ()), "message": message, "decided_at": now}
    return status.model_copy(update={"restart": restart.model_copy(update=update)}), (Event(now, reason, message),)
