"""How many pods, ranks and engines a role has, and how its ranks are numbered: derived here once, from the spec.

Pure. Read by rules, launcher, coordinator and roles; nobody multiplies replicas and GPUs again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rljob_api.role_traits import TRAITS, Grouping

if TYPE_CHECKING:
    from rljob_api.names import Role
    from rljob_api.spec import RoleSpec, RolesSpec


@dataclass(frozen=True, slots=True)
class RoleTopology:
    """The shape of one role. Global ranks count over its pods, pod by pod and without gaps."""

    pods: int
    """Where they are autoscaled, as many as there may be."""
    ranks_per_pod: int
    engines: int
    """Engine servers of each pod: rank i drives engine i. 0: the role has none."""
    grouping: Grouping

    @property
    def num_ranks(self) -> int:
        """All ranks of the role, the world size."""
        return self.pods * self.ranks_per_pod

    def ranks_of(self, replica: int) -> range:
        """Global ranks of a pod."""
        first = replica * self.ranks_per_pod
        return range(first, first + self.ranks_per_pod)

    @property
    def gangs(self) -> tuple[range, ...]:
        """Global ranks that share any collective. Each gang takes work for itself: its first rank does."""
        if self.grouping is Grouping.GANG:
            return (range(self.num_ranks),) if self.num_ranks else ()
        return tuple(range(rank, rank + 1) for rank in range(self.num_ranks))


def topology_of(roles: RolesSpec, role: Role) -> RoleTopology:
    """The shape of `role` as the spec wants it.

    A role that the job does not have has no pods; one that is there all the same has one rank. So a pod that was made
    when its role was added, and reads the job's file before that has been renewed on its node, is of the right shape.
    """
    traits, spec = TRAITS[role], roles.of(role)
    pods, ranks = (0, 1) if spec is None else (spec.most_replicas, _ranks_per_pod(spec))
    return RoleTopology(pods, ranks, ranks if traits.has_engines else 0, traits.grouping)


def _ranks_per_pod(spec: RoleSpec) -> int:
    """A rank for each GPU, or for each engine's; without GPUs as many as the user says, or one."""
    return max(spec.gpus // spec.devices_per_rank, 1) if spec.ranks_per_pod is None else spec.ranks_per_pod
