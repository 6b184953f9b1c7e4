"""Observe: from the cache and the coordinator's word to what the core decides on. Reads only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rljob_api.cluster import COMPONENT_WORKER, LABEL_JOB, LABEL_ROLE, deployment_name
from rljob_api.names import Role
from rljob_api.role_traits import SCALED_ROLE
from rljob_api.spec import RLJob
from rljob_api.status import RLJobStatus
from rljob_api.wire.identity import PodKey
from rljob_api.wire.observation import CoordinatorStatus
from rljob_operator.adapters.infrastructure_facts import Ends, infrastructure_facts
from rljob_operator.adapters.pod_facts import fact_of, life_of
from rljob_operator.adapters.startups import Startups
from rljob_operator.adapters.views import JobKey, PodView
from rljob_operator.core import Observed, Wishes
from rljob_operator.core.replicas import Candidate, assign


@dataclass(frozen=True, slots=True)
class Sight:
    """What a turn has seen of a job."""

    key: JobKey
    job: RLJob
    revision: str
    """Of its spec."""
    generation: int
    status: RLJobStatus
    """As last persisted."""
    pods: Sequence[PodView]
    templates: Mapping[str, str]
    """Deployment -> digest of the template that its new pods get."""
    coordinator: CoordinatorStatus | None
    secret_is_lost: bool


def observe(sight: Sight, ends: Ends, startups: Startups) -> tuple[Observed, Mapping[PodKey, PodView]]:
    """What the core may know, and which pod each replica is."""
    members = replicas_of(sight)
    up_at = startups.of(members.values())
    facts = tuple(
        fact_of(key, pod, _template(sight, key.role), up_at.get(life_of(pod))) for key, pod in members.items()
    )
    spec = sight.job.spec
    observed = Observed(
        policy=spec.restart_policy,
        replicas=spec.roles.replicas(),
        num_rollouts=spec.rollout.num_rollouts,
        status=sight.status,
        coordinator=sight.coordinator,
        pods=facts,
        infrastructure=infrastructure_facts(sight.key, sight.pods, sight.status, ends),
        wishes=_wishes(sight),
        secret_is_lost=sight.secret_is_lost,
        scale_selector=f"{LABEL_JOB}={sight.key.name},{LABEL_ROLE}={SCALED_ROLE.value}",
    )
    return observed, members


def replicas_of(sight: Sight) -> Mapping[PodKey, PodView]:
    """Which pod each replica is."""
    workers = {pod.uid: pod for pod in sight.pods if pod.component == COMPONENT_WORKER and pod.role in set(Role)}
    candidates = [
        Candidate(pod.uid, Role(pod.role), pod.created_at, going=pod.deleting or pod.phase in ("Failed", "Succeeded"))
        for pod in workers.values()
    ]
    return {key: workers[uid] for uid, key in assign(sight.status, candidates).items()}


def _wishes(sight: Sight) -> Wishes:
    spec = sight.job.spec
    return Wishes(
        revision=sight.revision,
        outdated=any(_is_outdated(sight, pod) for pod in sight.pods),
        suspend=spec.suspend,
        request=spec.restart_request,
        active_deadline_seconds=spec.active_deadline_seconds,
        ttl_seconds_after_finished=spec.ttl_seconds_after_finished,
        generation=sight.generation,
    )


def _is_outdated(sight: Sight, pod: PodView) -> bool:
    if pod.component != COMPONENT_WORKER or not pod.role:
        return False
    wanted = _template(sight, Role(pod.role))
    return bool(wanted and pod.template and wanted != pod.template)


def _template(sight: Sight, role: Role) -> str:
    return sight.templates.get(deployment_name(sight.key.name, role), "")
