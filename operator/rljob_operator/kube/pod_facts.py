"""Facts for the core from the pods of a job: its replicas, its infrastructure processes, their starts and ends.

Pure except for what is remembered between turns (`Ends`, `Startups`); that memory is lost with the operator, and then
limits begin again. Called by `cluster.observe`.
"""

import signal
from collections.abc import Iterable, Mapping, Sequence

from rljob_api.cluster import ASKED_TO_END, COMPONENT_CONTROL, COMPONENT_COORDINATOR, COMPONENT_STORAGE
from rljob_api.status import RLJobStatus
from rljob_api.wire.identity import PodKey
from rljob_operator.core import PodEnding, PodFact, PodState, ProcessFact
from rljob_operator.core.observed import Blocker
from rljob_operator.kube.clock import Clock
from rljob_operator.kube.views import ON_ITS_WAY, ContainerEnd, JobKey, PodView

CRASH_LOOP = "CrashLoopBackOff"


STARTING = "its first process imports its libraries"
"""Message of a container that runs and has not passed its start-up probe: it imports."""


_DISRUPTIONS = {
    "PreemptionByScheduler": PodEnding.PREEMPTED,
    "DeletionByTaintManager": PodEnding.NODE_LOST,
    "DeletionByPodGC": PodEnding.NODE_LOST,
    "EvictionByEvictionAPI": PodEnding.EVICTED,
    "TerminationByKubelet": PodEnding.EVICTED,
}
"""Reasons of the condition DisruptionTarget."""


_EVICTIONS = frozenset({"Evicted", "Preempting", "Shutdown", "NodeShutdown", "Terminated", "NodeAffinity"})
"""In status.reason of a pod that the kubelet has failed."""


ANNOUNCED_SECONDS = 30.0
"""From a disruption that is announced to the deletion that is to follow: the next request of the same component."""


_IMAGE_REASONS = ("ErrImagePull", "ImagePullBackOff")
"""Alternating reasons of an image that cannot be pulled. The second is reported, so that it does not change."""


_SIGNALS_OF_AN_END = (-signal.SIGTERM, -signal.SIGKILL)
"""A kubelet sends the second where the first has not ended the container in its grace."""


SIGNAL_BASE = 128
"""A container that a signal killed exits with 128 and the signal's number."""


def incarnation_of(pod: PodView) -> str:
    """`{pod uid}/{container restart count}`."""
    return f"{pod.uid}/{pod.restarts}"


def fact_of(key: PodKey, pod: PodView, template: str, now: float, up_at: float | None = None) -> PodFact:
    """What the platform reports of one pod; `template` is the digest of the template that new pods get.

    `up_at`: when its launcher was first seen to be past its start-up.
    """
    ending = ending_of(pod, template)
    end = pod.ended or (pod.last_end if pod.waiting == CRASH_LOOP else None)
    over = ending is not None or end is not None or pod.phase in ("Failed", "Succeeded")
    state = PodState.EXITED if over else PodState.RUNNING if pod.started else PodState.PENDING
    return PodFact(
        pod=key,
        incarnation=incarnation_of(pod),
        state=state,
        started_at=_started_at(pod, now, up_at),
        up_at=up_at,
        exit_code=exit_code(end),
        last_message=last_message(pod, end),
        ending=ending,
        reason=end.reason if end is not None else waits_for(pod),
        returns=returns(pod, ending),
        has_run=pod.phase not in ("", "Pending"),
        placed=bool(pod.node) or pod.phase not in ("", "Pending"),
        terminates_by=terminates_by(pod),
        marked=pod.deletion_cost not in ("", "0"),
        memory_note=memory_note(pod) if _was_out_of_memory(pod) else "",
        asked_to_end=ending is None and is_asked_to_end(pod.ended or pod.last_end),
    )


def _started_at(pod: PodView, now: float, up_at: float | None) -> float:
    """When its container began, or the pod was made; of a node whose clock is wrong, between what is certain."""
    if pod.running_since is None:
        return pod.created_at if up_at is None else max(pod.created_at, up_at)
    return max(pod.created_at, min(pod.running_since, now if up_at is None else up_at))


def _was_out_of_memory(pod: PodView) -> bool:
    end = pod.ended or pod.last_end
    return end is not None and end.reason == "OOMKilled"


def is_asked_to_end(end: ContainerEnd | None) -> bool:
    """Whether a launcher that was to end has noted that it turned, killed before its drain was over or not."""
    if end is None or end.reason == "OOMKilled":
        return False
    return ASKED_TO_END in end.message and exit_code(end) in _SIGNALS_OF_AN_END


