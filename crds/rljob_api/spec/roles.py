"""Size and shape of each role (`spec.roles`), the trainer backend and autoscaling of rollouts: fields and rules.

Anyone may import it. Rules between roles are in `rljob_api.spec`; `rljob_operator.core.autoscaling` finds the number of
rollouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from rljob_api.base import ApiModel
from rljob_api.change import LIVE, RESTARTS
from rljob_api.engines import PROGRAM_ENGINE
from rljob_api.names import EngineKind, Role
from rljob_api.roles import TRAITS, RoleTopology
from rljob_api.rule import Derived, Rule, RuledModel
from rljob_api.spec.engine import CPU_FLAGS, EngineSpec, flag_pattern, given_flags
from rljob_api.spec.infrastructure import ResourcesSpec
from rljob_api.spec.parallelism import GPUS, OF_FORWARD, OF_GANG, RANKS_OF_POD, ParallelismSpec
from rljob_api.spec.training import OptimizerSpec

GPU_RESOURCE = "nvidia.com/gpu"
"""Unless a job says something else."""


DEVICES_OF_CLAIM = 32
"""As many may one claim ask for."""


ROLE: tuple[Rule, ...] = (
    Rule(
        field="ranksPerPod",
        holds=lambda role: role.gpus == 0 or role.ranks_per_pod in (None, role.gpus),
        sentence="{ranksPerPod} is not the number of its GPUs, {gpus}, and each GPU has one rank. Leave ranksPerPod "
        "out, or set gpus to 0.",
        cel="!has(self.gpus) || self.gpus == 0 || !has(self.ranksPerPod) || self.ranksPerPod == self.gpus",
    ),
    Rule(
        field="deviceClass",
        holds=lambda role: role.device_class is None or 1 <= role.gpus <= DEVICES_OF_CLAIM,
        sentence=f"{{deviceClass}} is for 1 to {DEVICES_OF_CLAIM} devices of each pod, and gpus is {{gpus}}. Give "
        "gpus, or remove deviceClass.",
        cel=f"!has(self.deviceClass) || ({GPUS} >= 1 && {GPUS} <= {DEVICES_OF_CLAIM})",
        derived={"gpus": Derived(lambda role: role.gpus, GPUS)},
    ),
    Rule(
        field="deviceClass",
        holds=lambda role: role.device_class is None or role.gpu_resource == GPU_RESOURCE,
        sentence="{deviceClass} asks for devices by a claim, and gpuResource {gpuResource} by a device plugin. Remove "
        "one of the two.",
        cel=f"!has(self.deviceClass) || !has(self.gpuResource) || self.gpuResource == '{GPU_RESOURCE}'",
    ),
)


_ROLES_ARGS = "(has(self.engine) && has(self.engine.args) ? self.engine.args : [])"


_IS_PROGRAM = f"(has(self.engine) && has(self.engine.kind) ? self.engine.kind == '{PROGRAM_ENGINE}' : {GPUS} > 0)"


_SHARE = "(has(self.engine) && has(self.engine.tensorParallel) ? self.engine.tensorParallel : 1)"


def _has_whole_engines(role: RolloutRoleSpec) -> bool:
    share = role.engine.tensor_parallel
    return share == 1 or (role.gpus > 0 and role.gpus % share == 0)


def _is_one_rank_for_each_engine(role: RolloutRoleSpec) -> bool:
    if role.gpus == 0 or role.ranks_per_pod is None or not _has_whole_engines(role):
        return True
    return role.ranks_per_pod * role.engine.tensor_parallel == role.gpus


def _first_of_the_cpu(role: RolloutRoleSpec) -> str:
    return given_flags(role.engine.args, CPU_FLAGS)[0]


def engine_kind(role: RolloutRoleSpec) -> EngineKind:
    """The engine's kind: as given, else a program where it computes on GPUs.

    For the manifest of a new job, and not for one that is resolved: there `engine.kind` says it.
    """
    if "kind" in role.engine.model_fields_set or not role.gpus:
        return role.engine.kind
    return PROGRAM_ENGINE


def _is_program(role: RolloutRoleSpec) -> bool:
    return engine_kind(role) is PROGRAM_ENGINE


ROLLOUT_ENGINE: tuple[Rule, ...] = (
    Rule(
        field="engine.args",
        holds=lambda role: _is_program(role) or not role.engine.args,
        sentence="are flags of a server of kind SGLang; those of other kinds have none. Remove args or set kind to "
        "SGLang.",
        cel=f"{_IS_PROGRAM} || {_ROLES_ARGS}.size() == 0",
    ),
    Rule(
        field="engine.python",
        holds=lambda role: _is_program(role) or role.engine.python is None,
        sentence="{engine.python} is for kind SGLang; servers of other kinds run in the environment of the job. Remove "
        "python or set kind to SGLang.",
        cel=f"{_IS_PROGRAM} || !has(self.engine) || !has(self.engine.python)",
    ),
    Rule(
        field="engine.tensorParallel",
        holds=lambda role: _is_program(role) or role.engine.tensor_parallel == 1,
        sentence="{engine.tensorParallel} needs kind SGLang; servers of other kinds have one device at most. Set kind "
        "to SGLang or leave tensorParallel out.",
        cel=f"{_IS_PROGRAM} || {_SHARE} == 1",
    ),
    Rule(
        field="engine.tensorParallel",
        holds=_has_whole_engines,
        sentence="{engine.tensorParallel} GPUs for each engine do not divide the gpus of a pod, {gpusOfPod}. Give a "
        "divisor of gpus, or change gpus.",
        cel=f"{_SHARE} == 1 || ({GPUS} > 0 && {GPUS} % {_SHARE} == 0)",
        derived={"gpusOfPod": Derived(lambda role: role.gpus, GPUS)},
    ),
    Rule(
        field="ranksPerPod",
        holds=_is_one_rank_for_each_engine,
        sentence="{ranksPerPod} is not the number of its engines, {gpus} gpus with {share} for each, and each engine "
        "has one rank. Leave ranksPerPod out, or set gpus to 0.",
        cel=f"{GPUS} == 0 || !has(self.ranksPerPod) || self.gpus % {_SHARE} != 0 || "
        f"self.ranksPerPod * {_SHARE} == self.gpus",
        derived={"share": Derived(lambda role: role.engine.tensor_parallel, _SHARE)},
    ),
    Rule(
        field="engine.python",
        holds=lambda role: role.gpus > 0 or role.engine.python is None,
        sentence="{engine.python} needs gpus: without them an engine is forked from its launcher, and has the "
        "environment of the job. Remove python or give gpus.",
        cel=f"{GPUS} > 0 || !has(self.engine) || !has(self.engine.python)",
    ),
    Rule(
        field="engine.args",
        holds=lambda role: role.gpus > 0 or not given_flags(role.engine.args, CPU_FLAGS),
        sentence=f"{{flag}} is not yours to give: {CPU_FLAGS.instead} Remove it from args or give gpus.",
        cel=f"{GPUS} > 0 || !{_ROLES_ARGS}.exists(arg, arg.matches('{flag_pattern(CPU_FLAGS)}'))",
        derived={
            "flag": Derived(
                _first_of_the_cpu, f"{_ROLES_ARGS}.filter(arg, arg.matches('{flag_pattern(CPU_FLAGS)}'))[0]"
            )
        },
    ),
)


MOST_REPLICAS = 1024


ROLLOUT_SCALE: tuple[Rule, ...] = (
    Rule(
        field="replicas",
        # The API server fills in 1, which cannot be distinguished from a given 1.
        holds=lambda role: role.autoscaling is None or role.replicas == 1,
        sentence="{replicas} is not yours to give: with autoscaling RLJob sets the number itself, from "
        "{autoscaling.minReplicas} to {autoscaling.maxReplicas}. Remove replicas or set it back to 1, or remove "
        "autoscaling.",
        cel="!has(self.autoscaling) || self.replicas == 1",
    ),
)
"""Rules of the role beside autoscaling. They also refuse writes to the scale subresource."""


class AutoscalingSpec(RuledModel):
    """More rollout replicas while the actor is starved of rows, fewer while rollouts idle since tickets are withheld.

    It is judged at the ends of steps, over at least maxStaleness + 1 of them, which may be in work at the same time.
    After each change as many are left out first, whose rows were begun before it; after each restart one is.
    """

    rules = (
        Rule(
            field="maxReplicas",
            holds=lambda autoscaling: autoscaling.max_replicas >= autoscaling.min_replicas,
            sentence="{maxReplicas} is below minReplicas {minReplicas}. Give at least minReplicas.",
            cel="self.maxReplicas >= self.minReplicas",
        ),
    )

    min_replicas: int = Field(ge=1, le=MOST_REPLICAS)
    """Fewest rollout replicas, and those that a job begins with."""
    max_replicas: int = Field(ge=1, le=MOST_REPLICAS)
    """Most rollout replicas. `rljob run` deals devices for all of them before it starts."""
    scale_up_after_seconds: int = Field(default=60, ge=10, le=86400)
    """For so long, at least, the actor has been starved before replicas are added: at most as many as there are."""
    scale_down_after_seconds: int = Field(default=300, ge=10, le=86400)
    """For so long, at least, rollouts have been idle before replicas drain: at most half of them."""
    tolerance: float = Field(default=0.1, ge=0.01, le=0.9)
    """The share of time that the actor may be starved beyond the share that rollouts are idle, or the other way round,
    without a change."""


class TrainerBackend(StrEnum):
    """Implementations that compute a model in training."""

    FLAT = "Flat"
    FSDP = "Fsdp"
    MEGATRON = "Megatron"
    SIM = "Sim"


@dataclass(frozen=True, slots=True)
class BackendTraits:
    """A row of the table of trainer backends: all that can be known of one without its libraries."""

    computes: bool = True
    """Whether there is a model at all."""
    shards: bool = False
    """Whether the ranks of a gang each hold a part of the model, gathered layer by layer."""
    lays_out: bool = False
    """Whether `parallelism` is possible: ranks each compute a part of the model."""
    pads: bool = False
    """Whether `training.packing: false` is possible."""
    checkpoints_activations: bool = False
    """Whether `training.activationCheckpointing` is possible."""
    checkpoints_by_default: bool = False
    """Whether it is so where the job does not say."""
    recomputes_parts: bool = False
    """Whether `training.recomputeModules` is possible."""
    chunks_logits: bool = False
    """Whether logits exist a chunk of tokens at a time."""
    module: str = ""
    """A module of the backend's extra, which has its name in lower case; empty: it needs no more than any worker."""
    tries_families: bool = False
    """Whether it computes any family of transformers that passes its trial; else the plain decoder alone."""


