"""Observe: from the cache and the coordinator's status to the `Observed` that the core decides on. Reads only."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rljob_api.cluster import COMPONENT_WORKER, LABEL_JOB, LABEL_ROLE, deployment_name
from rljob_api.cluster_rules import required_replicas
from rljob_api.names import Role
from rljob_api.roles import SCALED_ROLE
from rljob_api.spec import RLJob
from rljob_api.status import AcceptedStatus, ConditionType, RLJobStatus
from rljob_api.wire.identity import PodKey
from rljob_api.wire.observation import CoordinatorStatus
from rljob_operator.core import (
    Autoscaling,
    Kept,
    Observed,
    PodFact,
    PodState,
    ProcessFact,
    RefusedSpec,
    Silence,
    VolumeFact,
    Wishes,
)
from rljob_operator.core.conditions import is_true, terminal
from rljob_operator.core.membership import Candidate, assign
from rljob_operator.core.observed import Obstacle
from rljob_operator.kube.blockers import BlockerReports, pod_blocker, process_names, unmade_process, unmade_roles
from rljob_operator.kube.pod_facts import (
    Ends,
    Startups,
    absent_facts,
    fact_of,
    infrastructure_facts,
    infrastructure_pods,
    life_of,
)
from rljob_operator.kube.views import JobKey, PodView


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """What a turn has seen of a job."""

    key: JobKey
    job: RLJob
    revision: str
    """Of its spec."""
    accepted: AcceptedStatus
    """What is remembered of its spec."""
    refusal: RefusedSpec | None
    """There is a newer one that cannot work."""
    status: RLJobStatus
    """As last persisted."""
    pods: Sequence[PodView]
    templates: Mapping[str, str]
    """Deployment -> digest of the template that its new pods get."""
    coordinator: CoordinatorStatus | None
    silence: Silence | None
    """Why there is no word of it."""
    secret_is_lost: bool
    heard: BlockerReports = field(default_factory=BlockerReports)
    """What other objects and the cluster's Events say."""
    obstacles: tuple[Obstacle, ...] = ()
    """What was refused in the turn before."""
    kept: Kept | None = None
    volume: VolumeFact | None = None


def observe(
    sight: JobSnapshot, ends: Ends, startups: Startups, clock: Callable[[], float] = time.time
) -> tuple[Observed, Mapping[PodKey, PodView]]:
    """What the core may know, and which pod each replica is."""
    members = replicas_of(sight)
    up_at = startups.of(members.values())
    now = clock()
    facts = tuple(
        _told(fact_of(key, pod, _template(sight, key.role), up_at.get(life_of(pod))), pod, sight.heard, now)
        for key, pod in members.items()
    )
    spec = sight.job.spec
    observed = Observed(
        policy=spec.restart_policy,
        replicas=spec.roles.replicas(),
        num_rollouts=spec.rollout.num_rollouts,
        status=sight.status,
        coordinator=sight.coordinator,
        silence=None if sight.coordinator is not None else sight.silence,
        pods=facts,
        infrastructure=_infrastructure(sight, ends, now),
        processes=frozenset(process_names(spec.transfer_queue.storage_units)),
        unmade=unmade_roles(sight.key, sight.heard.owned),
        obstacles=sight.obstacles,
        wishes=_wishes(sight),
        secret_is_lost=sight.secret_is_lost,
        required={} if spec.scheduling.gang is None else required_replicas(spec),
        autoscaling=Autoscaling.of(spec),
        kept=sight.kept,
        volume=sight.volume,
        num_worker_pods=sum(pod.component == COMPONENT_WORKER for pod in sight.pods),
        release_after_seconds=spec.scheduling.patience_seconds,
        scale_selector=f"{LABEL_JOB}={sight.key.name},{LABEL_ROLE}={SCALED_ROLE.value}",
    )
    return observed, members


def replicas_of(sight: JobSnapshot) -> Mapping[PodKey, PodView]:
    """Which pod each replica is."""
    workers = {pod.uid: pod for pod in sight.pods if pod.component == COMPONENT_WORKER and pod.role in set(Role)}
    candidates = [
        Candidate(pod.uid, Role(pod.role), pod.created_at, going=pod.deleting or pod.phase in ("Failed", "Succeeded"))
        for pod in workers.values()
    ]
    return {key: workers[uid] for uid, key in assign(sight.status, candidates).items()}


def _told(fact: PodFact, pod: PodView, heard: BlockerReports, now: float) -> PodFact:
    """With what Events say of a pod that is kept from running."""
    why = pod_blocker(pod, heard, now) if fact.state is PodState.PENDING else None
    return fact if why is None else replace(fact, reason=why.reason, last_words=why.sentence)


def _infrastructure(sight: JobSnapshot, ends: Ends, now: float) -> tuple[ProcessFact, ...]:
    there = infrastructure_pods(sight.key, sight.pods)
    told = {name: why for name, pod in there.items() if (why := pod_blocker(pod, sight.heard, now)) is not None}
    present = infrastructure_facts(there, sight.status, ends, told)
    status = sight.status
    if status.restart.epoch == 0 or is_true(status, ConditionType.SUSPENDED) or terminal(status) is not None:
        return present
    absent = [name for name in process_names(sight.job.spec.transfer_queue.storage_units) if name not in there]
    found = ((name, unmade_process(name, sight.key, sight.pods, sight.heard)) for name in absent)
    unmade = {name: why for name, why in found if why is not None}
    return (*present, *absent_facts(absent, status, ends, unmade, now))


def _wishes(sight: JobSnapshot) -> Wishes:
    spec = sight.job.spec
    return Wishes(
        revision=sight.revision,
        outdated=any(_is_outdated(sight, pod) for pod in sight.pods),
        suspend=spec.suspend,
        request=spec.restart_request,
        active_deadline_seconds=spec.active_deadline_seconds,
        startup_deadline_seconds=spec.startup_deadline_seconds,
        ttl_seconds_after_finished=spec.ttl_seconds_after_finished,
        generation=sight.accepted.generation,
        accepted=sight.accepted,
        refusal=sight.refusal,
    )


def _is_outdated(sight: JobSnapshot, pod: PodView) -> bool:
    if pod.component != COMPONENT_WORKER or not pod.role:
        return False
    wanted = _template(sight, Role(pod.role))
    return bool(wanted and pod.template and wanted != pod.template)


def _template(sight: JobSnapshot, role: Role) -> str:
    return sight.templates.get(deployment_name(sight.key.name, role), "")
