"""A job that is well, and what may be changed of it, so that a test shows only what matters to it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rljob_api.names import Epoch, Lineage, Role, WeightVersion
from rljob_api.spec.restart import RestartPolicySpec
from rljob_api.spec.roles import AutoscalingSpec
from rljob_api.status import RLJobStatus
from rljob_api.wire.epochs import PodOrder
from rljob_api.wire.failures import Failure, FailureKind
from rljob_api.wire.identity import PodKey
from rljob_api.wire.launchers import EngineProcess, RankProcess
from rljob_api.wire.observation import (
    CoordinatorStatus,
    PodObservation,
    QueueObservation,
    RankObservation,
    ServerState,
)
from rljob_api.wire.ranks import Busy, RankState
from rljob_operator.core import Autoscaling, Decision, Observed, PodFact, PodState, begin, decide
from rljob_operator.core.decision import Action, CreatePod, RaiseEpoch, SetDesired

START = 1_000_000.0
REPLICAS: Mapping[Role, int] = {
    Role.ROLLOUT: 2,
    Role.ACTOR: 1,
    Role.CRITIC: 1,
    Role.ACTOR_FWD: 1,
    Role.REFERENCE: 1,
    Role.ADVANTAGES: 1,
}
WITHOUT_CRITIC = {role: count for role, count in REPLICAS.items() if role is not Role.CRITIC}
KEYS = tuple(PodKey(role=role, replica=n) for role, count in REPLICAS.items() for n in range(count))


def key(role: Role, replica: int = 0) -> PodKey:
    """A pod."""
    return PodKey(role=role, replica=replica)


def make_policy(**fields: Any) -> RestartPolicySpec:
    """A restart policy; defaults where nothing is said."""
    return RestartPolicySpec.model_validate(fields)


def make_autoscaling(max_staleness: int = 1, **fields: Any) -> Autoscaling:
    """From one to eight replicas, after one minute up and two down."""
    spec = {"min_replicas": 1, "max_replicas": 8, "scale_up_after_seconds": 60, "scale_down_after_seconds": 120}
    return Autoscaling(AutoscalingSpec.model_validate({**spec, **fields}), max_staleness)


def make_queue() -> QueueObservation:
    """Nothing special."""
    return QueueObservation(groups_issued=3, groups_capacity=8, rows_ready={}, withheld=None)


def incarnation_of(status: RLJobStatus, pod: PodKey) -> str:
    """A different one in every epoch and generation."""
    generation = generation_of(status, pod)
    number = (status.restart.epoch << 24) + (generation << 12) + (list(Role).index(pod.role) << 8) + (pod.replica << 4)
    return f"{number:012x}"


def generation_of(status: RLJobStatus, pod: PodKey) -> int:
    """The generation that the status remembers."""
    role = next(role for role in status.roles if role.name == pod.role)
    return role.pods[pod.replica].generation


def make_pod(
    status: RLJobStatus,
    pod: PodKey,
    incarnation: str,
    *,
    age: float = 0.1,
    busy: Busy | None = None,
    waiting: str | None = None,
    exit_code: int | None = None,
    state: RankState = RankState.READY,
    poll_age: float = 0.1,
    registered: bool = True,
    engines: Sequence[EngineProcess] = (),
) -> PodObservation:
    """A pod that carries out what the status orders."""
    epoch, generation = status.restart.epoch, generation_of(status, pod)
    id_ = incarnation_of(status, pod)
    process = RankProcess(rank=0, pid=77, incarnation=id_, epoch=epoch, generation=generation, exit_code=exit_code)
    rank = RankObservation(
        rank=0,
        incarnation=id_,
        epoch=epoch,
        generation=generation,
        pid=77,
        state=state,
        beat_age_seconds=age,
        busy=busy,
        busy_left_seconds=None if busy is None else busy.seconds - age,
        waiting=waiting,
        holds=None,
    )
    uid, _, count = incarnation.partition("/")
    return PodObservation(
        pod=pod,
        pod_uid=uid,
        launcher="0" * 12,
        launcher_pid=7,
        container_restart_count=int(count),
        poll_age_seconds=poll_age,
        carried=PodOrder(pod=pod, epoch=epoch, generation=generation),
        processes=[process],
        engines=list(engines),
        ranks=[rank] if registered else [],
    )


def make_failure(status: RLJobStatus, pod: PodKey, **fields: Any) -> Failure:
    """A rank of the current incarnation of `pod` was killed."""
    defaults: dict[str, Any] = {
        "id": f"uid/{pod}/{incarnation_of(status, pod)}",
        "kind": FailureKind.RANK_EXITED,
        "pod": pod,
        "rank": 0,
        "epoch": status.restart.epoch,
        "generation": generation_of(status, pod),
        "incarnation": incarnation_of(status, pod),
        "exit_code": -9,
        "message": f"{pod}.0 was killed by signal 9",
        "at": START,
    }
    return Failure.model_validate({**defaults, **fields})


def make_coordinator(status: RLJobStatus, pods: Sequence[PodObservation], **fields: Any) -> CoordinatorStatus:
    """In the epoch of the status."""
    defaults: dict[str, Any] = {
        "server": ServerState.OPEN,
        "epoch": status.restart.epoch,
        "lineage": Lineage(1),
        "decision_id": status.restart.decision_id,
        "published": WeightVersion(3),
        "recorded": WeightVersion(3),
        "step": 2,
        "last_step": None,
        "pods": list(pods),
        "failures": [],
        "queue": make_queue(),
        "last_event": 10,
        "progress_age_seconds": START,
        "beat_interval_seconds": 0.5,
    }
    return CoordinatorStatus(**{**defaults, **fields})


def first_incarnation_of(pod: PodKey) -> str:
    """The first incarnation of a pod."""
    return f"uid-{pod}/0"


def make_fact(pod: PodKey, **fields: Any) -> PodFact:
    """A running pod."""
    fact = PodFact(pod, first_incarnation_of(pod), PodState.RUNNING, START, launcher_pid=7)
    return replace(fact, **fields)


def make_running(policy: RestartPolicySpec | None = None) -> Observed:
    """Epoch 1, every pod ready, step 2 trained; nothing to decide."""
    policy = policy or make_policy()
    status, _ = begin(RLJobStatus(), REPLICAS, START)
    observed = Observed(policy, REPLICAS, 100, status, None, tuple(make_fact(pod) for pod in KEYS))
    return settle(observed, START + 1)


def settle(observed: Observed, now: float) -> Observed:
    """Persists and carries out decisions until there is nothing more to do; every pod obeys at once."""
    for _ in range(4):
        observed = carried_out(observed, decide(observed, now))
    return observed


def carried_out(observed: Observed, decision: Decision) -> Observed:
    """The world after a decision: epochs are opened, pods are created and become ready, failures forgotten."""
    status = decision.status
    facts = {fact.pod: fact for fact in observed.pods}
    for action in decision.actions:
        if isinstance(action, CreatePod):
            uid, _, _ = facts[action.pod].incarnation.partition("/")
            facts[action.pod] = make_fact(action.pod, incarnation=f"{uid}+/0", started_at=START + 1)
    pods = [make_pod(status, pod, fact.incarnation) for pod, fact in facts.items()]
    before = observed.coordinator
    progress = {"recorded": before.recorded, "step": before.step} if before is not None else {}
    raised = any(isinstance(action, RaiseEpoch) for action in decision.actions)
    epoch = status.restart.epoch if raised or before is None else before.epoch
    seen = make_coordinator(status, pods, epoch=Epoch(epoch), **progress)
    ordered = [action.desired for action in decision.actions if isinstance(action, SetDesired)]
    desired = ordered[-1] if ordered else before.desired if before is not None else None
    seen = seen.model_copy(update={"desired": desired})
    return replace(observed, status=status, coordinator=seen, pods=tuple(facts.values()))


def with_pod(observed: Observed, pod: PodKey, **fields: Any) -> Observed:
    """The world in which this pod says something else."""
    assert observed.coordinator is not None
    incarnation = next(fact.incarnation for fact in observed.pods if fact.pod == pod)
    changed = make_pod(observed.status, pod, incarnation, **fields)
    pods = [changed if seen.pod == pod else seen for seen in observed.coordinator.pods]
    return replace(observed, coordinator=observed.coordinator.model_copy(update={"pods": pods}))


def with_failures(observed: Observed, *failures: Failure) -> Observed:
    """The world in which the coordinator reports these."""
    return with_coordinator(observed, failures=list(failures))


def with_coordinator(observed: Observed, **fields: Any) -> Observed:
    """The world in which the coordinator says something else."""
    assert observed.coordinator is not None
    return replace(observed, coordinator=observed.coordinator.model_copy(update=fields))


def with_fact(observed: Observed, pod: PodKey, **fields: Any) -> Observed:
    """The world in which the platform says something else of this pod."""
    facts = tuple(replace(fact, **fields) if fact.pod == pod else fact for fact in observed.pods)
    return replace(observed, pods=facts)


def actions_of(decision: Decision, kind: type[Action]) -> list[Any]:
    """The actions of one kind."""
    return [action for action in decision.actions if isinstance(action, kind)]


def fail(observed: Observed, pod: PodKey, now: float) -> tuple[Observed, Decision]:
    """A rank of `pod` dies, it is decided and carried out."""
    decision = decide(with_failures(observed, make_failure(observed.status, pod)), now)
    return settle(carried_out(observed, decision), now), decision
