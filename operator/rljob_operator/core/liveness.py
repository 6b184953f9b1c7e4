"""Liveness: lost pods (launcher dead, replaced, silent, or taken away by the platform) and hanging ranks.

A lost pod is created again. It counts as a failure of its role, unless an update or the cluster took it away, its
launcher was fenced, its kubelet got no answer to its probes, or the network between pod and coordinator is cut. The
platform's facts decide; reported lost launchers are only acknowledged. A rank that announced long work is left alone
until its own deadline. While its launcher is silent too, the rank is not judged: the pod is. Before registration the
limit of registration holds; a pod whose ranks miss it for the second time is replaced. Pure.
"""

from rljob_api.names import EXIT_BAD_MANIFEST, EXIT_FENCED, Scope
from rljob_api.spec.restart import absence_seconds
from rljob_api.status import PodStatus, RLJobStatus
from rljob_api.wire.identity import PodKey
from rljob_api.wire.observation import CoordinatorStatus, PodObservation, RankObservation
from rljob_operator.core.decision import Cause
from rljob_operator.core.drain import is_terminating_gracefully
from rljob_operator.core.membership import remaining
from rljob_operator.core.observed import Observed, PodEnding, PodFact, PodState, ordered_processes, pod_uid
from rljob_operator.core.reachability import contact_since, seen_seconds
from rljob_operator.core.reasons import Reason, how_ended, message_of_end, quoted
from rljob_operator.core.restart import row

POLL_SLACK_SECONDS = 2.0
"""A launcher's poll is held open for about a second; without this a short heartbeat timeout would call that a hang."""


REGISTER_LIMIT_SECONDS = 120.0
"""From a pod's start to the registration of its launcher, or from an order to that of a rank. Both take a second; on a
machine that swaps or compiles byte code they were seen to take tens. Without a limit they could hang without a name."""


_ENDINGS = {
    PodEnding.EVICTED: (Reason.POD_EVICTED, "pod {} was evicted"),
    PodEnding.PREEMPTED: (Reason.POD_PREEMPTED, "pod {} was preempted by a pod of a higher priority"),
    PodEnding.NODE_LOST: (Reason.NODE_LOST, "the node of pod {} was lost"),
    PodEnding.DELETED: (Reason.POD_DELETED, "pod {} was deleted"),
    PodEnding.OUTDATED: (Reason.POD_OUTDATED, "pod {} is replaced, since its template was changed"),
}


def lost_pods(observed: Observed, status: RLJobStatus, now: float) -> list[Cause]:
    """A cause for every pod whose accepted incarnation is over."""
    found = [_lost_pod(observed, status, key, pod, now) for key, pod in remaining(status) if pod.incarnation]
    return [cause for cause in found if cause is not None]


def lost_before(observed: Observed, status: RLJobStatus, cause: Cause, now: float) -> bool:
    """Whether a lost pod belongs to an epoch that was left: then it is replaced and does not count again.

    One that is taken away before the next epoch is seen to be open costs nothing more either (see `unseen`), nor one
    that ends while a back-off holds that epoch back: one that dies as it starts would use up all restarts. Nor does
    one that has not even taken an order of this epoch: many are lost with a node, and each is noticed when its own time
    is over.
    """
    if not cause.lost:
        return False
    fact, decided_at = observed.facts.get(cause.pod), status.restart.decided_at or 0.0
    if status.restart.opened < status.restart.epoch:
        is_held_back = (status.restart.backoff_until or 0.0) > now
        return fact is None or not cause.counts or is_held_back or fact.started_at < decided_at
    if fact is None or not is_silent(observed, cause):
        return False
    seen = observed.observations.get((cause.pod, fact.incarnation))
    return seen is not None and seen.carried is not None and seen.carried.epoch < status.restart.epoch


def is_silent(observed: Observed, cause: Cause) -> bool:
    """Whether a lost pod has lost its node, or runs as far as its platform knows and does not answer."""
    fact = observed.facts.get(cause.pod)
    if cause.reason is Reason.NODE_LOST:
        return fact is not None
    return fact is not None and fact.state is PodState.RUNNING and cause.reason is Reason.LAUNCHER_LOST


