"""The spec of an RLJob: every field that a user may write, with unit, bounds, default and meaning.

A module for each part, with its rules; here are the whole, the manifest around it, and rules between parts. A field is
here only when its behaviour is built. Anyone may import it. Reads no file.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, StringConstraints

from rljob_api.base import ApiModel
from rljob_api.change import LIVE, RESTARTS, fixed
from rljob_api.names import Role
from rljob_api.roles import FORWARD_ROLES, LEADING_ROLE, PROXIMAL_ROLE, TRAITS, field_name
from rljob_api.rule import Derived, Rule, RuledModel
from rljob_api.spec.advantages import ADVANTAGES, WITHOUT_GROUPS
from rljob_api.spec.algorithm import AlgorithmSpec, NoVariance, ProximalPolicy
from rljob_api.spec.checkpoint import CheckpointSpec
from rljob_api.spec.curriculum import CURRICULUM
from rljob_api.spec.data import DataSpec
from rljob_api.spec.dynamic_sampling import DYNAMIC_SAMPLING
from rljob_api.spec.evaluation import EvaluationSpec
from rljob_api.spec.experts import EXPERTS
from rljob_api.spec.infrastructure import InfrastructureSpec
from rljob_api.spec.laid_out_roles import LAYOUTS
from rljob_api.spec.measured import MEASURED, StopWhenSpec
from rljob_api.spec.model import ModelSpec, Seed
from rljob_api.spec.parallelism import WHOLE
from rljob_api.spec.partial_rollouts import PARTIAL_ROLLOUTS
from rljob_api.spec.queue import TransferQueueSpec
from rljob_api.spec.restart import (
    RestartPolicySpec,
    RestartRequestSpec,
)
from rljob_api.spec.roles import (
    BACKENDS,
    BackendTraits,
    ForwardRoleSpec,
    ModelRoleSpec,
    RolesSpec,
    TrainerBackend,
)
from rljob_api.spec.rollout import WITHOUT_LABELS, RolloutSpec
from rljob_api.spec.scheduling import SchedulingSpec
from rljob_api.spec.set_defaults import data_of
from rljob_api.spec.simulation import SimulationSpec
from rljob_api.spec.teacher import TEACHER
from rljob_api.spec.trained_roles import CRITIC, ENGINE_IS_SIM, NO_GPUS, RANKS
from rljob_api.spec.training import RecomputedModule, TrainingSpec
from rljob_api.spec.weights import WeightSyncSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from rljob_api.spec.model import Dtype
    from rljob_api.spec.parallelism import ParallelismSpec
    from rljob_api.spec.roles import RoleSpec


_ACTOR = f"self.roles.{field_name(LEADING_ROLE)}"


_ACTOR_GPUS = NO_GPUS.format(_ACTOR)


_IS_FSDP = "(has(self.roles.actor.backend) ? self.roles.actor.backend == 'Fsdp' : has(self.model.path))"


def _is_simulated(job: RLJobSpec) -> bool:
    return not job.roles.rollout.engine.traits.computes


def _is_simulated_by_both(job: RLJobSpec) -> bool:
    backend = job.roles.actor.backend
    return backend is None or BACKENDS[backend].computes != _is_simulated(job)


def _has_no_idle_forward(job: RLJobSpec) -> bool:
    """The role that computes proximal log-probs is not asked for where no role would read them."""
    is_asked_for = PROXIMAL_ROLE.value in job.roles.model_fields_set and job.roles.of(PROXIMAL_ROLE) is not None
    return job.algorithm.proximal in (None, ProximalPolicy.RECOMPUTE) or not is_asked_for


def _answers_have_labels(job: RLJobSpec) -> bool:
    scored_otherwise = job.data.reasoning_gym is not None or not job.rollout.reward.compares_with_labels
    return scored_otherwise or job.data.label_key is not None or job.rollout.function is not None


def _penalty_begins_within_an_answer(job: RLJobSpec) -> bool:
    overlong = job.rollout.reward.overlong
    return overlong is None or overlong.buffer <= job.rollout.sampling.max_new_tokens


_BESIDE_GREEDY = [str(name) for name, traits in ADVANTAGES.items() if traits.needs_greedy]


_IS_GREEDY = f"self.algorithm.advantage in {_BESIDE_GREEDY}"


_OF_ONE_SAMPLE = [str(name) for name, traits in ADVANTAGES.items() if traits.fewest_samples == 1]


_HAS_GROUPS = f"(self.rollout.samplesPerPrompt >= 2 || {_IS_GREEDY})"
"""Whether a reward has another one beside it, a sample's or a greedy answer's."""


def _samples_have_a_measure(job: RLJobSpec) -> bool:
    return job.rollout.samples_per_prompt >= job.algorithm.advantage_traits.fewest_samples


def _has_groups(job: RLJobSpec) -> bool:
    return job.samples_per_ticket >= 2


def _function_leaves_greedy_answers(job: RLJobSpec) -> bool:
    return job.rollout.function is None or not job.algorithm.advantage_traits.needs_greedy


def _function_ends_before_a_stall(job: RLJobSpec) -> bool:
    function = job.rollout.function
    limit = None if function is None else function.timeout_seconds
    return limit is None or limit < job.restart_policy.stall_timeout_seconds


def _sets_have_labels(job: RLJobSpec) -> bool:
    sets = () if job.evaluation is None else job.evaluation.sets
    return not job.rollout.reward.compares_with_labels or all(
        each.data.reasoning_gym is not None or data_of(each.data, job.data).label_key is not None for each in sets
    )


def _has_template(job: RLJobSpec, data: DataSpec) -> bool:
    """Where its prompts need one."""
    has_tokenizer = job.model.path is not None or job.model.tokenizer_path is not None
    has_file = data.chat_template is not None and data.chat_template.file is not None
    return not data.apply_chat_template or has_tokenizer or has_file


def _sets_have_templates(job: RLJobSpec) -> bool:
    sets = () if job.evaluation is None else job.evaluation.sets
    return all(_has_template(job, data_of(each.data, job.data)) for each in sets)


_SEEDED = "^--(enable-deterministic-inference|rl-on-policy-target)(=|$)"
"""Flags of SGLang with which seeds fix samples."""


def _draws_with_min_p(job: RLJobSpec) -> bool:
    sets = () if job.evaluation is None else job.evaluation.sets
    given = (job.rollout.sampling, *(each.sampling for each in sets))
    return any(sampling is not None and bool(sampling.min_p) for sampling in given)


def _is_seeded(job: RLJobSpec) -> bool:
    return any(re.search(_SEEDED, arg) for arg in job.roles.rollout.engine.args)


def _answers_fit_positions(job: RLJobSpec) -> bool:
    config = job.model.config
    return config is None or job.rollout.sampling.max_new_tokens < config.max_position_embeddings


_SHARING_ROLES = tuple(role for role in Role if TRAITS[role].loads_model and not TRAITS[role].leads)
"""Their work may lie beside the trainer's on one device."""


