"""Facts about the pods of coordinator and Redis, which their controllers and the kubelet start again by themselves.

A process counts as dead for just the one turn in which a new end of it is seen: until the status remembers the number
of its restarts. So every end is told once, and one that ends again and again is noticed by the core.
"""

import time
from collections.abc import Callable, Iterable, Mapping

from rljob_api.cluster import COMPONENT_CONTROL, COMPONENT_COORDINATOR, COMPONENT_STORAGE
from rljob_api.status import RLJobStatus
from rljob_operator.adapters.pod_facts import CRASH_LOOP, exit_code, last_words, waits_for
from rljob_operator.adapters.views import JobKey, PodView
from rljob_operator.core import ProcessFact
from rljob_operator.core.observed import Obstacle

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

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[str, tuple[float, ...]]] = {}
        self._down: dict[str, float] = {}

    def down_since(self, name: str, pod: PodView | None) -> float | None:
        """When it was first seen not to run, or None; a process may have no pod.

        A kubelet that is started again says that of all its pods, until it has looked: their own times say nothing.
        """
        if pod is not None and pod.started:
            self._down.pop(name, None)
            return None
        return self._down.setdefault(name, self._clock())

    def of(self, name: str, pod: PodView) -> tuple[float, ...]:
        """Its ends, oldest first, with the one that is seen now."""
        life = f"{pod.uid}/{pod.restarts}"
        known = self._seen.get(name)
        if known is None:
            ends: tuple[float, ...] = ()
        elif known[0] == life:
            ends = known[1]
        else:
            end = pod.last_end
            ends = (*known[1], end.finished_at if end is not None else self._clock())[-MAX_ENDS:]
        self._seen[name] = (life, ends)
        return ends


def infrastructure_facts(
    pods: Mapping[str, PodView], status: RLJobStatus, ends: Ends, told: Mapping[str, Obstacle] | None = None
) -> tuple[ProcessFact, ...]:
    """A fact for every process of which there is a pod. `told`: what Events say of some of these."""
    known, told = _known(status), told or {}
    return tuple(_fact(name, pod, known.get(name), ends, told.get(name)) for name, pod in sorted(pods.items()))


def absent_facts(
    absent: Iterable[str], status: RLJobStatus, ends: Ends, told: Mapping[str, Obstacle], now: float
) -> tuple[ProcessFact, ...]:
    """A fact for every process that should have a pod and has none; `told`: why, where that is known."""
    known, found = _known(status), []
    for name in absent:
        since, why = ends.down_since(name, None), told.get(name, Obstacle("", NO_POD))
        if since is not None and (name in told or now - since >= ABSENT_SECONDS):
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
    """Whether the kubelet starts it again without anybody's doing."""
    return pod.phase not in ("Failed", "Succeeded") and not pod.deleting


def _known(status: RLJobStatus) -> dict[str, int]:
    return {process.name: process.restarts for process in status.infrastructure}


def _fact(name: str, pod: PodView, known: int | None, ends: Ends, told: Obstacle | None) -> ProcessFact:
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
        last_words=last_words(pod, end),
        down_since=ends.down_since(name, pod),
        reason=told.reason if told is not None else waits_for(pod),
        waits_for="" if pod.started else _waits_for(pod, told),
    )


def _waits_for(pod: PodView, told: Obstacle | None) -> str:
    """What keeps it from running; of one that crashes again and again, also how it ended."""
    if told is not None:
        return f"{told.reason}: {told.sentence}"
    said = last_words(pod, pod.last_end if pod.waiting == CRASH_LOOP else None)
    return ": ".join(filter(None, (waits_for(pod), said))) or "it has not started"
