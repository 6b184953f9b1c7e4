"""Membership: which pods the job has, which incarnation of each it counts on, and which are ready.

`with_observations` copies observations into the status. `assign` gives a Deployment's pods, which have no numbers,
their replicas; the status remembers a number by the pod's incarnation. `with_one_generation` gives all pods of a gang
one generation, since ranks of different generations never meet at a rendezvous. Pure.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from rljob_api.names import Role
from rljob_api.roles import SCALED_ROLE, TRAITS, Grouping, RoleTopology
from rljob_api.status import ConditionType, EngineStatus, PodStatus, RankStatus, RLJobStatus, RoleStatus
from rljob_api.wire.identity import PodKey
from rljob_api.wire.observation import PodObservation
from rljob_api.wire.ranks import RankState
from rljob_operator.core.conditions import is_true
from rljob_operator.core.observed import Observed, PodFact, PodState, ordered_processes, pod_uid


def pods(status: RLJobStatus) -> list[tuple[PodKey, PodStatus]]:
    """Every pod of the job, by role and replica."""
    return [(PodKey(role=role.name, replica=n), pod) for role in status.roles for n, pod in enumerate(role.pods)]


def remaining(status: RLJobStatus) -> list[tuple[PodKey, PodStatus]]:
    """Every pod that is not ordered to leave: those that the job counts on."""
    return [(key, pod) for key, pod in pods(status) if not pod.draining]


def scaled_role(status: RLJobStatus) -> RoleStatus | None:
    """The role whose replicas come and go while the job runs; None where the job does not have it."""
    return next((role for role in status.roles if role.name is SCALED_ROLE), None)


def with_pods(status: RLJobStatus, change: Callable[[PodKey, PodStatus], PodStatus]) -> RLJobStatus:
    """`status` with every pod changed by `change`."""
    roles = [
        counted(role, [change(PodKey(role=role.name, replica=n), pod) for n, pod in enumerate(role.pods)])
        for role in status.roles
    ]
    return status.model_copy(update={"roles": roles})


def counted(role: RoleStatus, members: list[PodStatus]) -> RoleStatus:
    """`role` with these pods; its counts follow from them."""
    stay = [pod for pod in members if not pod.draining]
    ready = sum(pod.ready for pod in stay)
    return role.model_copy(update={"pods": members, "replicas": len(stay), "ready": ready})


def new_pod(role: Role, replica: int, now: float) -> PodStatus:
    """A replica that waits for its first incarnation."""
    return PodStatus(name=f"{role.value}-{replica}", ready=False, generation=0, ordered_at=now)


def resized(status: RLJobStatus, replicas: Mapping[Role, int], now: float) -> RLJobStatus:
    """`status` with the roles and replicas that a new epoch has. Pods that were ordered to leave have left."""
    known = {role.name: role for role in status.roles}
    roles = []
    for name, count in replicas.items():
        role = known.get(name) or RoleStatus(name=name, replicas=count, ready=0, failures=0)
        stay = [pod for pod in role.pods if not pod.draining]
        # Replicas beyond the wanted count leave one by one, once all is ready again: see `scaling`.
        retained = stay if TRAITS[name].is_scalable else stay[:count]
        new = [new_pod(name, n, now) for n in range(len(retained), count)]
        roles.append(counted(role, [*retained, *new]))
    return status.model_copy(update={"roles": roles})


def without_incarnation(pod: PodStatus, fact: PodFact | None, now: float) -> PodStatus:
    """`pod` without its incarnation, under an order that this incarnation cannot have taken.

    A container that came back by itself, and a pod that took its place, are the next incarnation already.
    """
    incarnation = (
        fact.incarnation
        if fact is not None and fact.incarnation != pod.incarnation and fact.state is not PodState.EXITED
        else ""
    )
    gone = fact.incarnation if fact is not None and fact.state is PodState.EXITED else pod.incarnation
    update: dict[str, object] = {
        "incarnation": incarnation,
        "lost_incarnation": gone,
        "generation": pod.generation + 1,
        "ready": False,
    }
    return pod.model_copy(update={**update, "ranks": [], "ordered_at": now, "unregistered": 0})


def with_observations(observed: Observed, status: RLJobStatus) -> RLJobStatus:
    """`status` with what is seen of its pods."""
    return with_pods(status, lambda key, pod: _seen(observed, status, key, pod))


def is_known(observed: Observed, key: PodKey, pod: PodStatus) -> bool:
    """Whether the coordinator knows what this incarnation of the pod does: it answers, and the launcher polled it."""
    if observed.open_coordinator is None:
        return False
    seen = observed.observations.get((key, pod.incarnation))
    return seen is None or seen.is_heard


def all_ready(status: RLJobStatus) -> bool:
    """Whether every pod that stays is ready."""
    return bool(status.roles) and all(pod.ready for _, pod in remaining(status))


def _seen(observed: Observed, status: RLJobStatus, key: PodKey, pod: PodStatus) -> PodStatus:
    fact = observed.facts.get(key)
    if not is_true(status, ConditionType.SUSPENDED):
        pod = _with_new_incarnation(pod, fact)
    pid = fact.launcher_pid if fact is not None and fact.state is PodState.RUNNING else None
    update: dict[str, object] = {"launcher_pid": pid}
    if is_known(observed, key, pod):  # while it is not, what was reported last is the best that is known
        seen = observed.observations.get((key, pod.incarnation)) if pod.incarnation else None
        ready = seen is not None and _is_ready(status, pod, seen)
        engines = _engines(seen)
        update |= {
            "ready": ready,
            "engine_pid": next((engine.pid for engine in engines if engine.engine == 0), None),
            "engines": engines,
            "ranks": _ranks(seen),
            "unregistered": 0 if ready else pod.unregistered,
        }
    return pod.model_copy(update=update)


def _with_new_incarnation(pod: PodStatus, fact: PodFact | None) -> PodStatus:
    """A pod that waits for a new incarnation takes the one that has appeared."""
    if pod.incarnation or fact is None or fact.incarnation == pod.lost_incarnation:
        return pod
    return pod.model_copy(update={"incarnation": fact.incarnation})


def _ranks(seen: PodObservation | None) -> list[RankStatus]:
    if seen is None:
        return []
    return [RankStatus(rank=rank.rank, pid=rank.pid) for rank in seen.processes if rank.exit_code is None]


def _engines(seen: PodObservation | None) -> list[EngineStatus]:
    return [] if seen is None else [EngineStatus(engine=engine.index, pid=engine.pid) for engine in seen.engines]


def _is_ready(status: RLJobStatus, pod: PodStatus, seen: PodObservation) -> bool:
    """A rank that has ended well after its work is as good as a ready one."""
    current = ordered_processes(status, pod, seen)
    ready = {rank.incarnation for rank in seen.ranks if rank.state is RankState.READY}
    return bool(current) and all(p.exit_code == 0 or p.incarnation in ready for p in current)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod of a role, as the platform lists it."""

    uid: str
    role: Role
    created_at: float
    """Unix time in seconds; of two new pods the older one takes the lower number."""
    going: bool = False
    """It is being deleted, or ended for good: it takes no number any more, and keeps one only while it has none to
    replace it."""


