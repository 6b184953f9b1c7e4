"""Traits of each role, as one table, and what its topology is; `RolesSpec.topology` derives that from the spec.

Pure. Other code reads a trait instead of comparing names of roles, and a `RoleTopology` instead of multiplying replicas
and GPUs. A role is named here and in its own work: its loop, its stage, its factory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from pydantic.alias_generators import to_camel

from rljob_api.names import Role, Scope, Stream


class Grouping(Enum):
    """How the ranks of a role belong together."""

    INDEPENDENT = "Independent"
    """Each rank works for itself: the others go on without it."""
    GANG = "Gang"
    """All ranks of the role take part in the same collectives: without one the others wait."""


@dataclass(frozen=True, slots=True)
class RoleTraits:
    """A row of the table."""

    scope: Scope
    """Its failures restart this where the spec does not override it."""
    fixed_because: str = ""
    """Why its scope cannot be overridden, as part of a sentence; empty: it can."""
    grouping: Grouping = Grouping.INDEPENDENT
    tasks: tuple[str, ...] = ()
    """Consumers of the queue that it serves."""
    stream: Stream | None = None
    """Weights that it follows."""
    leads: bool = False
    """Its rank 0 trains the policy: publishes weights and records checkpoints. True of one role."""
    saves: bool = False
    """Trains a model, and writes its part of checkpoints: its pods mount the run volume, and a drain waits until it has
    saved. Roles that do go from rollout to rollout together (`dcs.coordinator.turns`)."""
    loads_model: bool = False
    """Reads the model's folder (`model.path`) or its tokenizer's."""
    draws_tickets: bool = False
    """Works on prompts under tickets: a death makes suspects of the prompts in work. True of one role."""
    has_engines: bool = False
    """Its pods run engine servers, one for each rank; `threads` are the engine's."""
    is_scalable: bool = False
    """Replicas come and go while the job runs (the scale subresource). True of one role."""


_HALF_APPLIED = "a gradient that is half applied cannot be taken back"


TRAITS: Mapping[Role, RoleTraits] = {
    Role.ROLLOUT: RoleTraits(
        Scope.GLOBAL,
        stream=Stream.POLICY,
        loads_model=True,
        draws_tickets=True,
        has_engines=True,
        is_scalable=True,
    ),
    Role.ACTOR: RoleTraits(
        Scope.GLOBAL,
        fixed_because=_HALF_APPLIED,
        grouping=Grouping.GANG,
        tasks=("actor_train",),
        leads=True,
        saves=True,
        loads_model=True,
    ),
    Role.CRITIC: RoleTraits(
        Scope.GLOBAL,
        fixed_because=_HALF_APPLIED,
        grouping=Grouping.GANG,
        tasks=("critic_values", "critic_train"),
        saves=True,
        loads_model=True,
    ),
    Role.ACTOR_FWD: RoleTraits(Scope.GLOBAL, tasks=("actor_log_probs",), stream=Stream.POLICY, loads_model=True),
    Role.REFERENCE: RoleTraits(Scope.IN_PLACE, tasks=("ref_log_probs",), stream=Stream.REFERENCE, loads_model=True),
    Role.ADVANTAGES: RoleTraits(Scope.IN_PLACE, tasks=("compute_advantages_and_returns",)),
}


def field_name(role: Role) -> str:
    """The role's field in `spec.roles` and in `spec.restartPolicy.table`, in the manifest's spelling."""
    return to_camel(role.value)


def audit_file(role: Role) -> str:
    """Name, in a run's folder, of the audit of a role that trains."""
    return "samples.jsonl" if TRAITS[role].leads else f"samples.{role.value}.jsonl"


def _only(holds: Callable[[RoleTraits], bool]) -> Role:
    (role,) = (role for role, traits in TRAITS.items() if holds(traits))
    return role


LEADING_ROLE = _only(lambda traits: traits.leads)


TICKET_ROLE = _only(lambda traits: traits.draws_tickets)


SAVING_ROLES = tuple(role for role, traits in TRAITS.items() if traits.saves)
"""Their ranks write checkpoints, and verify the one that an epoch begins with. The leading role is the first."""


SCALED_ROLE = _only(lambda traits: traits.is_scalable)
"""The resource has one scale subresource."""


PROXIMAL_ROLE = _only(lambda traits: "actor_log_probs" in traits.tasks)
"""Without it the actor makes those log-probs itself."""


ADVANTAGES_ROLE = _only(lambda traits: "compute_advantages_and_returns" in traits.tasks)
"""Without it the rollout puts advantages with the rows of a group."""


VALUE_ROLE = _only(lambda traits: "critic_values" in traits.tasks)
"""Where a job has it, it estimates values, and trains on returns."""


REFERENCE_ROLE = _only(lambda traits: "ref_log_probs" in traits.tasks)
"""Its model may be a teacher, which is no version of the policy."""


MODEL_ROLES = tuple(role for role, traits in TRAITS.items() if traits.loads_model and not traits.has_engines)
"""Their ranks hold a model themselves."""


FORWARD_ROLES = frozenset(role for role, traits in TRAITS.items() if traits.stream and not traits.has_engines)
"""They compute log-probs under weights that the actor publishes."""


@dataclass(frozen=True, slots=True)
class RoleTopology:
    """The shape of one role. Global ranks count over its pods, pod by pod and without gaps."""

    pods: int
    """Where they are autoscaled, as many as there may be."""
    ranks_per_pod: int
    engines: int
    """Engine servers of each pod: rank i drives engine i. 0: the role has none."""
    grouping: Grouping
    shards: int = 1
    """Ranks that share one model."""

    @property
    def num_ranks(self) -> int:
        """All ranks of the role, the world size."""
        return self.pods * self.ranks_per_pod

    @property
    def models(self) -> int:
        """Models that the ranks hold: rows are dealt to as many of them, in data parallelism."""
        return self.num_ranks // self.shards

    def ranks_of(self, replica: int) -> range:
        """Global ranks of a pod."""
        first = replica * self.ranks_per_pod
        return range(first, first + self.ranks_per_pod)

    @property
    def ranks_per_gang(self) -> int:
        """Ranks that share any collective; 1: each works for itself."""
        return max(self.num_ranks, 1) if self.grouping is Grouping.GANG else self.shards

    @property
    def pods_per_gang(self) -> int:
        """Pods that begin again together."""
        return max(self.ranks_per_gang // self.ranks_per_pod, 1)

    @property
    def gangs(self) -> tuple[range, ...]:
        """Global ranks of each gang. Each takes work for itself: its first rank does."""
        size = self.ranks_per_gang
        return tuple(range(first, first + size) for first in range(0, self.num_ranks, size))

    def gang_of(self, rank: int) -> range:
        """The global ranks of the gang of global rank `rank`."""
        first = rank - rank % self.ranks_per_gang
        return range(first, first + self.ranks_per_gang)
