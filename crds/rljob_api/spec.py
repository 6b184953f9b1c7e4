"""The spec of an RLJob: every field that a user may write, with unit, bounds, default and meaning.

A field is here only when its behaviour is built. Cross-field rules stand once, in `rules.py`.
"""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from rljob_api.base import ApiModel
from rljob_api.names import Role, Scope

ImportPath = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", max_length=256)]
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


class TokenizerConfig(ApiModel):
    """The tokenizer of a model made from a config."""

    kind: TokenizerKind = TokenizerKind.CHARACTER
    """Character: one token per character of `alphabet`. Byte: one token per UTF-8 byte."""
    alphabet: str | None = Field(default=None, min_length=1, max_length=1024)
    """The characters of a Character tokenizer; None means the printable ASCII characters."""


class ModelConfig(ApiModel):
    """A model with random weights; version 0 is materialised once from `seed`."""

    architecture: Architecture = Architecture.QWEN3
    hidden_size: int = Field(default=64, ge=8, le=65536)
    intermediate_size: int = Field(default=128, ge=8, le=262144)
    num_layers: int = Field(default=2, ge=1, le=256)
    num_attention_heads: int = Field(default=4, ge=1, le=256)
    num_key_value_heads: int = Field(default=2, ge=1, le=256)
    head_dim: int = Field(default=16, ge=4, le=512)
    max_position_embeddings: int = Field(default=1024, ge=8, le=1048576)
    tie_word_embeddings: bool = True
    initializer_range: float = Field(default=0.02, gt=0, le=1)
    """Standard deviation of the initial weights."""
    vocab_size: int | None = Field(default=None, ge=2, le=1048576)
    """None: as many as the tokenizer has. Must not be smaller than that."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    seed: int = Field(default=0, ge=0)


class ModelSpec(ApiModel):
    """The policy model. Exactly one of `path` and `config`."""

    path: str | None = Field(default=None, min_length=1, max_length=4096)
    """A Hugging Face checkpoint folder (config.json, safetensors, tokenizer)."""
    config: ModelConfig | None = None
    tokenizer_path: str | None = Field(default=None, min_length=1, max_length=4096)
    """A folder with a tokenizer; None means the one in `path` or that of `config`."""
    dtype: Dtype = Dtype.FLOAT32


class ReasoningGymSpec(ApiModel):
    """Procedural tasks of the reasoning_gym package; their own `score_answer` is the reward."""

    dataset: str = Field(min_length=1, max_length=128)
    """Name of the dataset, e.g. `letter_counting`."""
    parameters: dict[str, Any] = {}
    """Keyword arguments of the dataset's config, e.g. {max_n: 1000}."""
    size: int = Field(default=10000, ge=1, le=10_000_000)
    """How many tasks there are before they repeat."""
    seed: int = Field(default=0, ge=0)


class DataSpec(ApiModel):
    """Where prompts come from. Exactly one of `prompts` and `reasoningGym`."""

    prompts: str | None = Field(default=None, min_length=1, max_length=4096)
    """A JSONL file, one prompt a line. A relative path is relative to the manifest."""
    prompt_key: str = Field(default="prompt", min_length=1, max_length=256)
    """Key of the prompt: a string, or a list of chat messages (needs a chat template)."""
    label_key: str | None = Field(default="label", max_length=256)
    """Key of the label handed to the reward; None means that there is none."""
    reasoning_gym: ReasoningGymSpec | None = None
    shuffle_seed: int | None = Field(default=0, ge=0)
    """Seed of the order, new in every pass over the data; None keeps the order of the file."""
    apply_chat_template: bool = False
    """Wrap string prompts as one user message of the tokenizer's chat template."""


class Advantage(StrEnum):
    """How rewards become advantages."""

    GRPO = "Grpo"


class ClipSpec(ApiModel):
    """PPO clipping of the policy ratio to [1 - low, 1 + high]."""

    low: float = Field(default=0.2, gt=0, lt=1)
    high: float = Field(default=0.28, gt=0, le=10)


class KlEstimator(StrEnum):
    """Estimators of KL(policy || reference), Schulman 2020."""

    K1 = "K1"
    K2 = "K2"
    K3 = "K3"


class KlSpec(ApiModel):
    """KL term in the loss. A coefficient above 0 needs the reference role."""

    coefficient: float = Field(default=0.0, ge=0, le=100)
    estimator: KlEstimator = KlEstimator.K3


class Correction(StrEnum):
    """What is done about rollout log-probs that differ from the trainer's."""

    NONE = "None"
    TIS = "Tis"


class CorrectionSpec(ApiModel):
    """Importance correction for stale or mismatched log-probs (TIS: weights capped at `cap`)."""

    kind: Correction = Correction.TIS
    cap: float = Field(default=2.0, gt=0, le=1000)


