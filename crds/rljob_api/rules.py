"""The cross-field rules of the spec: a table per model, each rule with its field, predicate, sentence and CEL twin.

Only `spec.py` imports this. Predicates see models that passed all rules on single fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rljob_api.backends import TrainerBackend, trainer_backend
from rljob_api.engine_rules import engine_kind
from rljob_api.names import Role
from rljob_api.role_traits import LEADING_ROLE, TRAITS, field_name
from rljob_api.rule import Derived, Rule
from rljob_api.tokenizer_size import NUM_BYTES, PRINTABLE_ASCII, SPECIAL_TOKENS, tokenizer_size
from rljob_api.topology import topology_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from rljob_api.spec import ModelConfig, RLJobSpec, RoleSpec


_SPECIAL = len(SPECIAL_TOKENS)


def _vocabulary_covers_tokenizer(model: ModelConfig) -> bool:
    return model.vocab_size is None or model.vocab_size >= tokenizer_size(model.tokenizer)


_ACTOR = f"self.roles.{field_name(LEADING_ROLE)}"
_NO_GPUS = "(has({0}.gpus) ? {0}.gpus : 0)"
"""The API server fills in no `gpus`: what is not given is resolved (`open_defaults`)."""
_ACTOR_GPUS = _NO_GPUS.format(_ACTOR)
# As `topology` has it.
_TRAINERS_PER_POD = f"(has({_ACTOR}.ranksPerPod) ? {_ACTOR}.ranksPerPod : ({_ACTOR_GPUS} > 1 ? {_ACTOR_GPUS} : 1))"
_TRAINERS = f"({_ACTOR}.replicas * {_TRAINERS_PER_POD})"
_TRAINERS_IN_WORDS = "{trainers} actor ranks ({roles.actor.replicas} replicas x {trainersPerPod} ranks per pod)"


def _num_trainers(job: RLJobSpec) -> int:
    """Data-parallel ranks."""
    return topology_of(job.roles, LEADING_ROLE).num_ranks


def _trainers_per_pod(job: RLJobSpec) -> int:
    return topology_of(job.roles, LEADING_ROLE).ranks_per_pod


_OF_TRAINERS = {
    "trainers": Derived(_num_trainers, _TRAINERS),
    "trainersPerPod": Derived(_trainers_per_pod, _TRAINERS_PER_POD),
}


_IS_FSDP = "(has(self.roles.actor.backend) ? self.roles.actor.backend == 'Fsdp' : has(self.model.path))"
_ENGINE_IS_SIM = (
    "(has(self.roles) && has(self.roles.rollout) && has(self.roles.rollout.engine) && "
    "has(self.roles.rollout.engine.kind) && self.roles.rollout.engine.kind == 'Sim')"
)


def _is_simulated(job: RLJobSpec) -> bool:
    return job.roles.rollout.engine.kind == "Sim"


def _is_simulated_by_both(job: RLJobSpec) -> bool:
    backend = job.roles.actor.backend
    return backend is None or (backend is TrainerBackend.SIM) == _is_simulated(job)


def _slices_reach_all_ranks(job: RLJobSpec) -> bool:
    slices = job.training.iters_per_train_update
    if job.training.global_batch_size % slices:
        return True  # a rule of its own says so
    return job.training.global_batch_size % (slices * _num_trainers(job)) == 0


def _groups_reach_all_ranks(job: RLJobSpec) -> bool:
    training = job.training
    shares = training.iters_per_train_update * _num_trainers(job)
    if training.claim_policy != "Group" or training.global_batch_size % shares:
        return True  # rules of their own say that rows do not reach all ranks
    return training.global_batch_size % (shares * job.rollout.samples_per_prompt) == 0


def _answers_have_labels(job: RLJobSpec) -> bool:
    scored_otherwise = job.data.reasoning_gym is not None or job.rollout.reward.custom is not None
    return scored_otherwise or job.data.label_key is not None


def _answers_fit_positions(job: RLJobSpec) -> bool:
    config = job.model.config
    return config is None or job.rollout.sampling.max_new_tokens < config.max_position_embeddings


TOKENIZER: tuple[Rule, ...] = (
    Rule(
        field="alphabet",
        holds=lambda tokenizer: tokenizer.kind == "Character" or tokenizer.alphabet is None,
        sentence="belongs to kind Character, but kind is {kind}. Remove alphabet or set kind to Character.",
        cel="self.kind == 'Character' || !has(self.alphabet)",
    ),
)

MODEL_CONFIG: tuple[Rule, ...] = (
    Rule(
        field="numKeyValueHeads",
        holds=lambda model: model.num_attention_heads % model.num_key_value_heads == 0,
        sentence="{numKeyValueHeads} does not divide numAttentionHeads {numAttentionHeads}. Give a divisor of it.",
        cel="self.numAttentionHeads % self.numKeyValueHeads == 0",
    ),
    Rule(
        field="vocabSize",
        holds=_vocabulary_covers_tokenizer,
        sentence="{vocabSize} is smaller than the tokenizer, which has one token for each character of its alphabet "
        f"(each byte with kind Byte) and {_SPECIAL} special ones. Leave vocabSize out or give at least that.",
        cel=f"!has(self.vocabSize) || self.vocabSize >= {_SPECIAL} + (self.tokenizer.kind == 'Byte' ? {NUM_BYTES} : "
        f"(has(self.tokenizer.alphabet) ? size(self.tokenizer.alphabet) : {len(PRINTABLE_ASCII)}))",
    ),
)

MODEL: tuple[Rule, ...] = (
    Rule(
        field="path",
        holds=lambda model: (model.path is None) != (model.config is None),
        sentence="exactly one of path and config must be given. Give path for a checkpoint folder, or config for "
        "random weights.",
        cel="has(self.path) != has(self.config)",
    ),
    Rule(
        field="headDtype",
        holds=lambda model: model.head_dtype != "bfloat16" or model.dtype == "bfloat16",
        sentence="bfloat16 is narrower than dtype float32, so that logits would be rounded for nothing. Leave "
        "headDtype out.",
        cel="!has(self.headDtype) || self.headDtype != 'bfloat16' || self.dtype == 'bfloat16'",
    ),
)

DATA: tuple[Rule, ...] = (
    Rule(
        field="prompts",
        holds=lambda data: (data.prompts is None) != (data.reasoning_gym is None),
        sentence="exactly one of prompts and reasoningGym must be given. Give prompts for a JSONL file, or "
        "reasoningGym for procedural tasks.",
        cel="has(self.prompts) != has(self.reasoningGym)",
    ),
)

REWARD: tuple[Rule, ...] = (
    Rule(
        field="custom",
        holds=lambda reward: (
            [reward.exact_match, reward.character_match, reward.custom].count(None) >= 2  # of three
        ),
        sentence="at most one of exactMatch, characterMatch and custom may be given. Keep one of them.",
        cel="[has(self.exactMatch), has(self.characterMatch), has(self.custom)].filter(given, given).size() <= 1",
    ),
)

REWARD_FAILURE: tuple[Rule, ...] = (
    Rule(
        field="score",
        holds=lambda policy: policy.score is None or policy.then == "Score",
        sentence="{score} belongs to then Score, but then is not Score. Set then to Score or remove score.",
        cel="!has(self.score) || (has(self.then) && self.then == 'Score')",
    ),
    Rule(
        field="score",
        holds=lambda policy: policy.score is not None or policy.then != "Score",
        sentence="is missing: then Score gives it to samples that could not be scored. Give a number, such as 0.",
        cel="has(self.score) || !has(self.then) || self.then != 'Score'",
    ),
)

OPTIMIZER: tuple[Rule, ...] = (
    Rule(
        field="minLearningRate",
        holds=lambda optimizer: optimizer.min_learning_rate <= optimizer.learning_rate,
        sentence="{minLearningRate} is above learningRate {learningRate}, from which the schedule comes down. Give at "
        "most learningRate.",
        cel="!has(self.minLearningRate) || self.minLearningRate <= self.learningRate",
    ),
    Rule(
        field="minLearningRate",
        holds=lambda optimizer: optimizer.min_learning_rate == 0 or optimizer.schedule != "Constant",
        sentence="{minLearningRate} is where a schedule ends, but schedule is Constant. Set schedule to Linear or "
        "Cosine, or leave minLearningRate out.",
        cel="!has(self.minLearningRate) || self.minLearningRate == 0.0 || "
        "(has(self.schedule) && self.schedule != 'Constant')",
    ),
)

TRAINING: tuple[Rule, ...] = (
    Rule(
        field="microBatchSize",
        holds=lambda training: (training.micro_batch_size, training.max_tokens_per_micro_batch) != (None, None),
        sentence="neither microBatchSize nor maxTokensPerMicroBatch bounds what a forward and backward pass takes. "
        "Give at least one of them.",
        cel="has(self.microBatchSize) || has(self.maxTokensPerMicroBatch)",
    ),
)

CHECKPOINT_VOLUME: tuple[Rule, ...] = (
    Rule(
        field="onDelete",
        holds=lambda volume: volume.claim_name is None or volume.on_delete is None,
        sentence="{onDelete} is for a claim that is made for the job, but claimName {claimName} is yours, and is never "
        "deleted. Remove one of the two.",
        cel="!has(self.claimName) || !has(self.onDelete)",
    ),
)

BACKOFF: tuple[Rule, ...] = (
    Rule(
        field="maxSeconds",
        holds=lambda backoff: backoff.max_seconds >= backoff.initial_seconds,
        sentence="{maxSeconds} is below initialSeconds {initialSeconds}. Give at least initialSeconds.",
        cel="self.maxSeconds >= self.initialSeconds",
    ),
)


def _keeps_default(role: Role) -> Rule:
    """The row of a role whose scope is fixed."""
    traits, field = TRAITS[role], field_name(role)
    scope = traits.scope
    return Rule(
        field=field,
        holds=lambda table: table.row(role) in (None, scope),
        sentence=f"{{{field}}} is not possible: {traits.fixed_because}, so a failed {field} restarts the job. "
        f"Give {scope} or leave the row out.",
        cel=f"!has(self.{field}) || self.{field} == '{scope}'",
    )


RESTART_TABLE: tuple[Rule, ...] = tuple(_keeps_default(role) for role in Role if TRAITS[role].fixed_because)

ROLE: tuple[Rule, ...] = (
    Rule(
        field="ranksPerPod",
        holds=lambda role: role.gpus == 0 or role.ranks_per_pod in (None, role.gpus),
        sentence="{ranksPerPod} is not the number of its GPUs, {gpus}, and each GPU has one rank. Leave ranksPerPod "
        "out, or set gpus to 0.",
        cel="!has(self.gpus) || self.gpus == 0 || !has(self.ranksPerPod) || self.ranksPerPod == self.gpus",
    ),
)

RESTART_POLICY: tuple[Rule, ...] = (
    Rule(
        field="stallTimeoutSeconds",
        holds=lambda policy: policy.stall_timeout_seconds > policy.heartbeat_timeout_seconds,
        sentence="{stallTimeoutSeconds} is not above heartbeatTimeoutSeconds {heartbeatTimeoutSeconds}, so that a rank "
        "that hangs would be called a stalled job. Give more than heartbeatTimeoutSeconds.",
        cel="self.stallTimeoutSeconds > self.heartbeatTimeoutSeconds",
    ),
    Rule(
        field="collectiveTimeoutSeconds",
        holds=lambda policy: (
            policy.collective_timeout_seconds is None
            or policy.collective_timeout_seconds > policy.heartbeat_timeout_seconds
        ),
        sentence="{collectiveTimeoutSeconds} is not above heartbeatTimeoutSeconds {heartbeatTimeoutSeconds}, so that "
        "those who wait for a rank that hangs would give up before it is called silent. Give more than "
        "heartbeatTimeoutSeconds, or leave it out.",
        cel="!has(self.collectiveTimeoutSeconds) || self.collectiveTimeoutSeconds > self.heartbeatTimeoutSeconds",
    ),
    Rule(
        field="collectiveTimeoutSeconds",
        holds=lambda policy: (
            policy.collective_timeout_seconds is None
            or policy.collective_timeout_seconds < policy.stall_timeout_seconds
        ),
        sentence="{collectiveTimeoutSeconds} is not below stallTimeoutSeconds {stallTimeoutSeconds}, so that a rank "
        "that does not come would be called a stalled job. Give less than stallTimeoutSeconds, or leave it out.",
        cel="!has(self.collectiveTimeoutSeconds) || self.collectiveTimeoutSeconds < self.stallTimeoutSeconds",
    ),
    Rule(
        field="coordinatorAbsenceSeconds",
        holds=lambda policy: (
            policy.coordinator_absence_seconds is None
            or policy.coordinator_absence_seconds < policy.stall_timeout_seconds
        ),
        sentence="{coordinatorAbsenceSeconds} is not below stallTimeoutSeconds {stallTimeoutSeconds}, so that a rank "
        "that waits for its coordinator would be called a stalled job. Give less than stallTimeoutSeconds, or leave it "
        "out.",
        cel="!has(self.coordinatorAbsenceSeconds) || self.coordinatorAbsenceSeconds < self.stallTimeoutSeconds",
    ),
    Rule(
        field="coordinatorAbsenceSeconds",
        holds=lambda policy: (
            None in (policy.coordinator_absence_seconds, policy.collective_timeout_seconds)
            or policy.coordinator_absence_seconds < policy.collective_timeout_seconds
        ),
        sentence="{coordinatorAbsenceSeconds} is not below collectiveTimeoutSeconds {collectiveTimeoutSeconds}, so "
        "that a rank that waits for its coordinator would be called one that hangs. Give less than "
        "collectiveTimeoutSeconds, or leave it out.",
        cel="!has(self.coordinatorAbsenceSeconds) || !has(self.collectiveTimeoutSeconds) || "
        "self.coordinatorAbsenceSeconds < self.collectiveTimeoutSeconds",
    ),
)

FAILURE_RULE: tuple[Rule, ...] = (
    Rule(
        field="exitCodes",
        holds=lambda rule: bool(rule.exit_codes) or bool(rule.pod_reasons),
        sentence="neither exitCodes nor podReasons says which failures the rule {name} is for. Give at least one.",
        cel="self.exitCodes.size() + self.podReasons.size() > 0",
    ),
)

_SHARING_ROLES = tuple(role for role in Role if TRAITS[role].loads_model and not TRAITS[role].leads)
"""Those whose work may lie beside the trainer's on one device."""


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
    gpus = _NO_GPUS.format(f"self.{field}")
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


