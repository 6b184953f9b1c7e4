"""Observe: from the cache and the coordinator's status to the `Observed` that the core decides on. Reads only."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from rljob_api.cluster import COMPONENT_WORKER, LABEL_JOB, LABEL_ROLE, config_name, deployment_name
from rljob_api.cluster_rules import required_replicas
from rljob_api.names import Role
from rljob_api.roles import SCALED_ROLE
from rljob_api.spec import RLJobSpec
from rljob_api.status import ConditionType, RLJobStatus
from rljob_api.wire.identity import PodKey
from rljob_api.wire.observation import CoordinatorStatus
from rljob_operator.cluster.job import TurnContext
from rljob_operator.core import (
    Autoscaling,
    Observed,
    PodFact,
    PodState,
    ProcessFact,
    RetainedRun,
    UserRequest,
    VolumeFact,
)
from rljob_operator.core.conditions import is_true, terminal
from rljob_operator.core.membership import Candidate, assign
from rljob_operator.core.observed import Blocker
from rljob_operator.core.queue import QueueFact
from rljob_operator.kube.blockers import BlockerReports, pod_blocker, process_names, unmade_process, unmade_roles
from rljob_operator.kube.kinds import CONFIG_MAPS
from rljob_operator.kube.pod_facts import (
    absent_facts,
    fact_of,
    incarnation_of,
    infrastructure_facts,
    infrastructure_pods,
)
from rljob_operator.kube.tracker_pods import tracker_facts
from rljob_operator.kube.views import PodView


def observe(
    turn: TurnContext,
    pods: Sequence[PodView],
    templates: Mapping[str, str],
    coordinator: CoordinatorStatus | None,
    reports: BlockerReports,
    now: float,
    *,
    secret_is_lost: bool,
    blockers: tuple[Blocker, ...],
    retained: RetainedRun | None,
    volume: VolumeFact | None,
    edited: Collection[tuple[str, str]],
    queue: QueueFact | None = None,
) -> tuple[Observed, Mapping[PodKey, PodView]]:
    """What the core may know, and which pod each replica is.

    `templates`: Deployment -> digest of the template that its new pods get. `reports`: what other objects and the
    cluster's Events report. `blockers`: what was refused in the turn before. `edited`: objects that other clients have
    changed.
    """
    members = replicas_of(turn.status, pods)
    up_at = turn.memory.startups.of(pods)
    wanted = {role: templates.get(deployment_name(turn.key.name, role), "") for role in Role}
    facts = tuple(
        _with_blocker(fact_of(key, pod, wanted[key.role], now, up_at.get(incarnation_of(pod))), pod, reports, now)
        for key, pod in members.items()
    )
    workers = [pod for pod in pods if pod.component == COMPONENT_WORKER]
    outdated = any(pod.role and pod.template and wanted[Role(pod.role)] not in ("", pod.template) for pod in workers)
    spec, job_file = turn.job.spec, (CONFIG_MAPS.kind, config_name(turn.key.name))
    observed = Observed(
        policy=spec.restart_policy,
        replicas=_with_quota(spec.roles.replicas(), queue),
        num_rollouts=spec.rollout.num_rollouts,
        status=turn.status,
        coordinator=coordinator,
        no_contact=None if coordinator is not None else turn.memory.contact.silence(),
        pods=facts,
        infrastructure=_infrastructure(turn, pods, reports, now),
        processes=frozenset(process_names(spec.transfer_queue.storage_units)),
        unmade=unmade_roles(turn.key, reports.owned),
        blockers=blockers,
        request=_user_request(turn, outdated=outdated),
        secret_is_lost=secret_is_lost,
        required={} if spec.scheduling.gang is None else _with_quota(required_replicas(spec), queue),
        autoscaling=_autoscaling(spec, queue),
        topologies=spec.roles.topologies(),
        retained=retained,
        volume=volume,
        job_file_was_edited=job_file in edited or turn.memory.objects.edits.may_have_been_read(job_file),
        trackers=tracker_facts(pods, up_at, now) if spec.telemetry.report_to else None,
        num_worker_pods=len(workers),
        release_after_seconds=spec.scheduling.patience_seconds,
        scale_selector=f"{LABEL_JOB}={turn.key.name},{LABEL_ROLE}={SCALED_ROLE.value}",
        queue=queue,
    )
    return observed, members


def _with_quota(replicas: Mapping[Role, int], queue: QueueFact | None) -> Mapping[Role, int]:
    """`replicas` with as many rollouts as there is quota for: a larger number waits for the next admission."""
    if queue is None or queue.granted is None:
        return replicas
    return {role: min(count, queue.granted) if role is SCALED_ROLE else count for role, count in replicas.items()}


def _autoscaling(spec: RLJobSpec, queue: QueueFact | None) -> Autoscaling | None:
    """The job's autoscaling, up to the rollouts that there is quota for."""
    given = Autoscaling.of(spec)
    if given is None or queue is None or queue.granted is None:
        return given
    bounds = {name: min(getattr(given.spec, name), queue.granted) for name in ("min_replicas", "max_replicas")}
    return replace(given, spec=given.spec.model_copy(update=bounds))


def replicas_of(status: RLJobStatus, pods: Sequence[PodView]) -> Mapping[PodKey, PodView]:
    """Which pod each replica is."""
    workers = {pod.uid: pod for pod in pods if pod.component == COMPONENT_WORKER and pod.role in set(Role)}
    candidates = [
        Candidate(pod.uid, Role(pod.role), pod.created_at, going=pod.deleting or pod.phase in ("Failed", "Succeeded"))
        for pod in workers.values()
    ]
    return {key: workers[uid] for uid, key in assign(status, candidates).items()}


def _with_blocker(fact: PodFact, pod: PodView, reports: BlockerReports, now: float) -> PodFact:
    """With what blocks a pending pod."""
    why = pod_blocker(pod, reports, now) if fact.state is PodState.PENDING else None
    return fact if why is None else replace(fact, reason=why.reason, last_message=why.sentence)


def _infrastructure(
    turn: TurnContext, pods: Sequence[PodView], reports: BlockerReports, now: float
) -> tuple[ProcessFact, ...]:
    status, ends = turn.status, turn.memory.ends
    there = infrastructure_pods(turn.key, pods)
    blockers = {name: why for name, pod in there.items() if (why := pod_blocker(pod, reports, now)) is not None}
    present = infrastructure_facts(there, status, ends, blockers)
    if status.restart.epoch == 0 or is_true(status, ConditionType.SUSPENDED) or terminal(status) is not None:
        return present
    absent = [name for name in process_names(turn.job.spec.transfer_queue.storage_units) if name not in there]
    found = ((name, unmade_process(name, turn.key, pods, reports)) for name in absent)
    unmade = {name: why for name, why in found if why is not None}
    return (*present, *absent_facts(absent, status, ends, unmade, now))


def _user_request(turn: TurnContext, *, outdated: bool) -> UserRequest:
    spec = turn.job.spec
    return UserRequest(
        revision=turn.memory.accepted.revision(turn.job),
        outdated=outdated,
        suspend=spec.suspend,
        restart_request=spec.restart_request,
        active_deadline_seconds=spec.active_deadline_seconds,
        startup_deadline_seconds=spec.startup_deadline_seconds,
        ttl_seconds_after_finished=spec.ttl_seconds_after_finished,
        generation=turn.accepted.generation,
        accepted=turn.accepted,
        refusal=turn.refusal,
    )
