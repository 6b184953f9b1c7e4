"""The start of a job: always a new epoch, so that no message of an earlier start can count for this one.

What an earlier job of the same name left on a retained claim shows how far the run was recorded, which is enough to
know that nothing is left to train; the coordinator, which reads the files, reports the epoch to begin above. Pure.
"""

from collections.abc import Mapping

from rljob_api.names import Epoch, Role
from rljob_api.status import ConditionType, RLJobStatus
from rljob_operator.core.conditions import find, is_true, terminal, with_condition, without
from rljob_operator.core.decision import Event, Step, decision_id
from rljob_operator.core.membership import resized
from rljob_operator.core.observed import Observed, UserRequest
from rljob_operator.core.outcome import ended
from rljob_operator.core.queue import BY_USER, Hold
from rljob_operator.core.reasons import Reason


def trained_before(observed: Observed) -> str | None:
    """The sentence for a job that has nothing left to train, so that none of its pods need be started; or None."""
    retained, count = observed.retained, observed.num_rollouts
    if retained is None or retained.recorded is None or retained.recorded < count:
        return None
    return (
        f"all {count} rollouts were trained by an earlier job of this name: the claim {retained.claim} has version "
        f"{retained.recorded}, and nothing was started. Raise rollout.numRollouts to train further, or delete the "
        "claim to start over"
    )


def with_record(observed: Observed, status: RLJobStatus) -> RLJobStatus:
    """`status` with the progress of the run that the claim has."""
    retained = observed.retained
    if retained is None or retained.recorded is None:
        return status
    update: dict[str, object] = {
        "total_steps": observed.num_rollouts,
        "weight_version": retained.recorded,
        "checkpoint": retained.recorded,
        "checkpoint_folder": retained.folder,
        "step": retained.recorded - 1 if retained.recorded > 0 else None,
    }
    return status.model_copy(update={"training": status.training.model_copy(update=update)})


def continued(observed: Observed, status: RLJobStatus, now: float) -> Step:
    """`status` with an epoch above all in which these checkpoints were trained on, unless it has begun one already.

    Nothing was started yet that would have to be restarted: launchers wait for the first epoch that is opened.
    """
    seen, restart = observed.open_coordinator, status.restart
    if seen is None or seen.epoch > 0 or restart.opened >= restart.epoch:
        return status, ()
    earlier = seen.earlier_epoch
    if earlier < restart.epoch:
        return status, ()
    epoch, reason = Epoch(earlier + 1), Reason.RESUMED
    whose = " of an earlier job, whose last checkpoint it goes on from" if restart.opened == 0 else ""
    message = f"epoch {epoch} begins after epoch {earlier}{whose}"
    update = {"epoch": epoch, "decision_id": decision_id(epoch, reason, ()), "message": message, "decided_at": now}
    return status.model_copy(update={"restart": restart.model_copy(update=update)}), (Event(now, reason, message),)


LOCKED_OUT = (
    "the job's Secret was deleted, and nobody knows what was in it: its pods cannot be told anything, and no pod can "
    "start. Set spec.suspend to true, and back to false when the job is Suspended: it then goes on from its last "
    "recorded checkpoint with a new Secret"
)


def begin(
    last: RLJobStatus, replicas: Mapping[Role, int], now: float, request: UserRequest | None = None
) -> tuple[RLJobStatus, Event]:
    """The status to persist before anything is started, after a job whose last status was `last`.

    Failures and restarts that counted are forgotten: the user has seen them. `global_restarts` goes on counting.
    A restart that was asked for before is part of this one.
    """
    request = request or UserRequest()
    epoch = Epoch(last.restart.epoch + 1)
    reason = Reason.STARTED if last.restart.epoch == 0 else Reason.RESUMED
    message = f"epoch {epoch} begins" + ("" if reason is Reason.STARTED else f" after epoch {last.restart.epoch}")
    restart = last.restart.model_copy(
        update={
            "epoch": epoch,
            "decision_id": decision_id(epoch, reason, ()),
            "counted_towards_max": 0,
            "consecutive": 0,
            "backoff_until": None,
            "scope": None,
            "reason": None,
            "message": message,
            "decided_at": now,
            "opened_at": None,
            "revision": request.revision,
            # A local run has no revision: its user may have changed anything since.
            "proven_revision": last.restart.proven_revision if request.revision else None,
            "handled_request": _request(request) or last.restart.handled_request,
        }
    )
    # Conditions of the last start go; that the operator takes care of the job, that its coordinator answers, and what
    # became of its volume, stay.
    stay = {
        ConditionType.ACCEPTED,
        ConditionType.ADMITTED,
        ConditionType.COORDINATOR_REACHABLE,
        ConditionType.VOLUME_EXPANDED,
    }
    kinds = set(ConditionType) - stay
    update = {"restart": restart, "roles": [], "started_at": now, "waiting_since": now, "ended_at": None}
    status = resized(without(last, kinds).model_copy(update=update), replicas, now)
    return status, Event(now, reason, message)