SPEC: tuple[Rule, ...] = (
    *(_sharing(role) if role in _SHARING_ROLES else _cannot_share(role) for role in Role),
    Rule(
        field="training.globalBatchSize",
        holds=lambda job: job.rollout.batch_size * job.rollout.samples_per_prompt % job.training.global_batch_size == 0,
        sentence="{training.globalBatchSize} does not divide rollout.batchSize x rollout.samplesPerPrompt "
        "({rollout.batchSize} x {rollout.samplesPerPrompt}). Give a divisor of that product.",
        cel="self.rollout.batchSize * self.rollout.samplesPerPrompt % self.training.globalBatchSize == 0",
    ),
    Rule(
        field="rollout.sampling.stop",
        holds=lambda job: not job.rollout.sampling.stop or engine_kind(job.roles.rollout) == "SGLang",
        sentence="are texts, at which only engines of kind SGLang end a sample. Set roles.rollout.engine.kind to "
        "SGLang, or give tokens in stopTokenIds.",
        cel="!has(self.rollout.sampling) || !has(self.rollout.sampling.stop) || "
        "self.rollout.sampling.stop.size() == 0 || (has(self.roles) && has(self.roles.rollout) && "
        "(has(self.roles.rollout.engine) && has(self.roles.rollout.engine.kind) ? "
        "self.roles.rollout.engine.kind == 'SGLang' : "
        f"{_NO_GPUS.format('self.roles.rollout')} > 0))",
    ),
    Rule(
        field="roles.actor.backend",
        holds=_is_simulated_by_both,
        sentence="{roles.actor.backend} does not go with the kind of roles.rollout.engine: a policy is simulated by "
        "actor and engines, or by neither. Set backend and kind to Sim, or leave backend out.",
        cel=f"!has({_ACTOR}.backend) || ({_ACTOR}.backend == 'Sim') == {_ENGINE_IS_SIM}",
    ),
    Rule(
        field="model.path",
        holds=lambda job: not _is_simulated(job) or job.model.path is None,
        sentence="{model.path} is not read by a simulated job, which has no weights of a model. Give model.config, and "
        "model.tokenizerPath for the tokenizer of a folder.",
        cel=f"!{_ENGINE_IS_SIM} || !has(self.model.path)",
    ),
    Rule(
        field="simulation",
        holds=lambda job: job.simulation is None or _is_simulated(job),
        sentence="is for engines of kind Sim, and this job computes. Remove simulation or set "
        "roles.rollout.engine.kind to Sim.",
        cel=f"!has(self.simulation) || {_ENGINE_IS_SIM}",
    ),
    Rule(
        field="training.packing",
        holds=lambda job: job.training.packing or trainer_backend(job) is TrainerBackend.FSDP,
        sentence="false needs the backend Fsdp, and this job has another, which always joins samples. Set "
        "roles.actor.backend to Fsdp or leave packing out.",
        cel=f"!has(self.training.packing) || self.training.packing || {_IS_FSDP}",
    ),
    Rule(
        field="training.activationCheckpointing",
        holds=lambda job: not job.training.activation_checkpointing or trainer_backend(job) is TrainerBackend.FSDP,
        sentence="true needs the backend Fsdp, and this job has another, which keeps its activations. Set "
        "roles.actor.backend to Fsdp or leave activationCheckpointing out.",
        cel="!has(self.training.activationCheckpointing) || !self.training.activationCheckpointing || " + _IS_FSDP,
    ),
    Rule(
        field="training.itersPerTrainUpdate",
        holds=lambda job: job.training.global_batch_size % job.training.iters_per_train_update == 0,
        sentence="{training.itersPerTrainUpdate} does not divide training.globalBatchSize {training.globalBatchSize}. "
        "Give a divisor of it.",
        cel="self.training.globalBatchSize % self.training.itersPerTrainUpdate == 0",
    ),
    Rule(
        field="training.itersPerTrainUpdate",
        holds=_slices_reach_all_ranks,
        sentence="{training.itersPerTrainUpdate} slices of training.globalBatchSize {training.globalBatchSize} do not "
        f"go evenly to {_TRAINERS_IN_WORDS}. Give a divisor of globalBatchSize / ranks.",
        cel="self.training.globalBatchSize % self.training.itersPerTrainUpdate != 0 || "
        f"self.training.globalBatchSize % (self.training.itersPerTrainUpdate * {_TRAINERS}) == 0",
        derived=_OF_TRAINERS,
    ),
    Rule(
        field="training.claimPolicy",
        holds=_groups_reach_all_ranks,
        sentence="{training.claimPolicy} cannot give whole groups of {rollout.samplesPerPrompt} samples to "
        f"{_TRAINERS_IN_WORDS} in {{training.itersPerTrainUpdate}} slices of training.globalBatchSize "
        "{training.globalBatchSize}. Give a global batch that is a multiple of their product, or Balanced.",
        cel="self.training.claimPolicy != 'Group' || self.training.globalBatchSize % "
        f"(self.training.itersPerTrainUpdate * {_TRAINERS}) != 0 || self.training.globalBatchSize % "
        f"(self.training.itersPerTrainUpdate * {_TRAINERS} * self.rollout.samplesPerPrompt) == 0",
        derived=_OF_TRAINERS,
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
        cel="has(self.data.labelKey) || has(self.data.reasoningGym) || has(self.rollout.reward.custom)",
    ),
    Rule(
        field="data.applyChatTemplate",
        holds=lambda job: (
            not job.data.apply_chat_template or job.model.path is not None or job.model.tokenizer_path is not None
        ),
        sentence="true needs a tokenizer with a chat template, and that of model.config has none. Set it to false or "
        "give model.tokenizerPath.",
        cel="!self.data.applyChatTemplate || has(self.model.path) || has(self.model.tokenizerPath)",
    ),
    Rule(
        field="rollout.sampling.maxNewTokens",
        holds=_answers_fit_positions,
        sentence="{rollout.sampling.maxNewTokens} leaves no room for a prompt in model.config.maxPositionEmbeddings. "
        "Give less than maxPositionEmbeddings, or raise that.",
        cel="!has(self.model.config) || self.rollout.sampling.maxNewTokens < self.model.config.maxPositionEmbeddings",
    ),
)
