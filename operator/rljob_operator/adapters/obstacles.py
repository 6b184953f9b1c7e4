"""Obstacles: from the cluster's objects and its Events to what keeps a job's pods from running. Pure.

Called by `observe`. A pod that is not there has no status that could say why: its Deployment says it in a condition,
its StatefulSet in an Event alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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
from rljob_operator.adapters.cluster_events import Suspect
from rljob_operator.adapters.infrastructure_facts import process_name
from rljob_operator.adapters.pod_facts import is_on_its_way
from rljob_operator.adapters.resources import CLAIMS, DEPLOYMENTS, PODS, STATEFUL_SETS
from rljob_operator.adapters.views import JobKey, OwnedView, PodView
from rljob_operator.core.observed import Obstacle
from rljob_operator.core.reasons import Reason

FAILED_CREATE = "FailedCreate"
"""The word of the controllers whose pods the API server refuses."""

UNTRIED_SECONDS = 10.0
"""A scheduler looks at a new pod at once, and a busy one within seconds."""

Owned = Mapping[tuple[str, str], OwnedView]


@dataclass(frozen=True, slots=True)
class Heard:
    """What is known of a job's objects beside its pods' own statuses."""

    owned: Owned = field(default_factory=dict)
    events: Mapping[Suspect, Obstacle] = field(default_factory=dict)


def suspects(pods: Sequence[PodView], owned: Owned) -> list[Suspect]:
    """Whose Events may say what no status says: sets without their pods, pods that are on their way, their claims."""
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


def of_pod(pod: PodView, heard: Heard, now: float) -> Obstacle | None:
    """What Events say of a pod whose status says nothing, or nothing but that its volume is not there.

    Of one that no scheduler looks at there are not even Events.
    """
    own = heard.events.get(Suspect(PODS.kind, pod.name, pod.uid))
    if own is None and not pod.is_tried and is_on_its_way(pod) and now - pod.created_at >= UNTRIED_SECONDS:
        name = pod.scheduler or "default-scheduler"
        return Obstacle(
            Reason.NO_SCHEDULER.value,
            f"no scheduler named {name} has looked at it. Run one in this cluster, or give the name of one that runs"
            " (scheduling.schedulerName, or schedulerName in a template)",
        )
    if own is not None or not _may_wait_for_a_claim(pod):
        return own
    for suspect, told in heard.events.items():
        if suspect.kind == CLAIMS.kind:
            said = f"{suspect.kind} {suspect.name}: {told.sentence}"
            return Obstacle(told.reason, f"{pod.unscheduled.rstrip('. ')}; {said}" if pod.unscheduled else said)
    return None


def unmade_roles(key: JobKey, owned: Owned) -> Mapping[Role, Obstacle]:
    """Roles whose pods the API server refuses."""
    found = ((role, owned.get((DEPLOYMENTS.kind, deployment_name(key.name, role)))) for role in Role)
    return {role: Obstacle(FAILED_CREATE, view.refused) for role, view in found if view is not None and view.refused}


def unmade_process(name: str, key: JobKey, pods: Sequence[PodView], heard: Heard) -> Obstacle | None:
    """Why a process of the infrastructure has no pod, if anybody says so."""
    leaving = next((pod.name for pod in pods if pod.deleting and process_name(key, pod) == name), None)
    if leaving is not None:
        return Obstacle(Reason.PODS_LEAVING.value, f"its pod {leaving} is being deleted, and no other is made before")
    if name == COMPONENT_COORDINATOR:
        view = heard.owned.get((DEPLOYMENTS.kind, coordinator_name(key.name)))
        return Obstacle(FAILED_CREATE, view.refused) if view is not None and view.refused else None
    of_set = control_name(key.name) if name == COMPONENT_CONTROL else storage_name(key.name)
    return next(
        (told for suspect, told in heard.events.items() if suspect[:2] == (STATEFUL_SETS.kind, of_set)),
        None,
    )


def process_names(storage_units: int) -> Iterator[str]:
    """What a job's infrastructure is made of, as `infrastructure_facts.process_name` names it."""
    yield from (COMPONENT_COORDINATOR, COMPONENT_CONTROL)
    yield from (f"{COMPONENT_STORAGE}-{unit}" for unit in range(storage_units))


def _may_wait_for_a_claim(pod: PodView) -> bool:
    if pod.node or pod.deleting:
        return False
    return is_on_its_way(pod) or "volume" in pod.unscheduled.lower()
