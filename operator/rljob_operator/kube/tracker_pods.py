"""What is wrong with the pods that feed trackers, as facts for the status and sentences for Events.

No job waits for them. Pure except for what is remembered between turns (`TrackerNews`). Called by `cluster.observe`
and the reconciler.
"""

from collections.abc import Iterable, Mapping

from rljob_api.cluster import COMPONENT_TRACKER
from rljob_operator.core import TrackerFact
from rljob_operator.core.reasons import Reason, last_line
from rljob_operator.kube.pod_facts import exit_code, incarnation_of, last_message, waits_for
from rljob_operator.kube.views import ContainerEnd, PodView

PATIENCE_SECONDS = 120.0
"""For a place on a node: a tracker's pod waits for the actor's, beside which the volume can be mounted. And for a
process that was started again: what ended the one before counts for so long."""

_PREFIX = f"{COMPONENT_TRACKER}-"


def tracker_facts(pods: Iterable[PodView], up_at: Mapping[str, float], now: float) -> tuple[TrackerFact, ...]:
    """The state of each tracker's pod that is there to stay. `up_at`: when an incarnation was first seen started."""
    own = [pod for pod in pods if pod.component.startswith(_PREFIX) and not pod.deleting]
    return tuple(_fact(pod, up_at, now) for pod in sorted(own, key=lambda pod: pod.component))


class TrackerNews:
    """Of one job."""

    def __init__(self) -> None:
        self._noted: dict[str, str] = {}

    def of(self, facts: Iterable[TrackerFact]) -> list[str]:
        """A sentence for each tracker with which something else is wrong than before."""
        found = [fact for fact in facts if fact.trouble and self._noted.get(fact.tracker) != fact.trouble]
        self._noted |= {fact.tracker: fact.trouble for fact in found}
        return [fact.sentence for fact in found]


def _fact(pod: PodView, up_at: Mapping[str, float], now: float) -> TrackerFact:
    reason, trouble = _trouble(pod, up_at.get(incarnation_of(pod), now), now)
    tracker = pod.component.removeprefix(_PREFIX)
    return TrackerFact(tracker, runs=pod.started, reason=reason, trouble=trouble.rstrip("."))


def _trouble(pod: PodView, up_at: float, now: float) -> tuple[str, str]:
    """A stable reason and what it is; empty where there is none. An end with 0 is one that was asked for."""
    end = pod.ended or pod.last_end
    if end is not None and (end.exit_code or end.signal) and not (pod.started and now - up_at >= PATIENCE_SECONDS):
        return Reason.TRACKER_FAILED, _ended(pod, end)
    if pod.unscheduled and now - pod.created_at < PATIENCE_SECONDS:
        return "", ""
    reason = waits_for(pod)
    if not reason:
        return "", ""
    message = last_message(pod, None)
    if message.startswith('secret "'):
        message += ". Make the Secret that telemetry.keysFrom.secretName names"
    return reason, f"{reason}: {message}" if message and message != reason else reason


def _ended(pod: PodView, end: ContainerEnd) -> str:
    message = last_line(last_message(pod, end)).rstrip(".")
    return f"its process ended with {exit_code(end)}: {message or 'without output'}"
