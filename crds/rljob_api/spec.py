"""The spec of an RLJob: every field that a user may write, with unit, bounds, default and meaning.

A field is here only when its behaviour is built. Cross-field rules stand once, in `rules.py`. Reads no file.
"""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, StringConstraints, field_validator

from rljob_api.autoscaling_spec import ROLLOUT_SCALE, AutoscalingSpec
from rljob_api.backends import TrainerBackend
from rljob_api.base import ApiModel
from rljob_api.engine_rules import ROLLOUT_ENGINE
from rljob_api.engine_spec import EngineSpec
from rljob_api.infrastructure_spec import InfrastructureSpec, ResourcesSpec
from rljob_api.names import Role, Scope
from rljob_api.quantity import Quantity
from rljob_api.rule import RuledModel
from rljob_api.rules import (
    BACKOFF,
    CHECKPOINT_VOLUME,
    DATA,
    FAILURE_RULE,
    MODEL,
    MODEL_CONFIG,
    OPTIMIZER,
    RESTART_POLICY,
    RESTART_TABLE,
    REWARD,
    REWARD_FAILURE,
    ROLE,
    SPEC,
    TOKENIZER,
    TRAINING,
)
from rljob_api.scheduling import SchedulingSpec
from rljob_api.simulation import SimulationSpec

MAX_SEED = (1 << 31) - 1

Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]

ImportPath = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$", max_length=256)
]
"""`package.module:attribute`. Loaded from installed packages or from `extensionPath`, never from data."""


class Mode(StrEnum):
    """How the roles share the hardware."""

    FULLY_ASYNC = "FullyAsync"


class Dtype(StrEnum):
    """The type of the weights in training and generation."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Architecture(StrEnum):
    """Hugging Face causal language models that can be built from a config."""

    QWEN3 = "Qwen3"
    LLAMA = "Llama"


class TokenizerKind(StrEnum):
    """Tokenizers that a model made from a config may have."""

    CHARACTER = "Character"
    BYTE = "Byte"


class TokenizerConfig(RuledModel):
    """The tokenizer of a model made from a config."""

    rules = TOKENIZER

    kind: TokenizerKind = TokenizerKind.CHARACTER
    """Character: one token per character of `alphabet`. Byte: one token per UTF-8 byte. Both add tokens for the end of
    a sequence and for padding."""
    alphabet: str | None = Field(default=None, min_length=1, max_length=1024)
    """The characters of a Character tokenizer, each once; null means printable ASCII and the newline."""

    @field_validator("alphabet")
    @classmethod
    def _each_character_once(cls, alphabet: str | None) -> str | None:
        twice = next((char for index, char in enumerate(alphabet or "") if char in (alphabet or "")[:index]), None)
        if twice is not None:  # stays in Python: CEL on Kubernetes cannot count characters within its budget
            raise ValueError(f"the character {twice!r} is in it twice. Write each once.")
        return alphabet


class ModelConfig(RuledModel):
    """A model with random weights; version 0 is materialised once from `seed`."""

    rules = MODEL_CONFIG

    architecture: Architecture = Architecture.QWEN3
    """Family of the model."""
    hidden_size: int = Field(default=64, ge=8, le=65536)
    """Width of the residual stream."""
    intermediate_size: int = Field(default=128, ge=8, le=262144)
    """Width of the feed-forward layers."""
    num_layers: int = Field(default=2, ge=1, le=256)
    """Transformer blocks."""
    num_attention_heads: int = Field(default=4, ge=1, le=256)
    """Query heads of each block."""
    num_key_value_heads: int = Field(default=2, ge=1, le=256)
    """Key and value heads of each block; divides numAttentionHeads."""
    head_dim: int = Field(default=16, ge=4, le=512, multiple_of=2)
    """Width of one head; even, since rotary embeddings turn pairs."""
    max_position_embeddings: int = Field(default=1024, ge=8, le=1048576)
    """Longest sequence, prompt and response together, in tokens."""
    tie_word_embeddings: bool = True
    """Whether input and output embeddings share their weights."""
    initializer_range: float = Field(default=0.02, gt=0, le=1)
    """Standard deviation of the initial weights."""
    vocab_size: int | None = Field(default=None, ge=2, le=1048576)
    """Rows of the embedding; null means as many as the tokenizer has tokens. Must not be smaller than that."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """The tokenizer that is built along with the model."""
    seed: Seed = 0
    """Seed of the random weights."""


class ModelSpec(RuledModel):
    """Exactly one of `path` and `config`."""

    rules = MODEL

    path: str | None = Field(default=None, min_length=1, max_length=4096)
    """A Hugging Face checkpoint folder (config.json, safetensors, tokenizer)."""
    config: ModelConfig | None = None
    """A model with random weights."""
    tokenizer_path: str | None = Field(default=None, min_length=1, max_length=4096)
    """A folder with a tokenizer; null means the one in `path` or that of `config`."""
    dtype: Dtype = Dtype.FLOAT32
    """Type of the weights in training and generation."""
    head_dtype: Dtype | None = None
    """Type in which logits are summed up and given, in training, in actorFwd and reference, and in the engine (SGLang
    gets --enable-fp32-lm-head). In bfloat16 log-probs of the same hidden states are off by hundredths, in float32 they
    are not. Null: float32 where the actor or the rollout has gpus when the job begins, else what dtype is."""


class ReasoningGymSpec(ApiModel):
    """Procedural tasks of the reasoning_gym package; their own `score_answer` is the reward."""

    dataset: str = Field(min_length=1, max_length=128)
    """Name of the dataset, e.g. `letter_counting`."""
    parameters: dict[str, Any] = {}
    """Keyword arguments of the dataset's config, in its own spelling, e.g. {max_n: 1000}."""
    size: int = Field(default=10000, ge=1, le=10_000_000)
    """How many tasks there are before they repeat."""
    seed: Seed = 0
    """Seed of the tasks."""