class LossAggregation(StrEnum):
    """Over what the loss is averaged: all tokens of the global batch, or samples of token means."""

    TOKEN_MEAN = "TokenMean"
    SEQUENCE_MEAN = "SequenceMean"


class AlgorithmSpec(ApiModel):
    """The policy-gradient algorithm."""

    advantage: Advantage = Advantage.GRPO
    clip: ClipSpec = ClipSpec()
    kl: KlSpec = KlSpec()
    correction: CorrectionSpec = CorrectionSpec()
    loss_aggregation: LossAggregation = LossAggregation.TOKEN_MEAN


class SamplingSpec(ApiModel):
    """How tokens are drawn."""

    temperature: float = Field(default=1.0, gt=0, le=10)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    """0 means all tokens."""
    max_new_tokens: int = Field(default=64, ge=1, le=1048576)
    stop_token_ids: list[Annotated[int, Field(ge=0)]] = Field(default=[], max_length=64)
    """Ends a sample beside the tokenizer's end-of-sequence token."""


class ExactMatchSpec(ApiModel):
    """Reward 1.0 when the answer equals the label, else 0.0; both stripped of white space."""


class RewardFunctionSpec(ApiModel):
    """A user's reward: a function of the protocol `rljob_workers.rewards.base.RewardFunction`."""

    function: ImportPath
    path: str | None = Field(default=None, min_length=1, max_length=4096)
    """A folder that is searched first for the module; relative to the manifest."""
    timeout_seconds: int = Field(default=60, ge=1, le=86400)


class RewardSpec(ApiModel):
    """At most one member. None at all: exact match for `prompts`, `score_answer` for `reasoningGym`."""

    exact_match: ExactMatchSpec | None = None
    custom: RewardFunctionSpec | None = None


class RolloutSpec(ApiModel):
    """What one rollout is and how far generation may run ahead of training."""

    num_rollouts: int = Field(ge=1, le=10_000_000)
    """The job succeeds after training on this many."""
    batch_size: int = Field(ge=1, le=1_000_000)
    """Prompts of one rollout."""
    samples_per_prompt: int = Field(ge=2, le=4096)
    max_staleness: int = Field(default=1, ge=0, le=64)
    """Largest r - v for a row of train_r and any version v that made a token of it. 0: on-policy."""
    sampling: SamplingSpec = SamplingSpec()
    reward: RewardSpec = RewardSpec()
    max_prompt_kills: int = Field(default=3, ge=1, le=100)
    """A prompt that was alone in work when its worker died this often is set aside and redrawn."""
    max_attempts: int = Field(default=8, ge=1, le=1000)
    """Draws for one group before the job fails with a name."""


class OptimizerSpec(ApiModel):
    """AdamW."""

    learning_rate: float = Field(default=1e-6, gt=0, le=1)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    epsilon: float = Field(default=1e-8, gt=0, le=1)
    weight_decay: float = Field(default=0.0, ge=0, le=10)
    max_grad_norm: float = Field(default=1.0, ge=0)
    """0 turns clipping off."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps of linear warm-up."""


class TrainingSpec(ApiModel):
    """How a rollout is trained on."""

    global_batch_size: int = Field(ge=1)
    """Samples of one optimizer step, over all data-parallel ranks."""
    micro_batch_size: int = Field(ge=1)
    """Samples of one forward and backward pass on one rank."""
    iters_per_train_update: int = Field(default=1, ge=1)
    """A global batch is fetched in this many slices, so that training starts before it is complete."""
    epochs_per_rollout: int = Field(default=1, ge=1, le=64)
    """Passes over one rollout."""
    optimizer: OptimizerSpec = OptimizerSpec()
    ref_update_interval: int | None = Field(default=None, ge=1)
    """k: train_r is measured against version floor(r / k) * k. None: always version 0."""


class RoleSpec(ApiModel):
    """Size of one role."""

    replicas: int = Field(default=1, ge=1, le=1024)
    """Pods; here each pod has one rank."""
    threads: int = Field(default=1, ge=1, le=1024)
    """CPU threads of tensor operations in each rank (for rollout: in each engine)."""


class RolesSpec(ApiModel):
    """Roles of the job. `reference` may be absent (null) when no KL term needs it."""

    actor: RoleSpec = RoleSpec()
    rollout: RoleSpec = RoleSpec()
    actor_fwd: RoleSpec = RoleSpec()
    reference: RoleSpec | None = None
    advantages: RoleSpec = RoleSpec()


class Waiting(StrEnum):
    """How a consumer waits for rows: told by the queue, or by asking again."""

    NOTIFY = "Notify"
    POLL = "Poll"