BACKENDS: Mapping[TrainerBackend, BackendTraits] = {
    TrainerBackend.FLAT: BackendTraits(),
    TrainerBackend.FSDP: BackendTraits(
        shards=True,
        pads=True,
        checkpoints_activations=True,
        checkpoints_by_default=True,
        chunks_logits=True,
        tries_families=True,
    ),
    TrainerBackend.MEGATRON: BackendTraits(
        lays_out=True, checkpoints_activations=True, recomputes_parts=True, chunks_logits=True, module="megatron"
    ),
    TrainerBackend.SIM: BackendTraits(computes=False),
}


ResourceName = Annotated[
    str,
    StringConstraints(
        pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$", max_length=317
    ),
]
"""An extended resource of Kubernetes: a domain, `/` and a name."""


DeviceClassName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", min_length=1, max_length=253)
]
"""A name of Kubernetes: lower-case letters, digits, `-` and `.`."""


class DeviceOwner(StrEnum):
    """Roles whose devices another one may use, too."""

    ACTOR = "actor"


class RoleSpec(RuledModel):
    """Size and shape of one role. Its ranks, the processes that do its work, are replicas x ranks of each pod."""

    rules = ROLE

    replicas: int = Field(default=1, ge=1, le=1024)
    """Pods."""
    ranks_per_pod: int | None = Field(default=None, ge=1, le=64)
    """Ranks of each pod; null: one for each GPU, or one. Only for pods without GPUs: with them it is their number."""
    threads: int = Field(default=1, ge=1, le=1024)
    """CPU threads of tensor operations in each rank (for rollout: in each engine)."""
    gpus: int = Field(default=0, ge=0, le=64)
    """GPUs of each pod, one for each of its ranks (for rollout engine.tensorParallel for each); 0: it computes on the
    CPU. `rljob run` deals this machine's, in a fixed order of roles. Not given: 0 where no role that computes a model
    has any. Else actorFwd and reference share all of the actor's on one machine; all others, and on a cluster all, have
    to say it."""
    gpu_resource: ResourceName = GPU_RESOURCE
    """The resource that `gpus` counts, e.g. amd.com/gpu or nvidia.com/mig-1g.10gb. On a cluster only."""
    device_class: DeviceClassName | None = None
    """A DeviceClass of the cluster, e.g. gpu.nvidia.com or mig.nvidia.com: `gpus` are claimed from it (Dynamic Resource
    Allocation) instead of counted by gpuResource. On a cluster only."""
    share_devices_with: DeviceOwner | None = None
    """actor: the pods of this role use the actor's devices and need none of their own. For rollout, critic, actorFwd
    and reference, on one machine only; each must leave the others memory."""
    resources: ResourcesSpec = ResourcesSpec()
    """CPU and memory of each pod. On a cluster only."""
    template: dict[str, Any] = {}
    """A patch of the pod template ({metadata: ..., spec: ...}), merged as `kubectl patch` would: maps by key,
    containers, volumes and environment by name. The container of a role is called `worker`. On a cluster only."""

    @property
    def devices_per_rank(self) -> int:
        """How many of the pod's GPUs each of its ranks has."""
        return 1

    @property
    def num_ranks_per_pod(self) -> int:
        """A rank for each GPU, or for each engine's; without GPUs as many as the user says, or one."""
        return max(self.gpus // self.devices_per_rank, 1) if self.ranks_per_pod is None else self.ranks_per_pod

    @property
    def ranks_per_model(self) -> int:
        """How many ranks hold one model together."""
        return 1

    @property
    def first_replicas(self) -> int:
        """Pods that a job begins with."""
        return self.replicas

    @property
    def most_replicas(self) -> int:
        """Pods that there may be."""
        return self.replicas


def _shards_fit(role: ForwardRoleSpec) -> bool:
    ranks = role.num_ranks_per_pod
    return ranks % role.shards == 0 or (role.shards % ranks == 0 and role.replicas * ranks % role.shards == 0)


SHARDS: tuple[Rule, ...] = (
    Rule(
        field="shards",
        holds=_shards_fit,
        sentence="{shards} ranks for each model leave ranks over: {replicas} pods have {ranksOfPod} each, and a model "
        "lies within a pod or on whole pods. Give a divisor of a pod's ranks, or a multiple of them that divides the "
        "ranks of all pods.",
        cel=f"!has(self.shards) || {RANKS_OF_POD} % self.shards == 0 || "
        f"(self.shards % {RANKS_OF_POD} == 0 && self.replicas * {RANKS_OF_POD} % self.shards == 0)",
        derived={"ranksOfPod": Derived(lambda role: role.num_ranks_per_pod, RANKS_OF_POD)},
    ),
    Rule(
        field="shards",
        holds=lambda role: role.shards == 1 or role.parallelism is None,
        sentence="{shards} ranks that gather a model in turn do not go with parallelism, which has each compute a part "
        "of it. Remove one of the two.",
        cel="!has(self.shards) || self.shards == 1 || !has(self.parallelism)",
    ),
)


class ModelRoleSpec(RoleSpec):
    """Size and shape of a role whose ranks hold a model, what computes it and how it lies on them."""

    backend: TrainerBackend | None = None
    """As roles.actor.backend. Null: the actor's."""
    parallelism: ParallelismSpec | None = None
    """For a model that one device cannot hold, or not train fast enough. Backend Megatron only. Null: each rank holds a
    whole model."""

    @property
    def ranks_per_model(self) -> int:
        """See the base."""
        return 1 if self.parallelism is None else self.parallelism.ranks_per_model


class ForwardRoleSpec(ModelRoleSpec):
    """Size and shape of a role that computes log-probs."""

    rules = (*ROLE, *SHARDS, *OF_FORWARD)

    shards: int = Field(default=1, ge=1, le=1024)
    """Ranks that hold one model together, where a device cannot hold it: of one pod, or of several whole pods. With
    replicas 2, gpus 8 and shards 8 there are two models, one in each pod; with shards 16 there is one. Backend Fsdp
    only. 1: each rank holds a whole model."""

    @property
    def ranks_per_model(self) -> int:
        """See the base."""
        return self.shards if self.parallelism is None else self.parallelism.ranks_per_model


class ChangedWeights(StrEnum):
    """The answer of a job that goes on and finds other weights in a folder than it began with."""

    REFUSE = "Refuse"
    ACCEPT = "Accept"


class ReferenceSpec(ForwardRoleSpec):
    """Size and shape of the reference, and what model it has."""

    model_path: str | None = Field(default=None, min_length=1, max_length=4096)
    """Folder of a teacher, whose log-probs are the reference's: a causal language model of any size that the backend
    computes, with the policy's tokenizer; relative to the manifest. Rows that have log-probs when it changes keep them.
    Null: the policy's version 0, or what training.refUpdateInterval says."""
    changed_weights: ChangedWeights = ChangedWeights.REFUSE
    """Refuse: a job that is resumed or restarted fails where modelPath has other weights than it began with. Accept: it
    goes on with them, and an event says so."""


class ActorSpec(ModelRoleSpec):
    """Size and shape of the actor, and what computes its model."""

    rules = (*ROLE, *OF_GANG)

    backend: TrainerBackend | None = None
    """Fsdp: models of transformers, sharded over the actor's ranks. Megatron: Qwen2, Qwen3, Llama and Qwen3-MoE, laid
    out over the ranks as parallelism says, for models that are too large for Fsdp. Flat: a decoder of our own (Qwen3
    and Llama), whole on every rank; the fastest for tiny models. Sim: nothing is computed, as with engines of kind Sim,
    which it goes with. Null: Sim beside such engines, else Fsdp for model.path and Flat for model.config. The other
    roles have the same where they give none."""


VALUE_CLIP = 0.2
"""Default of a critic that says nothing of it."""


class CriticSpec(ModelRoleSpec):
    """Size and shape of the critic, what computes its model, and how that is trained."""

    rules = (*ROLE, *OF_GANG)

    model_path: str | None = Field(default=None, min_length=1, max_length=4096)
    """Folder of a reward model, whose body and head the critic begins with: a *ForSequenceClassification of one label,
    with the policy's tokenizer; relative to the manifest. Null: the body of the policy's version 0, with a new head."""
    optimizer: OptimizerSpec | None = None
    """AdamW and the learning rate of the critic. Null: as training.optimizer."""
    value_clip: float | None = Field(default=None, ge=0, le=1e9)
    """A value counts as at most this far from what it was before the first optimizer step on its rollout, where that
    makes its error larger. 0: no such bound. Null: 0.2."""

    @property
    def largest_change(self) -> float:
        """`value_clip` as given or by default."""
        return VALUE_CLIP if self.value_clip is None else self.value_clip


class RolloutRoleSpec(RoleSpec):
    """Size and shape of the rollouts, and what generates in them."""

    rules = (*ROLLOUT_ENGINE, *ROLLOUT_SCALE)

    replicas: Annotated[int, LIVE] = Field(default=1, ge=1, le=1024)
    """Pods."""
    engine: EngineSpec = EngineSpec()
    """The inference server behind each rank."""
    autoscaling: Annotated[AutoscalingSpec | None, LIVE] = None
    """RLJob sets the number of replicas itself, and `replicas` is not yours to give. Null: there are `replicas`, which
    you, or an autoscaler of the cluster, may change (`kubectl scale`)."""

    @property
    def devices_per_rank(self) -> int:
        """See the base."""
        return self.engine.tensor_parallel

    @property
    def first_replicas(self) -> int:
        """See the base."""
        return self.replicas if self.autoscaling is None else self.autoscaling.min_replicas

    @property
    def most_replicas(self) -> int:
        """See the base."""
        return self.replicas if self.autoscaling is None else self.autoscaling.max_replicas


class RolesSpec(ApiModel):
    """Roles of the job.

    `reference` may be absent (null) when neither a KL term nor algorithm.advantage needs it, `advantages` when rewards
    of a group are all that these are made of, and `actorFwd` always. There is a `critic` where algorithm.advantage
    needs values, and only there.
    """

    actor: Annotated[ActorSpec, RESTARTS] = ActorSpec()
    """Trains the policy and publishes weights; its ranks, or the models that they share, are data-parallel."""
    critic: Annotated[CriticSpec | None, RESTARTS] = None
    """Estimates the value of each token, and trains on returns; its ranks, or the models that they share, are
    data-parallel. Null: there is none."""
    rollout: Annotated[RolloutRoleSpec, RESTARTS] = RolloutRoleSpec()
    """Generates samples and scores them; each rank has an engine of its own."""
    actor_fwd: Annotated[ForwardRoleSpec | None, RESTARTS] = ForwardRoleSpec()
    """Log-probs under the policy just before training. Null: there is no such role, and the actor makes them itself.
    With one optimizer step per rollout that costs nothing, and null is the default; with several the actor computes
    them before the first, so that a rollout must be complete before it is trained on. So {} is the default then, but on
    a cluster null where the actor has gpus. What a job began with stays."""
    reference: Annotated[ReferenceSpec | None, RESTARTS] = None
    """Log-probs under the reference model, which may be a teacher; null means that there is no such role. With KL
    coefficient 0, and no advantage of it, it serves rows as it comes to them, and no role waits for it."""
    advantages: Annotated[RoleSpec | None, RESTARTS] = RoleSpec()
    """Advantages from rewards. Null: there is no such role, and the rollout puts them with its samples, which costs
    nothing: where a sample is compared with the others of its group and with nothing else (algorithm.advantage Grpo,
    DrGrpo, Rloo or a function of yours, and no kl.placement Reward) or with a greedy answer (ReMax). That is the
    default there, and {} elsewhere: null is refused where the role is needed, but on a cluster, which takes null for
    nothing given, the role comes. What a job began with stays."""

    def present(self) -> dict[Role, RoleSpec]:
        """The roles that the job has, in the order in which a sample passes them."""
        given = {role: self.of(role) for role in Role}
        return {role: spec for role, spec in given.items() if spec is not None}

    def of(self, role: Role) -> RoleSpec | None:
        """The spec of `role`; None where the job does not have it."""
        return getattr(self, role.value)  # type: ignore[no-any-return]

    def replicas(self) -> dict[Role, int]:
        """Role -> number of its pods; where they are autoscaled, the number that a job begins with."""
        return {role: spec.first_replicas for role, spec in self.present().items()}

    def most_replicas(self) -> dict[Role, int]:
        """Role -> number of pods that it may have."""
        return {role: spec.most_replicas for role, spec in self.present().items()}

    def topologies(self) -> dict[Role, RoleTopology]:
        """Role -> its shape, of the roles that the job has."""
        return {role: self.topology(role) for role in self.present()}

    def topology(self, role: Role) -> RoleTopology:
        """The shape of `role` as the spec wants it.

        A role that the job does not have has no pods; one that is there all the same has one rank. So a pod that was
        made when its role was added, and reads the job's file before that has been renewed on its node, is of the right
        shape.
        """
        traits, spec = TRAITS[role], self.of(role)
        pods, ranks = (0, 1) if spec is None else (spec.most_replicas, spec.num_ranks_per_pod)
        shards = 1 if spec is None else spec.ranks_per_model
        return RoleTopology(pods, ranks, ranks if traits.has_engines else 0, traits.grouping, shards)
