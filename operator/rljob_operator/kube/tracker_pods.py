"""What is wrong with the pods that feed trackers, in sentences for Events of the job, which never waits for them.

Pure except for what is remembered between turns. Called by the reconciler.
"""

from collections.abc import Iterable

from rljob_api.cluster import COMPONENT_TRACKER
from rljob_operator.core.reasons import last_line
from rljob_operator.kube.pod_facts import exit_code, last_message, waits_for
from rljob_operator.kube.views import ContainerEnd, PodView

PATIENCE_SECONDS = 120.0
"""For a place on a node: a tracker's pod waits for the actor's, beside which the volume can be mounted."""

_PREFIX = f"{COMPONENT_TRACKER}-"


class TrackerPods:
    """Of one job."""

    def __init__(self) -> None:
        self._noted: dict[str, str] = {}

    def news(self, pods: Iterable[PodView], now: float) -> list[str]:
        """A sentence for each tracker with which something else is wrong than before."""
        found = []
        for pod in pods:
            if not pod.component.startswith(_PREFIX) or pod.deleting:
                continue
            what = _trouble(pod, now)
            if what and self._noted.get(pod.component) != what:
                tracker = pod.component.removeprefix(_PREFIX)
                found.append(f"telemetry.reportTo: {tracker}: {what.rstrip('.')}. The job does not wait for it.")
                self._noted[pod.component] = what
        return found


def _trouble(pod: PodView, now: float) -> str:
    """Empty where there is none. An end with 0 is one that was asked for."""
    end = pod.ended or pod.last_end
    if end is not None and (end.exit_code or end.signal):
        return _ended(pod, end)
    if pod.unscheduled and now - pod.created_at < PATIENCE_SECONDS:
        return ""
    reason = waits_for(pod)
    if not reason:
        return ""
    message = last_message(pod, None)
    return f"{reason}: {message}" if message and message != reason else reason


def _ended(pod: PodView, end: ContainerEnd) -> str:
    message = last_line(last_message(pod, end)).rstrip(".")
    return f"its process ended with {exit_code(end)}: {message or 'without output'}"