def is_cut_off(observed: Observed, status: RLJobStatus, seen: PodObservation, now: float) -> bool:
    """Whether nothing of a pod reaches the coordinator any more, neither its launcher nor a rank, on a cluster.

    Its kubelet restarts a launcher that hangs, and its cluster reports a node that is lost: what is left of a pod
    that runs is the network. One machine has no such network, and a launcher whose ranks still beat hangs.
    """
    ages = (seen.poll_age_seconds, *(rank.beat_age_seconds for rank in seen.ranks))
    quiet = max(POLL_SLACK_SECONDS, observed.policy.heartbeat_timeout_seconds / 2)
    return observed.on_cluster and all(seen_seconds(status, age, now) > quiet for age in ages)


def _given_up_after_seconds(observed: Observed, status: RLJobStatus, seen: PodObservation, now: float) -> float:
    """After which silence of its launcher a pod that runs is given up.

    Where the network may be parted no earlier than its ranks leave by themselves: until then it may heal and cost
    nothing, and a death of that time is reported by the launcher that saw it.
    """
    limit = float(observed.policy.heartbeat_timeout_seconds)
    if is_cut_off(observed, status, seen, now):
        limit = max(limit, absence_seconds(observed.policy))
    return limit + POLL_SLACK_SECONDS


def never_ran(observed: Observed, status: RLJobStatus, cause: Cause) -> bool:
    """Whether a lost pod was taken away before it ran: it is replaced, and nothing has to be restarted for it.

    Such a pod waits on a node that is lost, as long as its cluster has not noticed. A node that is only cut off from
    its cluster reports no start: so the coordinator has to report, too, that no launcher of that pod has registered.
    Nor did a launcher run anything that was fenced when it registered.
    """
    fact = observed.facts.get(cause.pod)
    if not cause.lost or fact is None:
        return False
    taken_away = fact.ending is not None and not fact.has_run
    if not taken_away and cause.exit_code != EXIT_FENCED:
        return False
    coordinator, restart = observed.coordinator, status.restart
    if coordinator is None or coordinator.epoch < restart.opened:  # it has not read its state yet
        return restart.opened < restart.epoch
    uid = pod_uid(fact.incarnation)
    return all(seen.pod_uid != uid for seen in coordinator.pods)


def _lost_pod(observed: Observed, status: RLJobStatus, key: PodKey, pod: PodStatus, now: float) -> Cause | None:
    fact = observed.facts.get(key)
    if fact is None or pod_uid(fact.incarnation) != pod_uid(pod.incarnation):
        came = "" if fact is None else f" and replaced ({pod.incarnation} is now {fact.incarnation})"
        return _taken_away(key, pod, PodEnding.DELETED, came)
    if fact.ending is not None:
        # Where the others go on meanwhile nothing is decided before it has handed back what it had.
        if row(observed.policy, key.role) is Scope.IN_PLACE and is_terminating_gracefully(observed, key, fact, now):
            return None
        return _taken_away(key, pod, fact.ending, quoted(fact.last_message), fact)
    if fact.incarnation == pod.incarnation and fact.state is not PodState.EXITED:
        silent = _silent_launcher(observed, status, key, fact, now)
        if silent is None:
            return None
        seen = observed.observations.get((key, fact.incarnation))
        parted = seen is not None and is_cut_off(observed, status, seen, now)
        message = f"{silent}, nor has a rank of it beaten: it does not reach the coordinator" if parted else silent
        return Cause(f"pod/{pod.incarnation}", Reason.LAUNCHER_LOST, key, message, lost=True, counts=not parted)
    if fact.asked_to_end:
        return _unanswered(key, pod, fact)
    return Cause(
        id=f"pod/{pod.incarnation}",
        reason=Reason.LAUNCHER_LOST,
        pod=key,
        message=_how_ended(key, pod, fact),
        lost=True,
        counts=fact.exit_code != EXIT_FENCED and not _has_misread(observed, fact),
        exit_code=fact.exit_code,
        pod_reasons=(fact.reason,) if fact.reason else (),
    )


