"""Blockers: why objects of a job do not come to run, from the cluster's Events, from owned objects and from refusals.

`ClusterEvents` requests Events of suspect objects; the functions turn them into blockers of a pod, role or process;
`BlockerMemory` carries the refusals of one turn to the decision of the next.
"""

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rljob_api.cluster import (
    COMPONENT_CONTROL,
    COMPONENT_COORDINATOR,
    COMPONENT_STORAGE,
    control_name,
    coordinator_name,
    deployment_name,
    storage_name,
)
from rljob_api.names import Role
from rljob_operator.core.observed import Blocker
from rljob_operator.core.reasons import Reason
from rljob_operator.kube.api import Api, Json
from rljob_operator.kube.apply import ApplyOutcome, Refusal
from rljob_operator.kube.errors import ApiRefused, ApiUnreachable
from rljob_operator.kube.kinds import CLAIMS, DEPLOYMENTS, EVENTS, PODS, STATEFUL_SETS
from rljob_operator.kube.pod_facts import is_on_its_way, process_name
from rljob_operator.kube.views import JobKey, OwnedView, PodView
from rljob_operator.rate_limit import backoff_seconds

EVENTS_PATIENCE_SECONDS = 3.0
"""Most objects are on their way by then, and nothing is asked."""


ASK_AGAIN_SECONDS = (10.0, 120.0)


MOST_ASKED = 6
"""Objects in one turn: replicas of a role mostly wait for the same."""


_IN_CONDITIONS = frozenset({"FailedScheduling", "Scheduled"})
"""The pod's own conditions have these."""


_log = logging.getLogger(__name__)


class Suspect(NamedTuple):
    """An object that does not come to run."""

    kind: str
    name: str
    uid: str


@dataclass(slots=True)
class _Asked:
    due: float
    times: int = 0
    found: Blocker | None = None