class DataSpec(RuledModel):
    """Exactly one of `prompts` and `reasoningGym`."""

    rules = DATA

    prompts: str | None = Field(default=None, min_length=1, max_length=4096)
    """A JSONL file, one prompt a line. A relative path is relative to the manifest."""
    prompt_key: str = Field(default="prompt", min_length=1, max_length=256)
    """Key of the prompt: a string, or a list of chat messages (needs a chat template)."""
    label_key: str | None = Field(default="label", min_length=1, max_length=256)
    """Key of the label handed to the reward; null means that there is none."""
    reasoning_gym: ReasoningGymSpec | None = None
    """Tasks made by a procedure instead of a file."""
    shuffle_seed: Seed | None = 0
    """Seed of the order, new in every pass over the data; null keeps the order of the file."""
    apply_chat_template: bool = False
    """Wrap string prompts as one user message of the tokenizer's chat template."""


class Advantage(StrEnum):
    """How rewards become advantages."""

    GRPO = "Grpo"


class ClipSpec(ApiModel):
    """PPO clipping of the policy ratio to [1 - low, 1 + high]."""

    low: float = Field(default=0.2, gt=0, lt=1)
    """Distance of the lower bound from 1."""
    high: float = Field(default=0.28, gt=0, le=10)
    """Distance of the upper bound from 1 (larger than `low`: clip-higher)."""


class KlEstimator(StrEnum):
    """Estimators of KL(policy || reference), Schulman 2020."""

    K1 = "K1"
    K2 = "K2"
    K3 = "K3"


class KlSpec(ApiModel):
    """KL term in the loss. A coefficient above 0 needs the reference role."""

    coefficient: float = Field(default=0.0, ge=0, le=100)
    """Weight of the term; 0 leaves it out."""
    estimator: KlEstimator = KlEstimator.K3
    """K1: log ratio. K2: half its square. K3: unbiased and never negative."""


class Correction(StrEnum):
    """What is done about rollout log-probs that differ from the trainer's."""

    NONE = "None"
    TIS = "Tis"


class CorrectionSpec(ApiModel):
    """Importance correction for stale or mismatched log-probs (TIS: weights capped at `cap`)."""

    kind: Correction = Correction.TIS
    """Tis: truncated importance sampling. None: rollout log-probs are not looked at."""
    cap: float = Field(default=2.0, gt=0, le=1000)
    """Largest importance weight of a token."""


class LossAggregation(StrEnum):
    """Over what the loss is averaged: all tokens of the global batch, or samples of token means."""

    TOKEN_MEAN = "TokenMean"  # noqa: S105 - a token of text, not a secret
    SEQUENCE_MEAN = "SequenceMean"


class Truncated(StrEnum):
    """What is learnt from samples that were cut off at the longest response."""

    KEEP = "Keep"
    MASK = "Mask"


