"""Which pod of a local run gets which devices.

Pure. Called by `start` before anything runs, and by `rljob run --dry-run`. Its result holds for the whole run: a pod
that is restarted, in place or with the job, has the devices that it had.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rljob_api.names import Role
from rljob_api.roles import LEADING_ROLE, TRAITS, field_name
from rljob_api.spec.roles import RolesSpec
from rljob_api.wire.identity import PodKey
from rljob_operator.local.errors import RunRefused

PodDevices = Mapping[PodKey, tuple[str, ...]]
"""For each pod its devices, as CUDA_VISIBLE_DEVICES names them. Empty: it computes on the CPU."""


@dataclass(frozen=True, slots=True)
class RoleDemand:
    """What a role wants."""

    role: Role
    pods: int
    gpus: int
    """Of each pod."""
    shares: bool
    """They are the leading role's, too."""
    counted_by: str
    """The field with the number of pods there may be."""

    @property
    def total(self) -> int:
        """Of all its pods."""
        return self.pods * self.gpus


class TooFewDevices(RunRefused):
    """The job wants more devices than there are."""


def placement_order() -> tuple[Role, ...]:
    """What trains first, the policy before its critic, then as a sample passes the roles.

    What all ranks of a collective are on is side by side.
    """
    return tuple(sorted(TRAITS, key=lambda role: (not TRAITS[role].leads, not TRAITS[role].saves)))


def wanted_devices(roles: RolesSpec) -> list[RoleDemand]:
    """What each role wants, in the order in which devices are given; roles that want none left out."""
    present = roles.present()
    specs = [(role, present[role]) for role in placement_order() if role in present]
    return [
        RoleDemand(role, spec.most_replicas, spec.gpus, spec.share_devices_with is not None, _counted_by(roles, role))
        for role, spec in specs
        if spec.gpus
    ]


def _counted_by(roles: RolesSpec, role: Role) -> str:
    is_autoscaled = TRAITS[role].is_scalable and roles.rollout.autoscaling is not None
    return "autoscaling.maxReplicas" if is_autoscaled else "replicas"


def place(roles: RolesSpec, devices: Sequence[str], source: str) -> PodDevices:
    """Gives every pod its own devices, neighbours in the list to each pod and to each role.

    Roles that share get the leading role's, from the first on. Raises TooFewDevices; `source` names in its sentence how
    the devices are known.
    """
    wants = wanted_devices(roles)
    own = [want for want in wants if not want.shares]
    if sum(want.total for want in own) > len(devices):
        raise TooFewDevices(_arithmetic(own, len(devices), source))
    dealt = dict(_dealt(own, devices))
    leaders = [name for pod, names in dealt.items() if pod.role is LEADING_ROLE for name in names]
    for want in wants:
        if want.shares:
            dealt |= _dealt([want], leaders)  # a rule of the spec sees to it that there are enough
    return {pod: dealt.get(pod, ()) for role, count in roles.most_replicas().items() for pod in _pods(role, count)}


def _dealt(wants: Sequence[RoleDemand], devices: Sequence[str]) -> Iterator[tuple[PodKey, tuple[str, ...]]]:
    start = 0
    for want in wants:
        for pod in _pods(want.role, want.pods):
            yield pod, tuple(devices[start : start + want.gpus])
            start += want.gpus


def _pods(role: Role, count: int) -> Iterator[PodKey]:
    return (PodKey(role=role, replica=replica) for replica in range(count))


def _arithmetic(wants: Sequence[RoleDemand], available: int, source: str) -> str:
    terms = [
        f"{field_name(want.role)} {want.total}" + (f" ({want.pods} pods x {want.gpus})" if want.pods > 1 else "")
        for want in wants
    ]
    counts = ", ".join(sorted({want.counted_by for want in wants}, reverse=True))
    cure = f"Lower {counts} or gpus, or let roles use the actor's devices with shareDevicesWith: actor."
    total = sum(want.total for want in wants)
    has = f"{available} by {source}" if available else f"none by {source}"
    are = "devices are" if total > 1 else "device is"
    return f"spec.roles: {total} {are} wanted ({' + '.join(terms)}), but this machine has {has}. {cure}"