def entered(observed: Observed, status: RLJobStatus, now: float) -> Step:
    """`status` with a job of a cluster begun that is new, or no longer suspended. Nothing else is changed."""
    request = observed.request
    if not observed.on_cluster:
        return status, ()
    status, events = _accepted(observed, status, now)
    if status.restart.epoch == 0:
        if terminal(status) is not None:
            return status, events
        if observed.hold is not None:
            return _created_suspended(status, observed.hold, now), events
        done = trained_before(observed)
        if done is not None:
            status, emitted = _finished_before(with_record(observed, status), done, now)
            return status, (*events, *emitted)
    suspended = is_true(status, ConditionType.SUSPENDED)
    if suspended and observed.hold is not None and terminal(status) is None:
        return _held_otherwise(status, observed.hold, now), events
    if status.restart.epoch > 0 and not (suspended and observed.hold is None):
        return status, events
    status, event = begin(status, observed.first_replicas, now, request)
    status, admitted = _by_admission(observed, status, now)
    if suspended:
        kind, reason = ConditionType.SUSPENDED, event.reason
        status = with_condition(status, kind, now, true=False, reason=reason, message=event.message)
    return status, (*events, *admitted, event)


def _by_admission(observed: Observed, status: RLJobStatus, now: float) -> Step:
    """`status` with the admission that the job starts by: its pods are made for these flavors until it starts again."""
    admission = observed.queue.admission if observed.queue is not None else None
    status = status.model_copy(update={"queue": admission})
    if admission is None:
        return status, ()
    message = f"LocalQueue {admission.name}: the job is admitted by ClusterQueue {admission.cluster_queue}"
    return status, (Event(now, Reason.ADMITTED, message, once=f"admitted/{status.restart.epoch}"),)


def _held_otherwise(status: RLJobStatus, hold: Hold, now: float) -> RLJobStatus:
    """`status` of a suspended job that the queue holds back, or the user in its place: the condition says which."""
    known = find(status, ConditionType.SUSPENDED)
    if known is None or (hold.reason is Reason.SUSPENDED and known.reason == Reason.SUSPENDED):
        return status
    recorded = status.training.checkpoint
    point = "begins" if not recorded else f"goes on from checkpoint {recorded}"
    why = "spec.suspend is true" if hold is BY_USER else hold.message
    message = f"{why}; the job {point} when that is over"
    return with_condition(status, ConditionType.SUSPENDED, now, true=True, reason=hold.reason, message=message)


def _finished_before(status: RLJobStatus, message: str, now: float) -> Step:
    """A job that an earlier one has done: nothing of it is begun."""
    kind, reason = ConditionType.SUSPENDED, Reason.SUCCEEDED
    if is_true(status, kind):
        status = with_condition(status, kind, now, true=False, reason=reason, message=message)
    return ended(status, ConditionType.SUCCEEDED, Event(now, reason, message))


def _accepted(observed: Observed, status: RLJobStatus, now: float) -> Step:
    request, refusal = observed.request, observed.request.refusal
    newest = request.generation if refusal is None else refusal.generation
    status = status.model_copy(update={"observed_generation": newest, "accepted": request.accepted})
    condition = find(status, ConditionType.ACCEPTED)
    if observed.secret_is_lost:
        event = Event(now, Reason.SECRET_LOST, LOCKED_OUT)
    elif refusal is not None:
        goes_on = f"The job goes on by the spec of generation {request.generation}, which was accepted last"
        event = Event(now, refusal.reason, f"{refusal.message.rstrip('.')}. {goes_on}")
    else:
        event = Event(now, Reason.ACCEPTED, "the operator takes care of this job")
    if condition is not None and (condition.reason, condition.message) == (event.reason, event.message):
        return status, ()
    kind, reason = ConditionType.ACCEPTED, event.reason
    is_well = event.reason is Reason.ACCEPTED
    return with_condition(status, kind, now, true=is_well, reason=reason, message=event.message), (event,)


def _created_suspended(status: RLJobStatus, hold: Hold, now: float) -> RLJobStatus:
    message = f"nothing was started yet: {hold.message}"
    if hold is BY_USER:
        message = "nothing was started yet; set spec.suspend to false to begin"
    return with_condition(status, ConditionType.SUSPENDED, now, true=True, reason=hold.reason, message=message)


def _request(request: UserRequest) -> str:
    return request.restart_request.id if request.restart_request is not None else ""
