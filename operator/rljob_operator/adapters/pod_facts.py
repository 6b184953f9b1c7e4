"""From a pod as the API server has it to the fact that the core decides on. Pure; its table is tested beside it."""

from collections.abc import Sequence

from rljob_api.wire.identity import PodKey
from rljob_operator.adapters.views import ON_ITS_WAY, ContainerEnd, PodView
from rljob_operator.core import PodEnding, PodFact, PodState

CRASH_LOOP = "CrashLoopBackOff"

STARTING = "its first process imports its libraries"
"""Said of a container that runs and has not passed its start-up probe: it imports."""

_DISRUPTIONS = {
    "PreemptionByScheduler": PodEnding.PREEMPTED,
    "DeletionByTaintManager": PodEnding.NODE_LOST,
    "DeletionByPodGC": PodEnding.NODE_LOST,
    "EvictionByEvictionAPI": PodEnding.EVICTED,
    "TerminationByKubelet": PodEnding.EVICTED,
}
"""Reasons of the condition DisruptionTarget."""

_EVICTIONS = frozenset({"Evicted", "Preempting", "Shutdown", "NodeShutdown", "Terminated", "NodeAffinity"})
"""Words in status.reason of a pod that the kubelet has failed."""

ANNOUNCED_SECONDS = 30.0
"""From a disruption that is announced to the deletion that is to follow: the next request of whoever announces it."""

_IMAGE_WORDS = ("ErrImagePull", "ImagePullBackOff")
"""Said in turns of an image that cannot be pulled. Told is the second, so that the reason does not come and go."""

SIGNAL_BASE = 128
"""A container that a signal killed exits with 128 and the signal's number."""


def life_of(pod: PodView) -> str:
    """`{pod uid}/{container restart count}`."""
    return f"{pod.uid}/{pod.restarts}"


def fact_of(key: PodKey, pod: PodView, template: str, up_at: float | None = None) -> PodFact:
    """What the platform says of one pod; `template` is the digest of the template that new pods get.

    `up_at`: when its launcher was seen to be past its start-up.
    """
    ending = ending_of(pod, template)
    end = pod.ended or (pod.last_end if pod.waiting == CRASH_LOOP else None)
    over = ending is not None or end is not None or pod.phase in ("Failed", "Succeeded")
    state = PodState.EXITED if over else PodState.RUNNING if pod.started else PodState.PENDING
    return PodFact(
        pod=key,
        life=life_of(pod),
        state=state,
        started_at=pod.running_since if pod.running_since is not None else pod.created_at,
        up_at=up_at,
        exit_code=exit_code(end),
        last_words=last_words(pod, end),
        ending=ending,
        reason=end.reason if end is not None else waits_for(pod),
        returns=returns(pod, ending),
        has_run=pod.phase not in ("", "Pending"),
        placed=bool(pod.node) or pod.phase not in ("", "Pending"),
        leaves_by=leaves_by(pod),
        marked=pod.deletion_cost not in ("", "0"),
    )


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


def leaves_by(pod: PodView) -> float | None:
    """When a pod that is taken away, and still runs, has to have ended."""
    if pod.running_since is None or pod.ended is not None or ending_of(pod, "") is None:
        return None
    if pod.gone_by is not None:
        return pod.gone_by
    return None if pod.disrupted_at is None else pod.disrupted_at + ANNOUNCED_SECONDS


def stranded(pods: Sequence[PodView], now: float) -> list[PodView]:
    """Pods that are being deleted and may have nobody to end them, if their node says nothing either."""
    return [
        pod
        for pod in pods
        if pod.gone_by is not None and (now > pod.gone_by or ending_of(pod, "") is PodEnding.NODE_LOST)
    ]


def exit_code(end: ContainerEnd | None) -> int | None:
    """As the core has it: -N for signal N. Containers say 128 + N."""
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
    """The platform's word for what keeps the pod from running, if that is not only time."""
    if pod.waiting not in ON_ITS_WAY:
        return _IMAGE_WORDS[1] if pod.waiting in _IMAGE_WORDS else pod.waiting
    return pod.unscheduled_reason or "Unschedulable" if pod.unscheduled else ""


def is_on_its_way(pod: PodView) -> bool:
    """Whether its status names nothing that keeps it from running, and it does not run yet."""
    is_begun = pod.running_since is not None or pod.ended is not None or pod.deleting
    return pod.phase in ("", "Pending") and not is_begun and pod.waiting in ON_ITS_WAY and not pod.unscheduled


def last_words(pod: PodView, end: ContainerEnd | None) -> str:
    """What the container or its platform said last."""
    if end is not None and end.reason == "OOMKilled":
        return end.reason  # its last line is of something else
    if end is not None:
        return end.message or (f"{end.reason}" if end.reason not in ("Error", "Completed") else "")
    said = _of_waiting(pod) if pod.waiting not in ON_ITS_WAY else ""
    said = said or (STARTING if pod.running_since is not None and not pod.started else "")
    return pod.disruption_message or pod.message or said or pod.unscheduled


def _of_waiting(pod: PodView) -> str:
    """In the kubelet's words; of an image that is not named there, with its name."""
    said = pod.waiting_message or pod.waiting
    is_named = pod.waiting not in _IMAGE_WORDS or pod.image in said
    return said if is_named else f"image {pod.image}: {said}"