class AlgorithmSpec(ApiModel):
    """A policy gradient over groups of samples."""

    advantage: Advantage = Advantage.GRPO
    """Grpo: (reward - mean of its group) / standard deviation of its group."""
    clip: ClipSpec = ClipSpec()
    """How far the policy may move in one step."""
    kl: KlSpec = KlSpec()
    """Pull towards the reference model."""
    correction: CorrectionSpec = CorrectionSpec()
    """What is done about samples that the trained policy did not make."""
    loss_aggregation: LossAggregation = LossAggregation.TOKEN_MEAN
    """Over what the loss is averaged."""
    truncated: Truncated = Truncated.KEEP
    """Samples that were cut off at maxNewTokens or at the model's last position. Keep: they are trained on like others.
    Mask: the loss leaves them out (overlong filtering, DAPO), while their rewards still count in mean and standard
    deviation of their group."""


class SamplingSpec(ApiModel):
    """Sampling parameters of the engine."""

    temperature: float = Field(default=1.0, gt=0, le=10)
    """Divides the logits, also where log-probs are computed."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Draw from the smallest set of tokens with at least this probability; 1 means all."""
    top_k: int = Field(default=0, ge=0, le=1048576)
    """Draw from this many most likely tokens; 0 means all."""
    max_new_tokens: int = Field(default=64, ge=1, le=1048576)
    """Longest response, in tokens, its end-of-sequence token included."""
    stop_token_ids: list[Annotated[int, Field(ge=0, le=1048576)]] = Field(default=[], max_length=64)
    """Tokens that end a sample, beside the tokenizer's end-of-sequence token."""
    stop: list[Annotated[str, Field(min_length=1, max_length=256)]] = Field(default=[], max_length=16)
    """Texts that end a sample, which has the tokens of the text as well. For engines of kind SGLang."""


class ExactMatchSpec(ApiModel):
    """Reward 1.0 when the answer equals the label, else 0.0; both stripped of white space."""


class CharacterMatchSpec(ApiModel):
    """Reward: the share of places where answer and label have the same character, of the longer one's length."""


class RewardFunctionSpec(ApiModel):
    """A user's reward: a function of the protocol `rljob_workers.rewards.base.RewardFunction`."""

    function: ImportPath
    """`package.module:function`."""
    path: str | None = Field(default=None, min_length=1, max_length=4096)
    """A folder that is searched first for the module; relative to the manifest."""
    timeout_seconds: int = Field(default=60, ge=1, le=86400)
    """Longest time for the samples of one prompt."""


class FailedReward(StrEnum):
    """What a sample gets that could not be scored."""

    INVALID = "Invalid"
    SCORE = "Score"


class RewardFailureSpec(RuledModel):
    """What becomes of samples whose reward raises, hangs, or returns None for them."""

    rules = REWARD_FAILURE

    retries: int = Field(default=3, ge=0, le=100)
    """Further calls for the samples of a prompt, before they count as failed. All of them together, each as long as
    custom.timeoutSeconds and its pause, should end before restartPolicy.stallTimeoutSeconds."""
    backoff_seconds: float = Field(default=1.0, ge=0, le=3600)
    """Pause before the first retry; twice as long before each further one."""
    then: FailedReward = FailedReward.INVALID
    """Invalid: nothing is learnt from the sample, and it counts nowhere; a prompt with fewer than two others is drawn
    anew. Score: it gets `score`, like an answer that earned it."""
    score: float | None = Field(default=None, ge=-1e9, le=1e9)
    """With `then: Score`."""


class RewardSpec(RuledModel):
    """At most one of exactMatch, characterMatch and custom.

    None of them: exact match for `prompts`, `score_answer` for `reasoningGym`.
    """

    rules = REWARD

    exact_match: ExactMatchSpec | None = None
    """The answer must equal the label."""
    character_match: CharacterMatchSpec | None = None
    """Partial credit, character by character: a model with random weights finds its way from nothing."""
    custom: RewardFunctionSpec | None = None
    """A function of yours."""
    on_failure: RewardFailureSpec = RewardFailureSpec()
    """What becomes of a sample that cannot be scored; no role is restarted for it. Those that come with the product
    never fail."""
    max_failed_share: float = Field(default=0.1, ge=0, le=1)
    """More failed samples than this share, after their retries, among the last batchSize x samplesPerPrompt (at least
    256) of one rollout rank fail the job. 1: never."""


