"""When each launcher was seen to be past its start-up, which a pod's status does not say. Called by `observe`.

A launcher imports for seconds or minutes before it can register: the kubelet's start-up probe bounds that, and only
then do the limits of the core begin. Lost with the operator; then every launcher gets its time once more.
"""

import time
from collections.abc import Callable, Iterable, Mapping

from rljob_operator.adapters.pod_facts import life_of
from rljob_operator.adapters.views import PodView


class Startups:
    """First sights of one job's launchers, by life."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._seen: dict[str, float] = {}

    def of(self, pods: Iterable[PodView]) -> Mapping[str, float]:
        """Life -> Unix time, of those that are past it now; who is not among them any more is forgotten."""
        known, now = self._seen, self._clock()
        self._seen = {life: known.get(life, now) for life in (life_of(pod) for pod in pods if pod.started)}
        return self._seen