class TransferQueueSpec(ApiModel):
    """The data plane."""

    storage_units: int = Field(default=2, ge=1, le=64)
    polling_mode: Waiting = Waiting.NOTIFY
    storage_bytes: int = Field(default=1 << 30, ge=1 << 24)
    """Memory limit of one storage unit, in bytes."""


class WeightBackend(StrEnum):
    """How weights travel from the trainer to the receivers."""

    HOST_STAGED = "HostStaged"


class Interruption(StrEnum):
    """What happens to running generations when weights change."""

    RETRACT = "Retract"


class WeightSyncSpec(ApiModel):
    """Weight transport."""

    backend: WeightBackend = WeightBackend.HOST_STAGED
    interruption: Interruption = Interruption.RETRACT
    """Retract: tokens are kept, their KV is computed anew under the new weights."""
    chunk_bytes: int = Field(default=4 << 20, ge=1 << 12, le=1 << 30)
    """Weights travel in checksummed chunks of this size."""
    timeout_seconds: int = Field(default=300, ge=1, le=86400)


class CheckpointSpec(ApiModel):
    """Checkpoints: policy, optimizer, random state, data cursor."""

    path: str | None = Field(default=None, min_length=1, max_length=4096)
    """Folder; None means `checkpoints` in the run folder. Relative to the run folder."""
    every_steps: int = Field(default=1, ge=1)
    """A checkpoint after every so many trained rollouts (and at the end)."""
    keep: int = Field(default=2, ge=1, le=1000)
    """Newest recorded checkpoints that are kept."""


class BackoffSpec(ApiModel):
    """Delay before a global restart: initialSeconds * factor^(n-1) for the n-th, at most maxSeconds.

    n falls back to 1 once a step was recorded after the last restart.
    """

    initial_seconds: float = Field(default=0.0, ge=0, le=86400)
    factor: float = Field(default=2.0, ge=1, le=10)
    max_seconds: float = Field(default=60.0, ge=0, le=86400)


class RestartTableSpec(ApiModel):
    """Overrides of single rows of the restart table; None keeps the default. Actor takes only Global."""

    actor: Scope | None = None
    rollout: Scope | None = None
    actor_fwd: Scope | None = None
    reference: Scope | None = None
    advantages: Scope | None = None

    def row(self, role: Role) -> Scope | None:
        """The override for `role`, or None."""
        return getattr(self, role.value)  # type: ignore[no-any-return]


class RestartPolicySpec(ApiModel):
    """What is restarted when something fails."""

    table: RestartTableSpec = RestartTableSpec()
    threshold: int = Field(default=3, ge=1, le=1000)
    """The threshold-th failure of one role since the last global restart is global."""
    window_seconds: int | None = Field(default=None, ge=1)
    """Failures older than this are forgotten; None: never."""
    max_global_restarts: int = Field(default=10, ge=0, le=100000)
    """One more than this fails the job."""
    backoff: BackoffSpec = BackoffSpec()
    heartbeat_timeout_seconds: int = Field(default=30, ge=1, le=86400)
    """A rank whose main loop has not beaten for this long (and is not busy by its own word) hangs."""
    stall_timeout_seconds: int = Field(default=600, ge=2, le=604800)
    """A job whose step does not advance for this long is Stalled and restarted."""


class TelemetrySpec(ApiModel):
    """What is written down beside metrics and events."""

    sample_log: bool = False
    """A line of samples.jsonl per trained sample (the audit)."""


class RLJobSpec(ApiModel):
    """One disaggregated reinforcement-learning job."""

    mode: Mode = Mode.FULLY_ASYNC
    seed: int = Field(default=0, ge=0)
    """Seed of sampling: a sample's seed is a function of (seed, rollout id, group, attempt, sample)."""
    model: ModelSpec
    data: DataSpec
    algorithm: AlgorithmSpec = AlgorithmSpec()
    rollout: RolloutSpec
    training: TrainingSpec
    roles: RolesSpec = RolesSpec()
    transfer_queue: TransferQueueSpec = TransferQueueSpec()
    weight_sync: WeightSyncSpec = WeightSyncSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    restart_policy: RestartPolicySpec = RestartPolicySpec()
    telemetry: TelemetrySpec = TelemetrySpec()


class Metadata(ApiModel):
    """The part of Kubernetes' metadata that a manifest here needs."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$")]
    """At most 40 characters, so that names made from it fit into Kubernetes' limits."""
    namespace: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class RLJob(ApiModel):
    """The manifest."""

    api_version: str = Field(default="rljob.dev/v1alpha1", pattern=r"^rljob\.dev/v1alpha1$")
    kind: str = Field(default="RLJob", pattern="^RLJob$")
    metadata: Metadata
    spec: RLJobSpec
