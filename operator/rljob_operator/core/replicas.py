"""Replicas: which pod of a role is which of its replicas, since a Deployment's pods have no numbers.

Pure. Called by whoever observes a cluster, before `decide`. Reads the status, never changes it: the status remembers a
pod's number by its life.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rljob_api.names import Role
from rljob_api.status import RLJobStatus
from rljob_api.wire.identity import PodKey
from rljob_operator.core.roster import pods


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
    lowest number without one. A pod whose life was given up keeps its number until a new one has it. Live pods beyond
    the replicas of their role get the numbers above: nobody counts on them, but they are seen.
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
        uid, lost_uid = _uid(member.life), _uid(member.lost_life)
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


def _uid(life: str) -> str:
    return life.rpartition("/")[0]


def _free_numbers(role: Role, taken: set[PodKey]) -> Iterator[int]:
    """Numbers of the role that no pod has, from below; those of replicas that wait for a pod come first by that."""
    number = 0
    while True:
        if PodKey(role=role, replica=number) not in taken:
            yield number
        number += 1