def assign(status: RLJobStatus, candidates: Iterable[Candidate]) -> dict[str, PodKey]:
    """Pod uid -> replica. No replica is given twice.

    The pod that the job counts on keeps its number, also while it goes, so that its end is seen. A new pod takes the
    lowest number without one. A pod whose incarnation was given up keeps its number until a new one has it. Live pods
    beyond the replicas of their role get the numbers above: they do not count, but they are observed.
    """
    listed = sorted(candidates, key=lambda pod: (pod.created_at, pod.uid))
    given: dict[str, PodKey] = {}
    taken: set[PodKey] = set()

    def give(uid: str, key: PodKey) -> None:
        if uid not in given and key not in taken:
            given[uid] = key
            taken.add(key)

    known = {(pod.uid, pod.role): pod for pod in listed}
    lost: dict[str, PodKey] = {}
    for key, member in pods(status):
        uid, lost_uid = pod_uid(member.incarnation), pod_uid(member.lost_incarnation)
        if uid and (uid, key.role) in known:
            give(uid, key)
        elif lost_uid and (lost_uid, key.role) in known:
            lost.setdefault(lost_uid, key)
    new = [pod for pod in listed if not pod.going and pod.uid not in given and pod.uid not in lost]
    for role in dict.fromkeys(pod.role for pod in new):
        numbers = _free_numbers(role, taken)
        for pod in (pod for pod in new if pod.role is role):
            give(pod.uid, PodKey(role=role, replica=next(numbers)))
    for uid, key in lost.items():
        give(uid, key)
    return given


def _free_numbers(role: Role, taken: set[PodKey]) -> Iterator[int]:
    """Numbers of the role that no pod has, from below; those of replicas that wait for a pod come first by that."""
    number = 0
    while True:
        if PodKey(role=role, replica=number) not in taken:
            yield number
        number += 1


def gang_of(topologies: Mapping[Role, RoleTopology], pod: PodKey) -> tuple[Role, int]:
    """Role and number of the gang that a pod's ranks belong to; a pod with several of them has the number of one.

    Pods of one gang begin again together.
    """
    if TRAITS[pod.role].grouping is Grouping.GANG:
        return pod.role, 0
    topology = topologies.get(pod.role)
    return pod.role, pod.replica if topology is None else pod.replica // topology.pods_per_gang


def with_one_generation(
    status: RLJobStatus, now: float, topologies: Mapping[Role, RoleTopology] | None = None
) -> RLJobStatus:
    """`status` with every pod of a gang in the gang's highest generation."""
    shapes = topologies or {}
    highest: dict[tuple[Role, int], int] = {}
    for key, pod in remaining(status):
        gang = gang_of(shapes, key)
        highest[gang] = max(highest.get(gang, 0), pod.generation)

    def level(key: PodKey, pod: PodStatus) -> PodStatus:
        generation = highest.get(gang_of(shapes, key), 0)
        if pod.draining or pod.generation >= generation:
            return pod
        return pod.model_copy(update={"generation": generation, "ready": False, "ordered_at": now})

    return with_pods(status, level)