class RolloutSpec(ApiModel):
    """What one rollout is and how far generation may run ahead of training."""

    num_rollouts: int = Field(ge=1, le=10_000_000)
    """The job succeeds after training on this many."""
    batch_size: int = Field(ge=1, le=1_000_000)
    """Prompts of one rollout."""
    samples_per_prompt: int = Field(ge=2, le=4096)
    """Samples of one prompt: the group that their advantages are relative to."""
    max_staleness: int = Field(default=1, ge=0, le=64)
    """Largest r - v for a row of train_r and any weight version v that made a token of it. 0: strictly on-policy."""
    sampling: SamplingSpec = SamplingSpec()
    """How tokens are drawn."""
    concurrency: int | None = Field(default=None, ge=1, le=65536)
    """Samples that are in flight at each engine: a prompt is begun while there are fewer, and begun with all of its
    samples. Null: as many as the server runs at once. An engine never has more than its share of the rollouts that may
    be open, batchSize x (1 + maxStaleness) / engines prompts."""
    reward: RewardSpec = RewardSpec()
    """How samples are scored."""
    max_prompt_tokens: int | None = Field(default=None, ge=1, le=1048576)
    """Longer prompts are passed over, and counted: another is drawn in their place. Null: those that leave no room for
    a response in the model."""
    max_prompt_kills: int = Field(default=3, ge=1, le=100)
    """A prompt that was alone in work when its worker died this often is set aside and another is drawn."""
    max_attempts: int = Field(default=8, ge=1, le=1000)
    """Draws for one group before the job fails with a name."""


class Schedule(StrEnum):
    """What becomes of the learning rate after the warm-up, until the last optimizer step of the job."""

    CONSTANT = "Constant"
    LINEAR = "Linear"
    COSINE = "Cosine"


class OptimizerSpec(RuledModel):
    """AdamW."""

    rules = OPTIMIZER

    learning_rate: float = Field(default=1e-6, gt=0, le=1)
    """After the warm-up."""
    schedule: Schedule = Schedule.CONSTANT
    """Constant: learningRate from then on. Linear, Cosine: down to minLearningRate, which the step after the job's last
    one would have: another rollout.numRollouts changes the course."""
    min_learning_rate: float = Field(default=0.0, ge=0, le=1)
    """Where Linear and Cosine end."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the mean of gradients."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """Decay of the mean of squared gradients."""
    epsilon: float = Field(default=1e-8, gt=0, le=1)
    """Added to the root of the mean of squared gradients."""
    weight_decay: float = Field(default=0.0, ge=0, le=10)
    """Decoupled from the gradient; applied to weight matrices."""
    max_grad_norm: float = Field(default=1.0, ge=0, le=1e9)
    """Largest norm of the gradient of all parameters; 0 turns clipping off."""
    warmup_steps: int = Field(default=0, ge=0, le=10_000_000)
    """Optimizer steps of linear warm-up."""


class ClaimPolicy(StrEnum):
    """Which rows a consumer gets. Fifo: as they became ready. Group: whole prompt groups.

    Balanced: a batch is dealt so that the token sums of its data-parallel ranks come out near each other, with as many
    rows each. For training, where Group does the same with whole groups: a forward rank that is faster asks again.
    """

    FIFO = "Fifo"
    GROUP = "Group"
    BALANCED = "Balanced"


class TrainingSpec(RuledModel):
    """How a rollout is trained on."""

    rules = TRAINING

    global_batch_size: int = Field(ge=1, le=1_000_000_000)
    """Samples of one optimizer step, over all data-parallel ranks; divides batchSize x samplesPerPrompt."""
    micro_batch_size: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """Samples of one forward and backward pass on one rank, at most; null: only maxTokensPerMicroBatch bounds it."""
    max_tokens_per_micro_batch: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """Tokens of one forward and backward pass on one rank, prompts and responses, at most; null: only microBatchSize
    bounds it. A sample that is longer goes alone."""
    iters_per_train_update: int = Field(default=1, ge=1, le=1_000_000)
    """A global batch is fetched in this many slices, so that training starts before it is complete."""
    packing: bool = True
    """Whether the samples of a micro-batch are joined without padding. The backend Fsdp does so for families of models
    that are known to come out right; others run with false: each sample padded to the longest. Flat always joins."""
    activation_checkpointing: bool | None = None
    """Whether a layer's activations are computed again in the backward pass instead of being kept, which a large model
    needs and which costs about a third more time. Null: with the backend Fsdp. Flat keeps them."""
    claim_policy: ClaimPolicy = ClaimPolicy.BALANCED
    """How a slice is dealt to the actor's replicas. Balanced: token sums as near as can be found. Group: whole prompt
    groups, which share their prompt's forward pass. Fifo: as the rows came."""
    epochs_per_rollout: int = Field(default=1, ge=1, le=64)
    """Passes over one rollout."""
    optimizer: OptimizerSpec = OptimizerSpec()
    """AdamW and its learning rate."""
    max_skipped_steps: int = Field(default=3, ge=0, le=1_000_000)
    """Optimizer steps in a row that may be skipped because their loss or gradient is not finite, before the job
    fails."""
    ref_update_interval: int | None = Field(default=None, ge=1, le=10_000_000)
    """k: train_r is measured against version floor(r / k) * k. Null: always version 0."""