def _unanswered(key: PodKey, pod: PodStatus, fact: PodFact) -> Cause:
    """An end by a kubelet that got no answer from a launcher that turns: it is no failure of the pod."""
    message = f"the container of {key} was ended by its kubelet, whose probes were not answered, while its loop turned"
    return Cause(
        id=f"pod/{pod.incarnation}",
        reason=Reason.PROBES_UNANSWERED,
        pod=key,
        message=message,
        lost=True,
        counts=False,
        exit_code=fact.exit_code,
        pod_reasons=(fact.reason,) if fact.reason else (),
    )


def _taken_away(key: PodKey, pod: PodStatus, ending: PodEnding, because: str, fact: PodFact | None = None) -> Cause:
    reason, sentence = _ENDINGS[ending]
    return Cause(
        id=f"pod/{pod.incarnation}",
        reason=reason,
        pod=key,
        message=sentence.format(key) + because,
        lost=True,
        counts=False,
        exit_code=fact.exit_code if fact is not None else None,
        pod_reasons=(ending.value, *((fact.reason,) if fact is not None and fact.reason else ())),
    )


def _has_misread(observed: Observed, fact: PodFact) -> bool:
    """Whether a launcher refused a job's file that another client had changed."""
    return observed.job_file_was_edited and fact.exit_code == EXIT_BAD_MANIFEST


def _how_ended(key: PodKey, pod: PodStatus, fact: PodFact) -> str:
    because = (f" ({fact.reason})" if fact.reason else "") + (f": {fact.memory_note}" if fact.memory_note else "")
    if fact.incarnation != pod.incarnation:
        return f"the container of {key} restarted ({pod.incarnation} is now {fact.incarnation}){because}"
    message = message_of_end(fact.exit_code, fact.last_message)
    return f"the launcher of {key} {how_ended(fact.exit_code)}{because}{message}"


def _silent_launcher(observed: Observed, status: RLJobStatus, key: PodKey, fact: PodFact, now: float) -> str | None:
    if observed.coordinator is None or fact.state is not PodState.RUNNING:
        return None
    seen = observed.observations.get((key, fact.incarnation))
    if seen is None:
        # No launcher can register before the epoch is open: the coordinator may be the last to start.
        waited = now - max(fact.up_at or fact.started_at, status.restart.opened_at or 0.0, contact_since(status))
        limit = observed.policy.heartbeat_timeout_seconds if fact.stopped else REGISTER_LIMIT_SECONDS
        late = status.restart.opened == status.restart.epoch and waited > limit
        return f"the launcher of {key} has not registered with the coordinator in {waited:.0f} s" if late else None
    age = seen_seconds(status, seen.poll_age_seconds, now)
    if fact.stopped and seen.carried is not None and seen.carried.epoch < status.restart.opened:
        return f"the launcher of {key} is stopped (SIGSTOP) and does not take the order of epoch {status.restart.epoch}"
    limit = _given_up_after_seconds(observed, status, seen, now)
    if age <= (observed.policy.heartbeat_timeout_seconds if fact.stopped else limit):
        return None
    return f"the launcher of {key} has not asked the coordinator for orders in {age:.0f} s"


BEATS_AWAITED = 2
"""No rank is called silent before it could have beaten so often."""


def hanging(observed: Observed, status: RLJobStatus, now: float) -> list[Cause]:
    """A cause for every running rank that hangs, and for every pod that does not begin what it was ordered."""
    causes: list[Cause] = []
    for key, pod in remaining(status):
        seen = observed.observations.get((key, pod.incarnation))
        if seen is None or is_cut_off(observed, status, seen, now):
            continue  # it cannot ask for its order: its silence is judged, as its pod's
        causes += _silent_ranks(observed, status, key, pod, seen, now)
        causes += _unregistered(status, key, pod, seen, now - _ordered_at(observed, status, key, pod))
    return causes