def _num_devices(role: RoleSpec | None) -> int:
    return 0 if role is None else role.most_replicas * role.gpus


def _shares_what_there_is(role: Role) -> Callable[[RLJobSpec], bool]:
    def holds(job: RLJobSpec) -> bool:
        given = job.roles.of(role)
        if given is None or given.share_devices_with is None:
            return True
        return 0 < _num_devices(given) <= _num_devices(job.roles.of(LEADING_ROLE))

    return holds


def _sharing(role: Role) -> Rule:
    """A role that shares needs devices, and no more than there are."""
    field, actor = f"roles.{field_name(role)}", f"roles.{field_name(LEADING_ROLE)}"
    pods, count = f"self.{field}.replicas", "replicas"
    if TRAITS[role].is_scalable:
        most, count = f"self.{field}.autoscaling.maxReplicas", "replicas or autoscaling.maxReplicas"
        pods = f"(has(self.{field}.autoscaling) ? {most} : {pods})"
    gpus = NO_GPUS.format(f"self.{field}")
    return Rule(
        field=f"{field}.shareDevicesWith",
        holds=_shares_what_there_is(role),
        sentence=f"{{{field}.shareDevicesWith}} needs gpus of at least 1, and no more in all pods ({count} x gpus) "
        f"than the actor has, but {field}.gpus is {{gpusOfRole}} and the actor has {{{actor}.replicas}} x "
        f"{{gpusOfActor}}. Change gpus or {count}, or remove shareDevicesWith.",
        cel=f"!has(self.{field}) || !has(self.{field}.shareDevicesWith) || ({gpus} > 0 && "
        f"{pods} * {gpus} <= self.{actor}.replicas * {_ACTOR_GPUS})",
        derived={
            "gpusOfRole": Derived(lambda job: job.roles.of(role).gpus, gpus),
            "gpusOfActor": Derived(lambda job: job.roles.of(LEADING_ROLE).gpus, _ACTOR_GPUS),
        },
    )