def ending_of(pod: PodView, template: str) -> PodEnding | None:
    """Why the pod goes although nothing of its own has ended it."""
    if pod.disruption in _DISRUPTIONS:
        return _DISRUPTIONS[pod.disruption]
    if pod.phase == "Failed" and pod.reason in _EVICTIONS:
        return PodEnding.EVICTED
    if pod.reason == "NodeLost":
        return PodEnding.NODE_LOST
    if not pod.deleting:
        return None
    return PodEnding.OUTDATED if template and pod.template and pod.template != template else PodEnding.DELETED


def terminates_by(pod: PodView) -> float | None:
    """When a pod that is taken away, and still runs, has to have ended."""
    if pod.running_since is None or pod.ended is not None or ending_of(pod, "") is None:
        return None
    if pod.gone_by is not None:
        return pod.gone_by
    return None if pod.disrupted_at is None else pod.disrupted_at + ANNOUNCED_SECONDS


def stranded(pods: Sequence[PodView], now: float) -> list[PodView]:
    """Pods that are being deleted and outlast their grace period, or whose node is lost by the cluster's account."""
    return [
        pod
        for pod in pods
        if pod.gone_by is not None and (now > pod.gone_by or ending_of(pod, "") is PodEnding.NODE_LOST)
    ]


def exit_code(end: ContainerEnd | None) -> int | None:
    """As the core has it: -N for signal N. Containers report 128 + N."""
    if end is None:
        return None
    if end.signal:
        return -end.signal
    is_signal = SIGNAL_BASE < end.exit_code <= SIGNAL_BASE + 64
    return SIGNAL_BASE - end.exit_code if is_signal else end.exit_code


def returns(pod: PodView, ending: PodEnding | None) -> bool:
    """Whether the kubelet starts the container again by itself, and at once."""
    if ending is not None or pod.deleting or pod.phase in ("Failed", "Succeeded"):
        return False
    return pod.waiting != CRASH_LOOP


def waits_for(pod: PodView) -> str:
    """The platform's reason for which the pod does not run, if that is not only time."""
    if pod.waiting not in ON_ITS_WAY:
        return _IMAGE_REASONS[1] if pod.waiting in _IMAGE_REASONS else pod.waiting
    return pod.unscheduled_reason or "Unschedulable" if pod.unscheduled else ""


def is_on_its_way(pod: PodView) -> bool:
    """Whether its status names nothing that keeps it from running, and it does not run yet."""
    is_begun = pod.running_since is not None or pod.ended is not None or pod.deleting
    return pod.phase in ("", "Pending") and not is_begun and pod.waiting in ON_ITS_WAY and not pod.unscheduled


def last_message(pod: PodView, end: ContainerEnd | None) -> str:
    """The last message of the container or its platform."""
    if end is not None and end.reason == "OOMKilled":
        return memory_note(pod) or end.reason  # its last line is of something else
    if end is not None:
        return end.message or (f"{end.reason}" if end.reason not in ("Error", "Completed") else "")
    waiting = _of_waiting(pod) if pod.waiting not in ON_ITS_WAY else ""
    waiting = waiting or (STARTING if pod.running_since is not None and not pod.started else "")
    return pod.disruption_message or pod.message or waiting or pod.unscheduled


def memory_note(pod: PodView) -> str:
    """A sentence on the owner of the memory limit that a container has exceeded."""
    if not pod.memory_limit:
        return ""
    if pod.is_limit_ranged:
        return (
            f"its memory limit of {pod.memory_limit} is not the job's: a LimitRange of the namespace gives it to "
            "containers without one. Set resources.limits.memory, or have the LimitRange changed"
        )
    return f"its memory limit is {pod.memory_limit}"


def _of_waiting(pod: PodView) -> str:
    """As the kubelet reports it; where an image is not named there, with its name."""
    reported = pod.waiting_message or pod.waiting
    is_named = pod.waiting not in _IMAGE_REASONS or pod.image in reported
    return reported if is_named else f"image {pod.image}: {reported}"


_COMPONENTS = frozenset({COMPONENT_COORDINATOR, COMPONENT_CONTROL, COMPONENT_STORAGE})


MAX_ENDS = 20
"""Remembered ends of a process; the core asks for fewer."""


ABSENT_SECONDS = 5.0
"""A process without a pod is named after this long: until then its controller may just have been faster or slower."""


NO_POD = "it has no pod"