def _hangs_after_seconds(observed: Observed) -> float:
    """After which silence a rank hangs.

    Ranks beat as often as the time-out asks that was in force when their epoch was opened. One that was made much
    shorter since would call all of them silent.
    """
    interval = observed.coordinator.beat_interval_seconds if observed.coordinator is not None else 0.0
    return max(observed.policy.heartbeat_timeout_seconds, BEATS_AWAITED * interval)


def overdue_in(observed: Observed, status: RLJobStatus, coordinator: CoordinatorStatus, now: float) -> list[float]:
    """Seconds until each rank and launcher would count as silent, if none beats or polls any more."""
    limit = _hangs_after_seconds(observed)
    judged = [pod for pod in coordinator.pods if not is_cut_off(observed, status, pod, now)]
    launchers = [
        _given_up_after_seconds(observed, status, pod, now) - seen_seconds(status, pod.poll_age_seconds, now)
        for pod in coordinator.pods
    ]
    return [*(_rank_overdue_in(status, rank, limit, now) for pod in judged for rank in pod.ranks), *launchers]


def _rank_overdue_in(status: RLJobStatus, rank: RankObservation, timeout_seconds: float, now: float) -> float:
    """Seconds from now until the rank hangs, if it does not beat any more; <= 0: it hangs."""
    left = timeout_seconds - seen_seconds(status, rank.beat_age_seconds, now)
    return max(left, rank.busy_left_seconds or 0.0) if rank.busy is not None else left


def _silent_ranks(
    observed: Observed, status: RLJobStatus, key: PodKey, pod: PodStatus, seen: PodObservation, now: float
) -> list[Cause]:
    timeout = _hangs_after_seconds(observed)
    if seen.poll_age_seconds > max(timeout / 2, POLL_SLACK_SECONDS):
        return []
    running = {process.incarnation for process in ordered_processes(status, pod, seen) if process.exit_code is None}
    return [
        Cause(
            f"hang/{rank.incarnation}",
            Reason.HANG,
            key,
            f"{key}.{rank.rank} has not beaten in {rank.beat_age_seconds:.0f} s; {_last_known(rank)}",
        )
        for rank in seen.ranks
        if rank.incarnation in running and _rank_overdue_in(status, rank, timeout, now) < 0
    ]


def _unregistered(
    status: RLJobStatus, key: PodKey, pod: PodStatus, seen: PodObservation, ordered_ago: float
) -> list[Cause]:
    """The first time the ranks are started again, by the table; the second time the whole pod."""
    if status.restart.opened < status.restart.epoch or ordered_ago <= REGISTER_LIMIT_SECONDS:
        return []
    processes = ordered_processes(status, pod, seen)
    registered = {rank.incarnation for rank in seen.ranks}
    late = [process for process in processes if process.exit_code is None and process.incarnation not in registered]
    if processes and not late:
        return []
    who = f"{key}.{late[0].rank} has not registered with the coordinator" if late else f"{key} has not started a rank"
    epoch, generation = status.restart.epoch, pod.generation
    what = f"{who} in {ordered_ago:.0f} s"
    id_ = f"hang/{late[0].incarnation}" if late else f"order/{pod.incarnation}/{epoch}/{generation}"
    again = pod.unregistered > 0
    message = what + (", for the second time: the pod is replaced" if again else "")
    return [Cause(id_, Reason.HANG, key, message, lost=again, unregistered=True)]


def _ordered_at(observed: Observed, status: RLJobStatus, key: PodKey, pod: PodStatus) -> float:
    """When the pod can have taken its order at the earliest."""
    fact = observed.facts.get(key)
    up_at = (fact.up_at or fact.started_at) if fact is not None else 0.0
    return max(pod.ordered_at, status.restart.opened_at or 0.0, up_at, contact_since(status))


def _last_known(rank: RankObservation) -> str:
    if rank.busy is not None:
        return f"it was busy with {rank.busy.what}, which it had announced for {rank.busy.seconds:g} s"
    if rank.waiting is not None:
        return f"it was waiting for {rank.waiting}"
    return "it was at work and had not announced anything long"