def _cannot_share(role: Role) -> Rule:
    field = f"roles.{field_name(role)}.shareDevicesWith"
    names = " and ".join(", ".join(field_name(role) for role in _SHARING_ROLES).rsplit(", ", 1))
    return Rule(
        field=field,
        holds=lambda job: (given := job.roles.of(role)) is None or given.share_devices_with is None,
        sentence=f"{{{field}}} is for {names}. Remove it.",
        cel=f"!has(self.roles.{field_name(role)}) || !has(self.{field})",
    )


def _has_parts_to_gather(role: Role) -> Callable[[RLJobSpec], bool]:
    def holds(job: RLJobSpec) -> bool:
        given = job.roles.of(role)
        is_whole = not isinstance(given, ForwardRoleSpec) or given.shards == 1
        return is_whole or BACKENDS[job.backend_of(role)].shards

    return holds


def _sharded(role: Role) -> Rule:
    above = f"self.roles.{field_name(role)}"
    field = f"roles.{field_name(role)}.shards"
    return Rule(
        field=field,
        holds=_has_parts_to_gather(role),
        sentence=f"{{{field}}} needs the backend Fsdp, and this role has another, of which each rank holds a whole "
        "model. Set backend to Fsdp or leave shards out.",
        cel=f"!has({above}) || !has({above}.shards) || {above}.shards == 1 || "
        f"(has({above}.backend) ? {above}.backend == 'Fsdp' : {_IS_FSDP})",
    )


_NEEDS_NO_LABELS = (
    f"{' || '.join(f'has(self.rollout.reward.{kind})' for kind in WITHOUT_LABELS)} || "
    "(has(self.rollout.reward.sum) && self.rollout.reward.sum.all(each, "
    f"{' || '.join(f'has(each.{kind})' for kind in WITHOUT_LABELS)}))"
)