class Ends:
    """When the processes of a job ended: the API server remembers only the last end of each, and none reliably.

    Lost with the operator; then a process that does not stay up is noticed later, and not less surely.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[str, tuple[float, ...]]] = {}
        self._down: dict[str, float] = {}

    def down_since(self, name: str, pod: PodView | None) -> float | None:
        """When it was first seen not to run, or None; a process may have no pod.

        A restarted kubelet reports that of all its pods until it has probed them: their own times prove nothing.
        """
        if pod is not None and pod.started:
            self._down.pop(name, None)
            return None
        return self._down.setdefault(name, self._clock())

    def of(self, name: str, pod: PodView) -> tuple[float, ...]:
        """Its ends, oldest first, with the one that is seen now."""
        incarnation = incarnation_of(pod)
        known = self._seen.get(name)
        if known is None:
            ends: tuple[float, ...] = ()
        elif known[0] == incarnation:
            ends = known[1]
        else:
            ends = (*known[1], self._clock())[-MAX_ENDS:]  # its node's clock may be another
        self._seen[name] = (incarnation, ends)
        return ends


def infrastructure_facts(
    pods: Mapping[str, PodView], status: RLJobStatus, ends: Ends, blockers: Mapping[str, Blocker]
) -> tuple[ProcessFact, ...]:
    """A fact for every process of which there is a pod. `blockers`: of some of these."""
    known = _known(status)
    return tuple(_fact(name, pod, known.get(name), ends, blockers.get(name)) for name, pod in sorted(pods.items()))


def absent_facts(
    absent: Iterable[str], status: RLJobStatus, ends: Ends, blockers: Mapping[str, Blocker], now: float
) -> tuple[ProcessFact, ...]:
    """A fact for every process that should have a pod and has none; `blockers`: why, where that is known."""
    known, found = _known(status), []
    for name in absent:
        since, why = ends.down_since(name, None), blockers.get(name, Blocker("", NO_POD))
        if since is not None and (name in blockers or now - since >= ABSENT_SECONDS):
            found.append(
                ProcessFact(
                    name=name,
                    pid=None,
                    alive=True,  # there is nothing to be started again: its controller makes the pod when it may
                    num_restarts=known.get(name) or 0,
                    down_since=since,
                    reason=why.reason,
                    waits_for=why.sentence,
                )
            )
    return tuple(found)


def infrastructure_pods(key: JobKey, pods: Iterable[PodView]) -> Mapping[str, PodView]:
    """The newest pod of every process."""
    return {process_name(key, pod): pod for pod in pods if pod.component in _COMPONENTS and not pod.deleting}


def process_name(key: JobKey, pod: PodView) -> str:
    """coordinator, control, storage-0 ..."""
    if pod.component == COMPONENT_STORAGE:
        return pod.name.removeprefix(f"{key.name}-")
    return pod.component


def returns_by_itself(pod: PodView) -> bool:
    """Whether the kubelet starts it again."""
    return pod.phase not in ("Failed", "Succeeded") and not pod.deleting


def _known(status: RLJobStatus) -> dict[str, int]:
    return {process.name: process.restarts for process in status.infrastructure}


def _fact(name: str, pod: PodView, known: int | None, ends: Ends, blocker: Blocker | None) -> ProcessFact:
    end = pod.ended or pod.last_end
    stopped = pod.phase in ("Failed", "Succeeded") or pod.waiting == CRASH_LOOP
    news = known is not None and pod.restarts > known
    return ProcessFact(
        name=name,
        pid=None,
        alive=not news and not (stopped and not returns_by_itself(pod)),
        exits=ends.of(name, pod),
        num_restarts=pod.restarts,
        exit_code=exit_code(end),
        last_message=last_message(pod, end),
        down_since=ends.down_since(name, pod),
        reason=blocker.reason if blocker is not None else waits_for(pod),
        waits_for="" if pod.started else _waits_for(pod, blocker),
    )


def _waits_for(pod: PodView, blocker: Blocker | None) -> str:
    """What keeps it from running; of one that crashes again and again, also how it ended."""
    if blocker is not None:
        return f"{blocker.reason}: {blocker.sentence}"
    message = last_message(pod, pod.last_end if pod.waiting == CRASH_LOOP else None)
    return ": ".join(filter(None, (waits_for(pod), message))) or "it has not started"


class Startups:
    """When the containers of one job were first seen to be started, by incarnation: by no clock of a node."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, float] = {}

    def of(self, pods: Iterable[PodView]) -> Mapping[str, float]:
        """Incarnation -> Unix time, of those that are started now, or were and are the last of their pod."""
        known, now = self._seen, self._clock()
        by_incarnation = {incarnation_of(pod): pod for pod in pods}
        self._seen = {
            incarnation: known.get(incarnation, now)
            for incarnation, pod in by_incarnation.items()
            if pod.started or incarnation in known
        }
        return self._seen