ResourceName = Annotated[
    str,
    StringConstraints(
        pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$", max_length=317
    ),
]
"""An extended resource of Kubernetes: a domain, `/` and a name."""


class DeviceOwner(StrEnum):
    """Whose devices a role may use too."""

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
    gpu_resource: ResourceName = "nvidia.com/gpu"
    """The resource that `gpus` counts, e.g. amd.com/gpu or nvidia.com/mig-1g.10gb. On a cluster only."""
    share_devices_with: DeviceOwner | None = None
    """actor: the pods of this role use the actor's devices and need none of their own. For rollout, actorFwd and
    reference, on one machine only; each must leave the others memory."""
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
    def first_replicas(self) -> int:
        """Pods that a job begins with."""
        return self.replicas

    @property
    def most_replicas(self) -> int:
        """Pods that there may be."""
        return self.replicas


class ActorSpec(RoleSpec):
    """Size and shape of the actor, and what computes its model."""

    backend: TrainerBackend | None = None
    """Fsdp: models of transformers, sharded over the actor's ranks. Flat: a decoder of our own (Qwen3 and Llama), whole
    on every rank; the fastest for tiny models. Sim: nothing is computed, as with engines of kind Sim, which it goes
    with. Null: Sim beside such engines, else Fsdp for model.path and Flat for model.config. The roles that compute
    log-probs have the same."""


class RolloutRoleSpec(RoleSpec):
    """Size and shape of the rollouts, and what generates in them."""

    rules = (*ROLLOUT_ENGINE, *ROLLOUT_SCALE)

    engine: EngineSpec = EngineSpec()
    """The inference server behind each rank."""
    autoscaling: AutoscalingSpec | None = None
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
    """Roles of the job. `reference` may be absent (null) when no KL term needs it, and `actorFwd` always."""

    actor: ActorSpec = ActorSpec()
    """Trains the policy and publishes weights; its ranks are data-parallel."""
    rollout: RolloutRoleSpec = RolloutRoleSpec()
    """Generates samples and scores them; each rank has an engine of its own."""
    actor_fwd: RoleSpec | None = RoleSpec()
    """Log-probs under the policy just before training. Null: there is no such role, and the actor makes them itself.
    With one optimizer step per rollout that costs nothing, and null is the default; with several the actor computes
    them before the first, so that a rollout must be complete before it is trained on. So {} is the default then, but on
    a cluster null where the actor has gpus. What a job began with stays."""
    reference: RoleSpec | None = None
    """Log-probs under the reference model; null means that there is no such role. With KL coefficient 0 it serves rows
    as it comes to them, and nobody waits for it."""
    advantages: RoleSpec = RoleSpec()
    """Advantages from rewards."""

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


class Waiting(StrEnum):
    """How a consumer waits for rows: told by the queue, or by asking again."""

    NOTIFY = "Notify"
    POLL = "Poll"


class PersistenceKind(StrEnum):
    """Where the control Redis keeps its append-only file."""

    CLAIM = "Claim"
    EMPTY_DIR = "EmptyDir"


class PersistenceSpec(ApiModel):
    """The control Redis's volume. On a cluster only."""

    kind: PersistenceKind = PersistenceKind.CLAIM
    """Claim: a persistent volume, so that a lost pod loses nothing. EmptyDir: gone with the pod, and then the job goes
    back to its last checkpoint."""
    size: Quantity = "1Gi"
    """Size of the claim."""
    storage_class_name: str | None = Field(default=None, min_length=1, max_length=253)
    """Class of the claim; null means the cluster's default."""


class RedisSpec(ApiModel):
    """The Redis pods of a job. On a cluster only."""

    image: str | None = Field(default=None, min_length=1, max_length=512)
    """Image with redis-server; null means the operator's."""
    persistence: PersistenceSpec = PersistenceSpec()
    """Where control state is kept."""
    resources: ResourcesSpec = ResourcesSpec()
    """CPU and memory of each storage unit; memory above storageBytes is added where it is not given."""