SPEC: tuple[Rule, ...] = (
    *(_sharing(role) if role in _SHARING_ROLES else _cannot_share(role) for role in Role),
    *(_sharded(role) for role in Role if role in FORWARD_ROLES),
    Rule(
        field="training.globalBatchSize",
        holds=lambda job: job.rollout.batch_size * job.rollout.samples_per_prompt % job.training.global_batch_size == 0,
        sentence="{training.globalBatchSize} does not divide rollout.batchSize x rollout.samplesPerPrompt "
        "({rollout.batchSize} x {rollout.samplesPerPrompt}). Give a divisor of that product.",
        cel="self.rollout.batchSize * self.rollout.samplesPerPrompt % self.training.globalBatchSize == 0",
    ),
    Rule(
        field="roles.rollout.engine.args",
        holds=lambda job: not _draws_with_min_p(job) or not _is_seeded(job),
        sentence="make samples a function of their seeds, and such a SGLang dies of a minP above 0 (rollout.sampling, "
        "or that of a set of evaluation). Remove minP, or --enable-deterministic-inference and --rl-on-policy-target.",
        cel="!(has(self.rollout.sampling) && has(self.rollout.sampling.minP) && self.rollout.sampling.minP > 0.0 || "
        "has(self.evaluation) && self.evaluation.sets.exists(each, has(each.sampling) && has(each.sampling.minP) && "
        "each.sampling.minP > 0.0)) || !has(self.roles) || !has(self.roles.rollout) || "
        "!has(self.roles.rollout.engine) || !has(self.roles.rollout.engine.args) || "
        f"!self.roles.rollout.engine.args.exists(arg, arg.matches('{_SEEDED}'))",
    ),
    Rule(
        field="roles.actor.backend",
        holds=_is_simulated_by_both,
        sentence="{roles.actor.backend} does not go with the kind of roles.rollout.engine: a policy is simulated by "
        "actor and engines, or by neither. Set backend and kind to Sim, or leave backend out.",
        cel=f"!has({_ACTOR}.backend) || ({_ACTOR}.backend == 'Sim') == {ENGINE_IS_SIM}",
    ),
    Rule(
        field="model.path",
        holds=lambda job: not _is_simulated(job) or job.model.path is None,
        sentence="{model.path} is not read by a simulated job, which has no weights of a model. Give model.config, and "
        "model.tokenizerPath for the tokenizer of a folder.",
        cel=f"!{ENGINE_IS_SIM} || !has(self.model.path)",
    ),
    Rule(
        field="simulation",
        holds=lambda job: job.simulation is None or _is_simulated(job),
        sentence="is for engines of kind Sim, and this job computes. Remove simulation or set "
        "roles.rollout.engine.kind to Sim.",
        cel=f"!has(self.simulation) || {ENGINE_IS_SIM}",
    ),
    Rule(
        field="training.packing",
        holds=lambda job: job.training.packing or job.backend_traits.pads,
        sentence="false needs the backend Fsdp, and this job has another, which always joins samples. Set "
        "roles.actor.backend to Fsdp or leave packing out.",
        cel=f"!has(self.training.packing) || self.training.packing || {_IS_FSDP}",
    ),
    Rule(
        field="training.activationCheckpointing",
        holds=lambda job: not job.training.activation_checkpointing or job.backend_traits.checkpoints_activations,
        sentence="true needs the backend Fsdp or Megatron, and this job has another, which keeps its activations. Set "
        "roles.actor.backend to one of them or leave activationCheckpointing out.",
        cel="!has(self.training.activationCheckpointing) || !self.training.activationCheckpointing || "
        f"{_IS_FSDP} || (has({_ACTOR}.backend) && {_ACTOR}.backend == 'Megatron')",
    ),
    Rule(
        field="evaluation",
        holds=lambda job: job.evaluation is None or not _is_simulated(job),
        sentence="needs engines that compute, and those of kind Sim answer nothing that could be scored. Remove "
        "evaluation, or set roles.rollout.engine.kind to Torch or SGLang.",
        cel=f"!has(self.evaluation) || !({ENGINE_IS_SIM})",
    ),
    Rule(
        field="evaluation",
        holds=lambda job: job.evaluation is None or job.rollout.function is None,
        sentence="answers in a single turn, and this job has a rollout.function that takes several. Remove evaluation "
        "or rollout.function.",
        cel="!has(self.evaluation) || !has(self.rollout.function)",
    ),
    Rule(
        field="evaluation.sets",
        holds=_sets_have_labels,
        sentence="have one without data.labelKey, and the reward of this job compares answers with labels. Give "
        "the key of the label, or rollout.reward.custom.",
        cel=f"!has(self.evaluation) || {_NEEDS_NO_LABELS} || "
        "self.evaluation.sets.all(each, has(each.data.reasoningGym) || "
        "(has(each.data.labelKey) ? each.data.labelKey != '' : "
        "has(self.data.labelKey) && self.data.labelKey != ''))",
    ),
    Rule(
        field="evaluation.sets",
        holds=_sets_have_templates,
        sentence="have one with data.applyChatTemplate true, which needs a tokenizer with a chat template, and that of "
        "model.config has none. Set it to false, or give model.tokenizerPath or data.chatTemplate.file.",
        cel="!has(self.evaluation) || has(self.model.path) || has(self.model.tokenizerPath) || "
        "self.evaluation.sets.all(each, "
        "!(has(each.data.applyChatTemplate) ? each.data.applyChatTemplate : self.data.applyChatTemplate) || "
        "(has(each.data.chatTemplate) && has(each.data.chatTemplate.file) ? each.data.chatTemplate.file != '' : "
        "has(self.data.chatTemplate) && has(self.data.chatTemplate.file)))",
    ),
    Rule(
        field="training.recomputeModules",
        holds=lambda job: job.training.recompute_modules is None or job.backend_traits.recomputes_parts,
        sentence="needs the backend Megatron, and this job has another, which computes whole layers again or nothing. "
        "Set roles.actor.backend to Megatron or leave recomputeModules out.",
        cel=f"!has(self.training.recomputeModules) || (has({_ACTOR}.backend) && {_ACTOR}.backend == 'Megatron')",
    ),
    Rule(
        field="training.recomputeModules",
        holds=lambda job: (
            job.model.config is None or RecomputedModule.MOE not in (job.training.recompute_modules or ())
        ),
        sentence="has Moe, and the layers of model.config have no experts. Give Mlp in its place.",
        cel="!has(self.training.recomputeModules) || !has(self.model.config) || "
        "!('Moe' in self.training.recomputeModules)",
    ),
    *RANKS,
    *CRITIC,
    *TEACHER,
    *LAYOUTS,
    *EXPERTS,
    *MEASURED,
    *DYNAMIC_SAMPLING,
    *CURRICULUM,
    *PARTIAL_ROLLOUTS,
    Rule(
        field="algorithm.proximal",
        holds=_has_no_idle_forward,
        sentence="{algorithm.proximal} leaves the log-probs of the role actorFwd, which is given, unread. Remove "
        "roles.actorFwd, or set proximal to Recompute.",
        cel="!has(self.algorithm.proximal) || self.algorithm.proximal == 'Recompute' || "
        f"!has(self.roles.{field_name(PROXIMAL_ROLE)})",
    ),
    Rule(
        field="algorithm.kl.coefficient",
        holds=lambda job: job.algorithm.kl.coefficient == 0 or job.roles.reference is not None,
        sentence="{algorithm.kl.coefficient} needs the role reference, which is absent. Add roles.reference (as {} "
        "for one replica) or set the coefficient to 0.",
        cel="self.algorithm.kl.coefficient == 0.0 || has(self.roles.reference)",
    ),
    Rule(
        field="training.refUpdateInterval",
        holds=lambda job: job.training.ref_update_interval is None or job.roles.reference is not None,
        sentence="{training.refUpdateInterval} needs the role reference, which is absent. Add roles.reference or "
        "remove refUpdateInterval.",
        cel="!has(self.training.refUpdateInterval) || has(self.roles.reference)",
    ),
    Rule(
        field="data.labelKey",
        holds=_answers_have_labels,
        sentence="null leaves the reward of this job, which compares answers with labels, without one. Give the key "
        "of the label, or rollout.reward.custom.",
        cel="has(self.rollout.function) || (has(self.data.labelKey) && self.data.labelKey != '') || "
        f"has(self.data.reasoningGym) || {_NEEDS_NO_LABELS}",
    ),
    Rule(
        field="data.applyChatTemplate",
        holds=lambda job: _has_template(job, job.data),
        sentence="true needs a tokenizer with a chat template, and that of model.config has none. Set it to false, or "
        "give model.tokenizerPath or data.chatTemplate.file.",
        cel="!self.data.applyChatTemplate || has(self.model.path) || has(self.model.tokenizerPath) || "
        "(has(self.data.chatTemplate) && has(self.data.chatTemplate.file))",
    ),
    Rule(
        field="rollout.samplesPerPrompt",
        holds=_samples_have_a_measure,
        sentence="{rollout.samplesPerPrompt} leaves algorithm.advantage {algorithm.advantage} no other sample of the "
        f"prompt to measure one against. Give at least 2, or set advantage to {', '.join(_OF_ONE_SAMPLE[:-1])} or "
        f"{_OF_ONE_SAMPLE[-1]}.",
        cel=f"self.rollout.samplesPerPrompt >= 2 || self.algorithm.advantage in {_OF_ONE_SAMPLE} || "
        "self.algorithm.advantage.contains(':')",
    ),
    Rule(
        field="algorithm.noVariance",
        holds=lambda job: job.algorithm.no_variance is NoVariance.KEEP or _has_groups(job),
        sentence="{algorithm.noVariance} leaves out every prompt whose samples have one reward, and with "
        "rollout.samplesPerPrompt 1 each has: nothing would be trained on. Set noVariance to Keep, or samplesPerPrompt "
        "to at least 2.",
        cel=f"!has(self.algorithm.noVariance) || self.algorithm.noVariance == 'Keep' || {_HAS_GROUPS}",
    ),
    Rule(
        field="rollout.dynamicSampling.filter",
        holds=lambda job: (
            job.rollout.dynamic_sampling is None
            or job.rollout.dynamic_sampling.filter != "NoVariance"
            or job.algorithm.advantage in WITHOUT_GROUPS  # a rule of its own says so
            or _has_groups(job)
        ),
        sentence="{rollout.dynamicSampling.filter} refuses every prompt whose samples have one reward, and with "
        "rollout.samplesPerPrompt 1 each has. Give a filter of yours, or samplesPerPrompt of at least 2.",
        cel="!has(self.rollout.dynamicSampling) || self.rollout.dynamicSampling.filter != 'NoVariance' || "
        f"self.algorithm.advantage in {list(WITHOUT_GROUPS)} || {_HAS_GROUPS}",
    ),
    Rule(
        field="rollout.function",
        holds=_function_leaves_greedy_answers,
        sentence="draws its answers itself, and algorithm.advantage {algorithm.advantage} needs a greedy one beside "
        "them, which the engine is asked for. Remove rollout.function, or choose another advantage, such as Rloo.",
        cel=f"!has(self.rollout.function) || !({_IS_GREEDY})",
    ),
    Rule(
        field="rollout.function.timeoutSeconds",
        holds=_function_ends_before_a_stall,
        sentence="{rollout.function.timeoutSeconds} is not below restartPolicy.stallTimeoutSeconds, so that a job "
        "whose tools take as long would be called a stalled one. Give less, or raise stallTimeoutSeconds.",
        cel="!has(self.rollout.function) || !has(self.rollout.function.timeoutSeconds) || "
        "self.rollout.function.timeoutSeconds < self.restartPolicy.stallTimeoutSeconds",
    ),
    Rule(
        field="rollout.reward.overlong.buffer",
        holds=_penalty_begins_within_an_answer,
        sentence="{rollout.reward.overlong.buffer} tokens are more than the longest response has, "
        "{rollout.sampling.maxNewTokens} (rollout.sampling.maxNewTokens). Give fewer.",
        cel="!has(self.rollout.reward) || !has(self.rollout.reward.overlong) || "
        "self.rollout.reward.overlong.buffer <= self.rollout.sampling.maxNewTokens",
    ),
    Rule(
        field="rollout.sampling.maxNewTokens",
        holds=_answers_fit_positions,
        sentence="{rollout.sampling.maxNewTokens} leaves no room for a prompt in model.config.maxPositionEmbeddings. "
        "Give less than maxPositionEmbeddings, or raise that.",
        cel="!has(self.model.config) || self.rollout.sampling.maxNewTokens < self.model.config.maxPositionEmbeddings",
    ),
)