class ClusterEvents:
    """Of one job's objects."""

    def __init__(self, api: Api, key: JobKey, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._key = key
        self._clock = clock
        self._known: dict[Suspect, _Asked] = {}

    async def about(self, suspects: Iterable[Suspect]) -> Mapping[Suspect, Blocker]:
        """The newest Event of each, where it is a warning. Objects that are no suspects any more are forgotten."""
        now = self._clock()
        self._known = {each: self._known.get(each) or _Asked(now + EVENTS_PATIENCE_SECONDS) for each in suspects}
        due = [(each, asked) for each, asked in self._known.items() if asked.due <= now]
        for suspect, asked in due[:MOST_ASKED]:
            asked.times += 1
            asked.due = now + backoff_seconds(asked.times, *ASK_AGAIN_SECONDS)
            try:
                asked.found = await self._ask(suspect)
            except (ApiRefused, ApiUnreachable) as error:  # an operator without this right works on
                _log.info("%s: events of %s %s: %s", self._key, suspect.kind, suspect.name, error)
                if isinstance(error, ApiUnreachable):
                    break  # the job would wait for each of the others as long
        return {each: asked.found for each, asked in self._known.items() if asked.found is not None}

    async def _ask(self, suspect: Suspect) -> Blocker | None:
        of = f"involvedObject.kind={suspect.kind},involvedObject.name={suspect.name}"
        page = await self._api.list(EVENTS, self._key.namespace, {"fieldSelector": of})
        return last_trouble(page["items"] or (), suspect.uid)


def last_trouble(events: Iterable[Json], uid: str) -> Blocker | None:
    """The newest event of this object, if it is a warning: what went well since then has cured it."""
    ours = [
        event
        for event in events
        if event["involvedObject"].get("uid", uid) == uid and event.get("reason") not in _IN_CONDITIONS
    ]
    # The newest by the order in which the API server wrote them: their times are of the clocks of several machines.
    newest = max(ours, key=lambda event: int(event["metadata"]["resourceVersion"]), default=None)
    if newest is None or newest.get("type") != "Warning":
        return None
    return Blocker(newest.get("reason", ""), with_limit_range(" ".join(newest.get("message", "").split())))


FAILED_CREATE = "FailedCreate"
"""Reason of the controllers whose pods the API server refuses."""


UNTRIED_SECONDS = 10.0
"""A scheduler handles a new pod at once, and a busy one within seconds."""


Owned = Mapping[tuple[str, str], OwnedView]


@dataclass(frozen=True, slots=True)
class BlockerReports:
    """What is known of a job's objects beside its pods' own statuses."""

    owned: Owned = field(default_factory=dict)
    events: Mapping[Suspect, Blocker] = field(default_factory=dict)


def suspects(pods: Sequence[PodView], owned: Owned) -> list[Suspect]:
    """Objects whose Events may name what no status names: sets without their pods, pods on their way, their claims."""
    sets = [view for view in owned.values() if view.kind == STATEFUL_SETS.kind and not view.deleting]
    counts = {each.uid: 0 for each in sets}
    for pod in pods:
        if pod.controller is not None and pod.controller.uid in counts:
            counts[pod.controller.uid] += 1
    found = [Suspect(each.kind, each.name, each.uid) for each in sets if counts[each.uid] < (each.replicas or 0)]
    found += [Suspect(PODS.kind, pod.name, pod.uid) for pod in pods if is_on_its_way(pod)]
    if any(_may_wait_for_a_claim(pod) for pod in pods):
        claims = (view for view in owned.values() if view.kind == CLAIMS.kind)
        found += [Suspect(each.kind, each.name, each.uid) for each in claims]
    return found


def pod_blocker(pod: PodView, reports: BlockerReports, now: float) -> Blocker | None:
    """What Events report of a pod whose status names nothing, or only that its volume is not there.

    A pod that no scheduler handles has not even Events.
    """
    own = reports.events.get(Suspect(PODS.kind, pod.name, pod.uid))
    if own is None and not pod.is_tried and is_on_its_way(pod) and now - pod.created_at >= UNTRIED_SECONDS:
        name = pod.scheduler or "default-scheduler"
        return Blocker(
            Reason.NO_SCHEDULER.value,
            f"no scheduler named {name} has looked at it. Run one in this cluster, or give the name of one that runs"
            " (scheduling.schedulerName, or schedulerName in a template)",
        )
    if own is not None or not _may_wait_for_a_claim(pod):
        return own
    for suspect, found in reports.events.items():
        if suspect.kind == CLAIMS.kind:
            sentence = f"{suspect.kind} {suspect.name}: {found.sentence}"
            return Blocker(found.reason, f"{pod.unscheduled.rstrip('. ')}; {sentence}" if pod.unscheduled else sentence)
    return None


def unmade_roles(key: JobKey, owned: Owned) -> Mapping[Role, Blocker]:
    """Roles whose pods the API server refuses."""
    found = ((role, owned.get((DEPLOYMENTS.kind, deployment_name(key.name, role)))) for role in Role)
    return {
        role: Blocker(FAILED_CREATE, with_limit_range(view.refused))
        for role, view in found
        if view is not None and view.refused
    }


_OF_LIMIT_RANGES = re.compile(r"(minimum|maximum) \S+ usage per \S+ is ")


def with_limit_range(message: str) -> str:
    """A refusal by a LimitRange says what it is of: the API server names only figures. One by a quota names that."""
    if not _OF_LIMIT_RANGES.search(message):
        return message
    return f"{message.rstrip('. ')}. This is a LimitRange of the namespace: kubectl get limitrange"


def unmade_process(name: str, key: JobKey, pods: Sequence[PodView], reports: BlockerReports) -> Blocker | None:
    """Why a process of the infrastructure has no pod, where that is known."""
    leaving = next((pod.name for pod in pods if pod.deleting and process_name(key, pod) == name), None)
    if leaving is not None:
        return Blocker(Reason.PODS_LEAVING.value, f"its pod {leaving} is being deleted, and no other is made before")
    if name == COMPONENT_COORDINATOR:
        view = reports.owned.get((DEPLOYMENTS.kind, coordinator_name(key.name)))
        if view is None or not view.refused:
            return None
        return Blocker(FAILED_CREATE, with_limit_range(view.refused))
    of_set = control_name(key.name) if name == COMPONENT_CONTROL else storage_name(key.name)
    return next(
        (found for suspect, found in reports.events.items() if suspect[:2] == (STATEFUL_SETS.kind, of_set)),
        None,
    )


def process_names(storage_units: int) -> Iterator[str]:
    """What a job's infrastructure is made of, as `pod_facts.process_name` names it."""
    yield from (COMPONENT_COORDINATOR, COMPONENT_CONTROL)
    yield from (f"{COMPONENT_STORAGE}-{unit}" for unit in range(storage_units))


def _may_wait_for_a_claim(pod: PodView) -> bool:
    if pod.node or pod.deleting:
        return False
    return is_on_its_way(pod) or "volume" in pod.unscheduled.lower()


REFUSAL_PATIENCE_SECONDS = 5.0
"""A coordinator that restores itself refuses for a moment."""


def _left_over(leaving: Sequence[OwnedView]) -> str:
    named = ", ".join(
        f"{view.kind} {view.name}" + (f" (finalizers: {', '.join(view.finalizers)})" if view.finalizers else "")
        for view in leaving[:MOST_ASKED]
    )
    return "objects that are being deleted still have names of this job's objects" + (f": {named}" if named else "")


@dataclass(slots=True)
class BlockerMemory:
    """Of one job."""

    clock: Callable[[], float] = time.monotonic
    _objects: tuple[Refusal, ...] = ()
    _waits: bool = False
    _leaving: tuple[OwnedView, ...] = ()
    _refusal: str = ""
    _refused_since: float | None = field(default=None)

    def applied(self, outcome: ApplyOutcome) -> None:
        """What became of the job's objects in this turn."""
        self._objects = tuple(each for each in outcome.refusals if not each.passes)
        self._waits, self._leaving = outcome.waits, outcome.leaving

    def ordered(self) -> None:
        """The coordinator has taken all orders."""
        self._refused_since = None

    def refused(self, answer: str) -> None:
        """The coordinator has refused an order."""
        self._refusal = answer
        if self._refused_since is None:
            self._refused_since = self.clock()

    def current(self, claimed: Iterable[Refusal] = ()) -> tuple[Blocker, ...]:
        """All that stands; `claimed`: what was refused in this very turn."""
        objects = dict.fromkeys(str(each) for each in (*claimed, *self._objects) if not each.passes)
        found = [Blocker(Reason.OBJECT_REFUSED.value, sentence) for sentence in objects]
        if self._waits:
            found.append(Blocker(Reason.EARLIER_JOB.value, _left_over(self._leaving)))
        if self._refused_since is not None and self.clock() - self._refused_since >= REFUSAL_PATIENCE_SECONDS:
            found.append(Blocker(Reason.COORDINATOR_REFUSED.value, f"the coordinator refuses: {self._refusal}"))
        return tuple(found)
