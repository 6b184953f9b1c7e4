"""Causes: every observed failure that may restart something, found once per decision and handed to the policies.

Of a broken collective the lost rank is the cause, and the ranks that left with EXIT_GROUP_BROKEN are explained by it.
If no rank is reported lost, the collective counts that ranks report name the one that did not come. Pure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rljob_api.names import EXIT_GROUP_BROKEN, EXIT_SUCCEEDED, Role
from rljob_api.status import PodStatus, RLJobStatus
from rljob_api.wire.epochs import UNSEEN_POD, PodOrder
from rljob_api.wire.failures import Failure, FailureKind, Hopeless
from rljob_api.wire.identity import PodKey
from rljob_api.wire.launchers import RankProcess
from rljob_operator.core.decision import Cause
from rljob_operator.core.liveness import hanging, is_cut_off, is_silent, lost_before, lost_pods, never_ran
from rljob_operator.core.membership import gang_of, pods, remaining
from rljob_operator.core.observed import Observed, ordered_processes, pod_uid
from rljob_operator.core.reasons import Reason


def explained(observed: Observed, status: RLJobStatus, causes: Sequence[Cause], now: float) -> list[Cause]:
    """`causes` without those that another one explains; what is left of a broken gang names who did not come."""
    own = [cause for cause in causes if not _is_consequence(cause)]
    lost = {gang_of(observed.topologies, cause.pod) for cause in own}
    left: dict[tuple[Role, int], list[Cause]] = {}
    for cause in causes:
        gang = gang_of(observed.topologies, cause.pod)
        if _is_consequence(cause) and gang not in lost:
            left.setdefault(gang, []).append(cause)
    for gang, consequences in left.items():
        behind = _behind(observed, status, gang)
        if not behind:
            own += consequences
            continue
        named = _naming(behind, consequences[0])
        own.append(replace(named, counts=not _never_reached(observed, status, *behind[0], now)))
    return own


def _is_consequence(cause: Cause) -> bool:
    return cause.reason is Reason.RANK_EXITED and cause.exit_code == EXIT_GROUP_BROKEN


def _naming(behind: list[tuple[PodKey, RankProcess]], consequence: Cause) -> Cause:
    """One cause for all: the first that did not come, and what those report that waited for it."""
    pod, process = behind[0]
    who = ", ".join(f"{key}.{rank.rank}" for key, rank in behind)
    where = "has not come out of" if process.is_within_collective else "went no further than"
    message = f"{who} {where} collective {process.collectives or 0}: {consequence.message}"
    return replace(consequence, reason=Reason.HANG, pod=pod, message=message, exit_code=process.exit_code)


def _never_reached(observed: Observed, status: RLJobStatus, key: PodKey, process: RankProcess, now: float) -> bool:
    """Whether a rank did not come since it does not reach the coordinator: what its pod reports may come later."""
    pods = observed.coordinator.pods if observed.coordinator is not None else []
    return process.cut_off or any(seen.pod == key and is_cut_off(observed, status, seen, now) for seen in pods)


def _behind(observed: Observed, status: RLJobStatus, gang: tuple[Role, int]) -> list[tuple[PodKey, RankProcess]]:
    """The ranks that the others of `gang` waited for; none where they cannot be distinguished.

    Of those in the collective that the fewest have passed, the ones that still run: the others have given up.
    """
    ranks = _of_one_gang(observed, list(_ranks(observed, status, gang)))
    lowest = min((rank.collectives or 0 for _, rank in ranks), default=0)
    late = [(key, rank) for key, rank in ranks if (rank.collectives or 0) == lowest]
    running = [(key, rank) for key, rank in late if rank.exit_code is None]
    found = running or late
    return found if len(found) < len(ranks) else []


def _of_one_gang(observed: Observed, ranks: list[tuple[PodKey, RankProcess]]) -> list[tuple[PodKey, RankProcess]]:
    """Of the gangs that a pod may have several of, the first that has broken."""
    by_gang: dict[int, list[tuple[PodKey, RankProcess]]] = {}
    for key, process in ranks:
        shape = observed.topologies.get(key.role)
        first = 0 if shape is None else shape.gang_of(shape.ranks_of(key.replica).start + process.rank).start
        by_gang.setdefault(first, []).append((key, process))
    broken = [of for of in by_gang.values() if any(process.exit_code == EXIT_GROUP_BROKEN for _, process in of)]
    return broken[0] if broken else ranks


def _ranks(observed: Observed, status: RLJobStatus, gang: tuple[Role, int]) -> Iterator[tuple[PodKey, RankProcess]]:
    for key, pod in remaining(status):
        is_of_it = gang_of(observed.topologies, key) == gang
        seen = observed.observations.get((key, pod.incarnation)) if is_of_it else None
        for process in ordered_processes(status, pod, seen) if seen is not None else []:
            yield key, process


_REASONS: dict[str, Reason] = {
    FailureKind.RANK_EXITED: Reason.RANK_EXITED,
    FailureKind.HANG: Reason.HANG,
    FailureKind.ROWS_LOST: Reason.ROWS_LOST,
    FailureKind.CHECKPOINT_DAMAGED: Reason.CHECKPOINT_DAMAGED,
}
"""Kinds that the restart table has to answer. Lost launchers are seen by the platform, engines by their launchers."""


_OF_THE_JOB = (FailureKind.ROWS_LOST, FailureKind.CHECKPOINT_DAMAGED)
"""Kinds that only a new epoch cures, whichever pod is named."""


@dataclass(frozen=True, slots=True)
class Causes:
    """What a decision is made from, beside the user's request and progress."""

    failures: tuple[Failure, ...]
    """Reported, of the incarnations that the job counts on now, oldest first. All others were restarted already."""
    unbegun: tuple[Cause, ...]
    """Lost pods that had not run: they are replaced, and nothing restarts for them."""
    silenced: tuple[Cause, ...]
    """Lost pods whose launchers fell silent in an epoch that was left: they are replaced, and count no more."""
    replaced: tuple[Cause, ...]
    """Pods whose incarnations are given up, whatever else is decided: the lost ones, those whose engine cannot start in
    a job whose engines can work, and those that did not begin for the second time what they were ordered."""
    restarting: tuple[Cause, ...]
    """What the restart table has to answer, at most one cause a pod: a lost pod explains its dead ranks, a dead rank
    explains a silent one, and a rank that is lost those of its gang that left for it."""