class Mode(StrEnum):
    """How the roles share the hardware."""

    FULLY_ASYNC = "FullyAsync"


class CleanPodPolicy(StrEnum):
    """Which pods go when the job has ended."""

    ALL = "All"
    WORKERS = "Workers"
    NONE = "None"


class Tracker(StrEnum):
    """Where a run may be reported to: the name of the package, which is that of its extra, too."""

    WANDB = "wandb"
    TENSORBOARD = "tensorboard"
    TRACKIO = "trackio"


TRACKERS_WITH_KEYS = (Tracker.WANDB, Tracker.TRACKIO)
"""Trackers that may log in somewhere."""


class TrackerKeys(ApiModel):
    """Where a tracker's process gets its keys from."""

    secret_name: str = Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    """A Secret of the job's namespace. Each of its keys is an environment variable of the processes that feed wandb and
    trackio, and of nothing else: WANDB_API_KEY, WANDB_PROJECT, HF_TOKEN ..."""


class TelemetrySpec(ApiModel):
    """Records beside metrics and events."""

    sample_log: bool = False
    """A line of samples.jsonl per trained sample (the audit)."""
    generations_per_rollout: int = Field(default=8, ge=0, le=10000)
    """Samples of each trained rollout whose text is kept, for `rljob samples`: spread over those of the actor's first
    rank. 0: none."""
    report_to: list[Tracker] | None = Field(default=None, max_length=8)
    """Trackers that get metrics, events, samples and this spec, each fed by a process of its own that the job does not
    wait for. Each needs the extra of its name. Null: none."""
    keys_from: TrackerKeys | None = None
    """The Secret that those processes log in with. Null: they do not, and their files are on the checkpoint volume. On
    a cluster only."""