class TransferQueueSpec(ApiModel):
    """Columns of samples in Redis, streamed between roles."""

    storage_units: int = Field(default=2, ge=1, le=64)
    """Redis servers that hold the columns (one more holds the control state)."""
    polling_mode: Waiting = Waiting.NOTIFY
    """How consumers wait for rows."""
    storage_bytes: int = Field(default=1 << 30, ge=1 << 24, le=1 << 44)
    """Memory limit of one storage unit, in bytes."""
    checksums: bool = False
    """true: a checksum of all bytes is stored and checked with each read; small reads then read more than they need."""
    redis: RedisSpec = RedisSpec()
    """The Redis pods."""


class WeightBackend(StrEnum):
    """How weights travel from the trainer to the receivers."""

    HOST_STAGED = "HostStaged"


class Interruption(StrEnum):
    """What happens to running generations when weights change."""

    RETRACT = "Retract"
    IN_PLACE = "InPlace"
    DRAIN = "Drain"


class WeightVerification(StrEnum):
    """How it is shown that an engine has the weights that it says it has."""

    PROBE = "Probe"
    NONE = "None"


class WeightSyncSpec(ApiModel):
    """The way of a weight version from the trainer to its receivers."""

    backend: WeightBackend = WeightBackend.HOST_STAGED
    """HostStaged: a copy in host memory is served over TCP while training goes on."""
    interruption: Interruption = Interruption.RETRACT
    """What becomes of samples that run when new weights come. Retract: their tokens are kept, and their KV cache is
    computed anew, so that later tokens are wholly the new policy's. InPlace: tokens and KV cache are kept, which costs
    nothing; later tokens, told as the new version's, were computed with the old one's keys and values of those before
    them. Drain: they run to their ends first, each under one version, while the engine empties. A sample's staleness
    counts from the oldest version of its tokens in all three."""
    chunk_bytes: int = Field(default=4 << 20, ge=1 << 12, le=1 << 30)
    """Weights travel in checksummed chunks of this size, in bytes."""
    timeout_seconds: int = Field(default=300, ge=1, le=86400)
    """Longest time for one version to reach a receiver."""
    verify: WeightVerification | None = None
    """Probe: after each update the engine scores 64 fixed tokens, and its log-probs must be those that the trainer has
    published with the version; until then nothing that it made under that version counts. None: what it says is
    believed. Null: Probe, where the engine can tell log-probs of given tokens."""


class AccessMode(StrEnum):
    """How many nodes may mount a volume."""

    READ_WRITE_ONCE = "ReadWriteOnce"
    READ_WRITE_MANY = "ReadWriteMany"


class OnDelete(StrEnum):
    """What becomes of the claim that was made for a job when the job is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class CheckpointVolumeSpec(RuledModel):
    """The volume of the checkpoints. On a cluster only."""

    rules = CHECKPOINT_VOLUME

    claim_name: str | None = Field(default=None, min_length=1, max_length=253)
    """A claim of yours, which is never deleted; null makes one named `NAME-checkpoints`."""
    size: Quantity = "10Gi"
    """Size of the claim that is made. A larger one expands it, where its class has allowVolumeExpansion."""
    on_delete: OnDelete | None = None
    """What becomes of the claim that was made when the job goes, by its time to live or by hand. Retain: it stays with
    its files; a later job of this name that differs in nothing that is fixed trains on from its last checkpoint.
    Delete: it goes, too. Null: Retain, but a claim that release 0.1.0 made goes with its job."""
    storage_class_name: str | None = Field(default=None, min_length=1, max_length=253)
    """Class of the claim that is made; null means the cluster's default."""
    access_mode: AccessMode = AccessMode.READ_WRITE_ONCE
    """ReadWriteMany: storage shared by all nodes. ReadWriteOnce: actor and coordinator share a node, and a lost node
    takes the job down until its volume can be mounted elsewhere (never, where it is the node's own disk)."""


class CheckpointSpec(ApiModel):
    """Checkpoints: policy, optimizer, random state, data cursor."""

    path: str | None = Field(default=None, min_length=1, max_length=4096)
    """Folder; null means `checkpoints` in the run folder. Relative to the run folder."""
    every_steps: int | None = Field(default=None, ge=1, le=10_000_000)
    """A checkpoint after every so many trained rollouts (and at the end). Null: as many as fit the model, one for every
    6 GB of a checkpoint, whose parameters take 12 bytes each in float32 and 14 in bfloat16, and at most 50. So 1 up to
    400 million parameters, 10 for 4 billion."""
    keep: int = Field(default=2, ge=1, le=1000)
    """Newest recorded checkpoints that are kept."""
    keep_every: int | None = Field(default=None, ge=1, le=10_000_000)
    """Versions that are multiples of this are saved, whatever everySteps says, and kept for ever beside the newest.
    Null: none."""
    volume: CheckpointVolumeSpec = CheckpointVolumeSpec()
    """Where the run folder of actor and coordinator lies on a cluster."""


