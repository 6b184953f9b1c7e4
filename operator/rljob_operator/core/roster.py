"""The roster: which pods the job has, which of their lives it counts on, and which are ready.

Pure. Called by `decide` before the policies (facts go into the status) and by the policies that change a pod's order.
"""

from collections.abc import Callable, Iterator

from rljob_api.status import PodStatus, RankStatus, RLJobStatus, RoleStatus
from rljob_api.wire.identity import PodKey
from rljob_api.wire.observation import PodObservation
from rljob_api.wire.ranks import RankState
from rljob_operator.core.observed import Observed, PodFact, PodState


def pods(status: RLJobStatus) -> Iterator[tuple[PodKey, PodStatus]]:
    """Every pod of the job, by role and replica."""
    for role in status.roles:
        for replica, pod in enumerate(role.pods):
            yield PodKey(role=role.name, replica=replica), pod


def with_pods(status: RLJobStatus, change: Callable[[PodKey, PodStatus], PodStatus]) -> RLJobStatus:
    """`status` with every pod changed by `change`."""
    roles = [
        role.model_copy(
            update={"pods": [change(PodKey(role=role.name, replica=n), pod) for n, pod in enumerate(role.pods)]}
        )
        for role in status.roles
    ]
    return status.model_copy(update={"roles": roles})


def enrol(observed: Observed, status: RLJobStatus) -> RLJobStatus:
    """`status` with exactly the roles and replicas that the job has, and with what is seen of their pods."""
    known = {role.name: role for role in status.roles}
    roles = []
    for role, replicas in observed.replicas.items():
        old = known.get(role) or RoleStatus(name=role, replicas=replicas, ready=0, failures=0)
        new = [PodStatus(name=f"{role.value}-{n}", ready=False, generation=0) for n in range(len(old.pods), replicas)]
        members = [
            _seen(observed, status, PodKey(role=role, replica=n), pod)
            for n, pod in enumerate([*old.pods[:replicas], *new])
        ]
        ready = sum(pod.ready for pod in members)
        roles.append(old.model_copy(update={"replicas": replicas, "ready": ready, "pods": members}))
    return status.model_copy(update={"roles": roles})


def all_ready(status: RLJobStatus) -> bool:
    """Whether every pod of every role is ready."""
    return bool(status.roles) and all(pod.ready for _, pod in pods(status))


def _seen(observed: Observed, status: RLJobStatus, key: PodKey, pod: PodStatus) -> PodStatus:
    fact = observed.fact(key)
    life = _accepted_life(pod, fact)
    pid = fact.launcher_pid if fact is not None and fact.state is PodState.RUNNING else None
    update: dict[str, object] = {"life": life, "launcher_pid": pid}
    if observed.coordinator is not None:  # while it does not answer, what it said last is the best that is known
        seen = observed.seen(key, life) if life else None
        update |= {
            "ready": seen is not None and _is_ready(status, pod.model_copy(update=update), seen),
            "engine_pid": seen.engine.pid if seen is not None and seen.engine is not None else None,
            "ranks": _ranks(seen),
        }
    return pod.model_copy(update=update)


def _accepted_life(pod: PodStatus, fact: PodFact | None) -> str:
    """A pod that waits for a new life takes the one that has appeared."""
    if pod.life or fact is None or fact.life == pod.lost_life:
        return pod.life
    return fact.life


def _ranks(seen: PodObservation | None) -> list[RankStatus]:
    if seen is None:
        return []
    return [RankStatus(rank=rank.rank, pid=rank.pid) for rank in seen.processes if rank.exit_code is None]


def _is_ready(status: RLJobStatus, pod: PodStatus, seen: PodObservation) -> bool:
    """A rank that has ended well after its work is as good as a ready one."""
    order = (status.restart.epoch, pod.generation)
    current = [process for process in seen.processes if (process.epoch, process.generation) == order]
    ready = {rank.incarnation for rank in seen.ranks if rank.state is RankState.READY}
    return bool(current) and all(p.exit_code == 0 or p.incarnation in ready for p in current)