class RLJobSpec(RuledModel):
    """One disaggregated reinforcement-learning job."""

    rules = SPEC

    mode: Annotated[Mode, fixed("it decides which roles there are and what the queue holds.")] = Mode.FULLY_ASYNC
    """FullyAsync: every role has processes of its own and streams."""
    seed: Annotated[Seed, fixed("the samples of all rollouts so far are a function of it.")] = 0
    """Seed of sampling: a sample's seed is a function of (seed, rollout id, group, attempt, sample)."""
    model: Annotated[ModelSpec, fixed("checkpoints hold the weights of the model that it began with.")]
    """The policy."""
    data: Annotated[DataSpec, fixed("checkpoints and the queue count prompts in the data that it began with.")]
    """The prompts."""
    algorithm: Annotated[AlgorithmSpec, RESTARTS] = AlgorithmSpec()
    """Advantages and loss."""
    rollout: Annotated[RolloutSpec, RESTARTS]
    """Generation."""
    training: Annotated[TrainingSpec, RESTARTS]
    """Training."""
    roles: RolesSpec = RolesSpec()
    """The processes."""
    transfer_queue: Annotated[TransferQueueSpec, RESTARTS] = TransferQueueSpec()
    """The data plane."""
    weight_sync: Annotated[WeightSyncSpec, RESTARTS] = WeightSyncSpec()
    """How weights travel."""
    checkpoint: Annotated[CheckpointSpec, RESTARTS] = CheckpointSpec()
    """Saved for a restart."""
    restart_policy: Annotated[RestartPolicySpec, LIVE] = RestartPolicySpec()
    """Decides what a failure restarts."""
    evaluation: Annotated[EvaluationSpec | None, RESTARTS] = None
    """Sets of prompts that the job's engines answer beside training, and that are scored. Null: none."""
    stop_when: Annotated[StopWhenSpec | None, RESTARTS] = None
    """The job succeeds as soon as this holds, with a checkpoint of that version. Null: after its last rollout."""
    telemetry: Annotated[TelemetrySpec, RESTARTS] = TelemetrySpec()
    """Records beside metrics and events."""
    simulation: Annotated[SimulationSpec | None, RESTARTS] = None
    """How long a job whose engines are of kind Sim takes for what it does not compute. Null: no time."""
    scheduling: Annotated[SchedulingSpec, RESTARTS] = SchedulingSpec()
    """How the job's pods find their nodes."""
    infrastructure: Annotated[InfrastructureSpec, RESTARTS] = InfrastructureSpec()
    """Processes that belong to no role."""
    image: Annotated[str | None, RESTARTS] = Field(default=None, min_length=1, max_length=512)
    """Image of workers and coordinator; null means the operator's. On a cluster only."""
    suspend: Annotated[bool, LIVE] = False
    """true: what trains saves, then every pod goes; false again: the job goes on from there. On a cluster only."""
    restart_request: Annotated[RestartRequestSpec | None, LIVE] = None
    """A restart that you ask for, as `rljob restart` does. On a cluster only."""
    managed_by: Annotated[str | None, fixed("what the job is made of belongs to the controller that began it.")] = (
        Field(default=None, min_length=1, max_length=253)
    )
    """A controller other than this operator that takes care of the job; the operator then leaves it alone. On a cluster
    only."""
    active_deadline_seconds: Annotated[int | None, LIVE] = Field(default=None, ge=1, le=31_536_000)
    """The job fails when it has run for this long, suspended time left out; null: no limit. On a cluster only."""
    startup_deadline_seconds: Annotated[int | None, LIVE] = Field(default=None, ge=1, le=31_536_000)
    """The job fails, and gives back what it holds, when it has not been Ready for this long: since its start, since it
    was resumed, or since it was Ready last, as where a pod that was lost can be placed nowhere. Suspended time and
    restartPolicy.backoff are left out; replicas that join a job that runs are not waited for. Null: no limit."""
    ttl_seconds_after_finished: Annotated[int | None, LIVE] = Field(default=None, ge=0, le=31_536_000)
    """The job is deleted this long after it ended; null: never. On a cluster only."""
    clean_pod_policy: Annotated[CleanPodPolicy, LIVE] = CleanPodPolicy.ALL
    """Which pods go when the job has ended. All: every one. Workers: coordinator and Redis stay, to be asked. None: all
    stay, also those with GPUs. On a cluster only."""

    @property
    def backend_traits(self) -> BackendTraits:
        """Traits of the actor's backend."""
        return BACKENDS[self.trainer_backend]

    @property
    def trainer_backend(self) -> TrainerBackend:
        """The actor's backend: as given, else as the model wants it."""
        if self.roles.actor.backend is not None:
            return self.roles.actor.backend
        if _is_simulated(self):
            return TrainerBackend.SIM
        return TrainerBackend.FLAT if self.model.path is None else TrainerBackend.FSDP

    def backend_of(self, role: Role) -> TrainerBackend:
        """The backend of a role whose ranks hold a model: its own where it gives one, else the actor's."""
        given = self.roles.of(role)
        own = given.backend if isinstance(given, ModelRoleSpec) else None
        return self.trainer_backend if own is None else own

    def parallelism_of(self, role: Role) -> ParallelismSpec:
        """How the ranks of a role share a model; where it does not say, each has a whole one."""
        given = self.roles.of(role)
        own = given.parallelism if isinstance(given, ModelRoleSpec) else None
        return WHOLE if own is None else own

    @property
    def head_dtype(self) -> Dtype:
        """In which logits are computed, in training, by roles that compute log-probs, and by engines alike.

        Of a job whose defaults are resolved (`open_defaults`): with GPUs these give float32.
        """
        return self.model.dtype if self.model.head_dtype is None else self.model.head_dtype

    @property
    def samples_per_ticket(self) -> int:
        """Samples that an engine draws for a prompt: its group's, and the greedy one where the estimator needs it."""
        return self.rollout.samples_per_prompt + self.algorithm.advantage_traits.needs_greedy

    @property
    def has_one_optimizer_step(self) -> bool:
        """Whether each rollout is trained on in one step: its own forward pass then has the proximal log-probs."""
        rows = self.rollout.batch_size * self.rollout.samples_per_prompt
        return self.training.global_batch_size == rows and self.training.epochs_per_rollout == 1

    @property
    def has_teacher(self) -> bool:
        """Whether the role reference has a model of its own."""
        return self.roles.reference is not None and self.roles.reference.model_path is not None


JOB_NAME = "^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$"


LONGEST_JOB_NAME = 40


FORM_OF_NAME = "Give at most 40 lower-case letters, digits and '-', with a letter first and a letter or digit last."


class Metadata(ApiModel):
    """The part of Kubernetes' metadata that a manifest here needs."""

    name: Annotated[str, StringConstraints(pattern=JOB_NAME)]
    """At most 40 characters and a letter first, so that names made from it are names of Services, which may have 63."""
    namespace: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class RLJob(ApiModel):
    """The manifest."""

    api_version: str = Field(default="rljob.dev/v1alpha1", pattern=r"^rljob\.dev/v1alpha1$")
    kind: str = Field(default="RLJob", pattern="^RLJob$")
    metadata: Metadata
    spec: RLJobSpec