class BackoffSpec(RuledModel):
    """Delay before the n-th global restart: initialSeconds * factor^(n-1), at most maxSeconds.

    n falls back to 1 once a step was recorded after the last restart.
    """

    rules = BACKOFF

    initial_seconds: float = Field(default=0.0, ge=0, le=86400)
    """Delay before the first; 0 means none at all."""
    factor: float = Field(default=2.0, ge=1, le=10)
    """Growth from one to the next."""
    max_seconds: float = Field(default=60.0, ge=0, le=86400)
    """Longest delay."""


class RestartTableSpec(RuledModel):
    """Overrides of single rows of the restart table; null keeps the default. Actor takes only Global."""

    rules = RESTART_TABLE

    actor: Scope | None = None
    """Default Global, and nothing else."""
    rollout: Scope | None = None
    """Default Global."""
    actor_fwd: Scope | None = None
    """Default Global."""
    reference: Scope | None = None
    """Default InPlace."""
    advantages: Scope | None = None
    """Default InPlace."""

    def row(self, role: Role) -> Scope | None:
        """The override for `role`, or None."""
        return getattr(self, role.value)  # type: ignore[no-any-return]


class Mechanism(StrEnum):
    """How a restart is carried out."""

    PROCESS = "Process"
    RECREATE = "Recreate"


class RuleAction(StrEnum):
    """What a failure that a rule matches leads to."""

    COUNT = "Count"
    IGNORE = "Ignore"
    FAIL_JOB = "FailJob"


class FailureRuleSpec(RuledModel):
    """A rule for failures; the first that matches applies. At least one of exitCodes and podReasons."""

    rules = FAILURE_RULE

    name: str = Field(min_length=1, max_length=63)
    """Named in events."""
    role: Role | None = None
    """Failures of this role only; null means of any."""
    exit_codes: list[Annotated[int, Field(ge=-64, le=255)]] = Field(default=[], max_length=64)
    """Exit codes of a rank or container; -N for signal N."""
    pod_reasons: list[Annotated[str, StringConstraints(min_length=1, max_length=128)]] = Field(
        default=[], max_length=32
    )
    """Why the platform ended a pod, e.g. Evicted, PreemptionByScheduler, NodeLost, OOMKilled."""
    action: RuleAction
    """Count: towards maxGlobalRestarts and threshold. Ignore: restarted, not counted. FailJob: the job fails."""


class RestartPolicySpec(RuledModel):
    """What is restarted when something fails."""

    rules = RESTART_POLICY

    table: RestartTableSpec = RestartTableSpec()
    """What the failure of a role restarts: Global, the whole job; InPlace, its pod alone."""
    threshold: int = Field(default=3, ge=1, le=1000)
    """The threshold-th failure of one role since the last global restart is global."""
    window_seconds: int | None = Field(default=None, ge=1, le=31_536_000)
    """Failures older than this are forgotten; null: never."""
    max_global_restarts: int = Field(default=10, ge=0, le=100000)
    """One more than this fails the job."""
    backoff: BackoffSpec = BackoffSpec()
    """Delay before a global restart."""
    heartbeat_timeout_seconds: int = Field(default=30, ge=1, le=86400)
    """A rank whose main loop has not beaten for this long (and is not busy by its own word) hangs."""
    stall_timeout_seconds: int = Field(default=600, ge=2, le=604800)
    """A job that comes no step forward for this long is Stalled and restarted: no step is trained, no token made on the
    way to one, no row put. A long answer that still grows is never given up; an engine that has requests and makes no
    token is, with its requests, midway between heartbeatTimeoutSeconds and this."""
    collective_timeout_seconds: int | None = Field(default=None, ge=1, le=604800)
    """Ranks of the actor that have waited for this long for one of them break up their group, and name it. Null: midway
    between heartbeatTimeoutSeconds and stallTimeoutSeconds."""
    rendezvous_timeout_seconds: int = Field(default=120, ge=1, le=86400)
    """For the actor's ranks to find each other, from when all of their pods are there; then who is missing is named."""
    coordinator_absence_seconds: int | None = Field(default=None, ge=1, le=86400)
    """A rank that has not reached its coordinator for this long leaves, and begins anew when it can be reached: that
    restarts the job and is not counted, if its launcher could not reach it either. Pods that run and are silent as a
    whole are replaced after as long. Null: half of collectiveTimeoutSeconds, but 60 where that would be less."""
    mechanism: Mechanism = Mechanism.PROCESS
    """Process: ranks are forked anew in their pods; a pod that does not answer, or whose node is gone, is replaced.
    Recreate: every pod that is to be restarted is replaced."""
    failure_rules: list[FailureRuleSpec] = Field(default=[], max_length=64)
    """What single kinds of failure lead to, before the table is asked. Without a rule, pods that were evicted,
    preempted, deleted or lost with their node are restarted and not counted."""