def causes_of(observed: Observed, status: RLJobStatus, now: float) -> Causes:
    """All of them; `status` has the facts that are observed now."""
    failures = _current_failures(observed, status)
    lost = tuple(lost_pods(observed, status, now))
    unbegun = tuple(cause for cause in lost if never_ran(observed, status, cause))
    hangs = hanging(observed, status, now)
    before = [cause for cause in lost if cause not in unbegun and lost_before(observed, status, cause, now)]
    begun = [cause for cause in lost if cause not in unbegun and cause not in before]
    silenced = tuple(cause for cause in before if is_silent(observed, cause))
    unable = _unable(status, failures)
    replaced = (*lost, *unable, *(cause for cause in hangs if cause.lost))
    first: dict[str, Cause] = {}
    found = [*begun, *_lost_unseen(observed, status), *unable, *_reported(status, failures), *hangs]
    for cause in explained(observed, status, found, now):
        first.setdefault(str(cause.pod), cause)
    return Causes(failures, unbegun, silenced, replaced, tuple(first.values()))


def engines_can_work(status: RLJobStatus) -> bool:
    """Whether an engine of the job was up with what this epoch runs with: its model and settings are not at fault."""
    return status.restart.proven_revision == status.restart.revision


def cannot_start(failure: Failure) -> bool:
    """Whether an engine has died of one cause again and again since its launcher began, and was never up."""
    return failure.kind is FailureKind.ENGINE_EXITED and failure.hopeless == Hopeless.ENGINE_CANNOT_START