class RestartRequestSpec(ApiModel):
    """A restart that the user asks for. Carried out once for every new id; not counted."""

    id: str = Field(min_length=1, max_length=63)
    """Any word that was not used before, such as a date."""
    role: Role | None = None
    """Restarts this role in place (the actor: the whole job); null restarts the job."""
    reason: str = Field(default="", max_length=1024)
    """Told in events and conditions."""


class CleanPodPolicy(StrEnum):
    """Which pods go when the job has ended."""

    ALL = "All"
    WORKERS = "Workers"
    NONE = "None"


class TelemetrySpec(ApiModel):
    """What is written down beside metrics and events."""

    sample_log: bool = False
    """A line of samples.jsonl per trained sample (the audit)."""
    generations_per_rollout: int = Field(default=8, ge=0, le=10000)
    """Samples of each trained rollout whose text is kept, for `rljob samples`: spread over those of the actor's first
    rank. 0: none."""


class RLJobSpec(RuledModel):
    """One disaggregated reinforcement-learning job."""

    rules = SPEC

    mode: Mode = Mode.FULLY_ASYNC
    """FullyAsync: every role has processes of its own and streams."""
    seed: Seed = 0
    """Seed of sampling: a sample's seed is a function of (seed, rollout id, group, attempt, sample)."""
    model: ModelSpec
    """The policy."""
    data: DataSpec
    """The prompts."""
    algorithm: AlgorithmSpec = AlgorithmSpec()
    """Advantages and loss."""
    rollout: RolloutSpec
    """Generation."""
    training: TrainingSpec
    """Training."""
    roles: RolesSpec = RolesSpec()
    """The processes."""
    transfer_queue: TransferQueueSpec = TransferQueueSpec()
    """The data plane."""
    weight_sync: WeightSyncSpec = WeightSyncSpec()
    """How weights travel."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """What is kept for a restart."""
    restart_policy: RestartPolicySpec = RestartPolicySpec()
    """What is restarted when something fails."""
    telemetry: TelemetrySpec = TelemetrySpec()
    """What is written down beside metrics and events."""
    simulation: SimulationSpec | None = None
    """How long a job whose engines are of kind Sim takes for what it does not compute. Null: no time."""
    scheduling: SchedulingSpec = SchedulingSpec()
    """How the job's pods find their nodes."""
    infrastructure: InfrastructureSpec = InfrastructureSpec()
    """What coordinator and Redis pods are like."""
    image: str | None = Field(default=None, min_length=1, max_length=512)
    """Image of workers and coordinator; null means the operator's. On a cluster only."""
    suspend: bool = False
    """true: the actor saves, then every pod goes; false again: the job goes on from there. On a cluster only."""
    restart_request: RestartRequestSpec | None = None
    """A restart that you ask for, as `rljob restart` does. On a cluster only."""
    managed_by: str | None = Field(default=None, min_length=1, max_length=253)
    """A controller other than this operator that takes care of the job; the operator then leaves it alone. On a cluster
    only."""
    active_deadline_seconds: int | None = Field(default=None, ge=1, le=31_536_000)
    """The job fails when it has run for this long, suspended time left out; null: no limit. On a cluster only."""
    startup_deadline_seconds: int | None = Field(default=None, ge=1, le=31_536_000)
    """The job fails, and gives back what it holds, when it has not been Ready for this long: since its start, since it
    was resumed, or since it was Ready last, as where a pod that was lost can be placed nowhere. Suspended time and
    restartPolicy.backoff are left out; replicas that join a job that runs are not waited for. Null: no limit."""
    ttl_seconds_after_finished: int | None = Field(default=None, ge=0, le=31_536_000)
    """The job is deleted this long after it ended; null: never. On a cluster only."""
    clean_pod_policy: CleanPodPolicy = CleanPodPolicy.ALL
    """Which pods go when the job has ended. All: every one. Workers: coordinator and Redis stay, to be asked. None: all
    stay, also those with GPUs. On a cluster only."""


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