def _current_failures(observed: Observed, status: RLJobStatus) -> tuple[Failure, ...]:
    if observed.coordinator is None:
        return ()
    generations = {key: pod.generation for key, pod in pods(status)}
    return tuple(
        failure
        for failure in observed.coordinator.failures
        if failure.epoch == status.restart.epoch and _generation_matters(failure, generations.get(failure.pod))
    )


def _generation_matters(failure: Failure, current: int | None) -> bool:
    """A report about the whole job is not bound to the generation of the pod that reported it."""
    if failure.kind in (*_OF_THE_JOB, FailureKind.REPORTED):
        return True
    return current is not None and failure.generation == current


def _reported(status: RLJobStatus, failures: tuple[Failure, ...]) -> list[Cause]:
    """A cause for every failure that the table has to answer."""
    return [
        Cause(
            id=failure.id,
            reason=_REASONS[failure.kind],
            pod=failure.pod,
            message=failure.message,
            only_global=failure.kind in _OF_THE_JOB,
            counts=failure.kind is not FailureKind.CHECKPOINT_DAMAGED and not failure.cut_off,
            exit_code=failure.exit_code,
        )
        for failure in failures
        if failure.kind in _REASONS and failure.exit_code != EXIT_SUCCEEDED and _is_news(status, failure)
    ]


def _unable(status: RLJobStatus, failures: tuple[Failure, ...]) -> list[Cause]:
    """A cause for every pod in which an engine cannot start though others of the job could: a device or a node of it.

    Its launcher would start it for ever. Another pod may be placed elsewhere, and the table bounds how often.
    """
    return [
        Cause(
            id=failure.id,
            reason=Reason.ENGINE_CANNOT_START,
            pod=failure.pod,
            message=failure.message,
            lost=True,
            exit_code=failure.exit_code,
        )
        for failure in failures
        if cannot_start(failure) and engines_can_work(status) and _is_news(status, failure)
    ]


def _is_news(status: RLJobStatus, failure: Failure) -> bool:
    """Exits of draining replicas are expected; only what they report of the whole job counts."""
    leaving = failure.pod not in {key for key, _ in remaining(status)}
    return failure.kind in _OF_THE_JOB or not leaving


def _lost_unseen(observed: Observed, status: RLJobStatus) -> list[Cause]:
    """A cause for every pod that was lost in an epoch before it was seen to be open, in the decision that sees it open.

    An epoch is opened and its orders are given; then the coordinator does not answer for a while. A pod that is lost
    meanwhile looks as if it belonged to the epoch before, and is replaced without a restart. When the coordinator
    answers again, it reports which orders it had: a pod that had one may have carried it out. Why they were lost is not
    known any more: they do not count.
    """
    restart = status.restart
    desired = observed.coordinator.desired if observed.coordinator is not None else None
    is_first_observed = observed.status.restart.opened < restart.opened == restart.epoch
    if not is_first_observed or desired is None or desired.epoch != restart.epoch:
        return []
    given = {order.pod: order for order in desired.pods}
    return [
        Cause(
            id=f"unseen/{order.pod_uid}/{order.generation}",
            reason=Reason.LAUNCHER_LOST,
            pod=key,
            message=f"{key} was lost in epoch {restart.epoch} while the coordinator did not answer",
            lost=True,
            counts=False,
        )
        for key, pod in remaining(status)
        if (order := given.get(key)) is not None and _is_given_up(pod, order)
    ]


def _is_given_up(pod: PodStatus, order: PodOrder) -> bool:
    """Whether the incarnation that this order was for is over: another pod, or another incarnation, has the number."""
    if order.pod_uid in ("", UNSEEN_POD) or order.generation >= pod.generation:
        return False
    return order.pod_uid == pod_uid(pod.lost_incarnation) or order.pod_uid != pod_uid(pod.incarnation)
