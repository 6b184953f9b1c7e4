"""Generation and rewards of a job (`spec.rollout`): fields and rules.

Anyone may import it. Loads no reward function.
"""

from __future__ import annotations

import re
from enum import StrEnum
from math import ceil
from typing import Annotated, Any

from pydantic import Field, StringConstraints, field_validator
from pydantic.alias_generators import to_snake

from rljob_api.base import ApiModel
from rljob_api.change import fixed
from rljob_api.rule import Rule, RuledModel
from rljob_api.spec.curriculum import CurriculumSpec
from rljob_api.spec.dynamic_sampling import DynamicSamplingSpec
from rljob_api.spec.partial_rollouts import PartialSpec

KINDS = (
    "exactMatch",
    "characterMatch",
    "mathVerify",
    "textOverlap",
    "choice",
    "format",
    "tags",
    "remote",
    "judge",
    "custom",
)
"""Fields of a reward, of which it has at most one."""


WITHOUT_LABELS = ("format", "tags", "remote", "judge", "custom")
"""Kinds that may do without."""


_HAS_KIND = ", ".join(f"has(self.{kind})" for kind in KINDS)


_OF_KINDS = f"{', '.join(KINDS[:-1])} and {KINDS[-1]}"


REWARD_OF_SUM: tuple[Rule, ...] = (
    Rule(
        field="custom",
        holds=lambda reward: len(reward.kinds) <= 1,
        sentence=f"at most one of {_OF_KINDS} may be given. Keep one of them.",
        cel=f"[{_HAS_KIND}].filter(given, given).size() <= 1",
    ),
    Rule(
        field="name",
        holds=lambda reward: reward.name not in ("mean", "std"),
        sentence="{name} is what every step reports of the whole reward. Give another name.",
        cel="!(self.name in ['mean', 'std'])",
    ),
)


REWARD: tuple[Rule, ...] = (
    Rule(
        field="custom",
        holds=lambda reward: len(reward.kinds) + (reward.sum is not None) <= 1,
        sentence=f"at most one of {', '.join(KINDS)} and sum may be given. Keep one of them.",
        cel=f"[{_HAS_KIND}, has(self.sum)].filter(given, given).size() <= 1",
    ),
    Rule(
        field="sum",
        holds=lambda reward: reward.sum is None or len({each.name for each in reward.sum}) == len(reward.sum),
        sentence="has two rewards of one name, and their metrics would be one. Give each a name of its own.",
        cel="!has(self.sum) || self.sum.all(one, self.sum.filter(each, each.name == one.name).size() == 1)",
    ),
)


JUDGE: tuple[Rule, ...] = (
    Rule(
        field="highest",
        holds=lambda judge: judge.highest > judge.lowest,
        sentence="{highest} is not above lowest, {lowest}. Give the score of the best answer.",
        cel="self.highest > self.lowest",
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


ImportPath = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$", max_length=256)
]
"""`package.module:attribute`. Loaded from installed packages or from `extensionPath`, never from data."""


class SamplingSpec(ApiModel):
    """Sampling parameters of the engine."""

    temperature: float = Field(default=1.0, gt=0, le=10)
    """Divides the logits, also where log-probs are computed."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Draw from the smallest set of tokens with at least this probability; 1 means all."""
    top_k: int = Field(default=0, ge=0, le=1048576)
    """Draw from this many most likely tokens; 0 means all."""
    min_p: float | None = Field(default=None, ge=0, le=1)
    """Draw from the tokens that have at least this share of the likeliest one's probability; null means all. Of topP,
    topK and minP each bounds the whole distribution, and what none of them leaves out is drawn from. SGLang on a
    GPU takes topP of what topK leaves where minP is given."""
    max_new_tokens: int = Field(default=64, ge=1, le=1048576)
    """Longest response, in tokens, its end-of-sequence token included, and those that tools write between turns."""
    stop_token_ids: list[Annotated[int, Field(ge=0, le=1048576)]] = Field(default=[], max_length=64)
    """Tokens that end a sample, beside the tokenizer's end-of-sequence token."""
    stop: list[Annotated[str, Field(min_length=1, max_length=256)]] = Field(default=[], max_length=16)
    """Texts that end a sample, which has the tokens of the text as well."""


class ExactMatchSpec(ApiModel):
    """Reward 1.0 when the answer equals the label, else 0.0; both stripped of white space."""


class CharacterMatchSpec(ApiModel):
    """Reward: the share of places where answer and label have the same character, of the longer one's length."""


class MathVerifySpec(ApiModel):
    """Reward 1.0 when answer and label are the same expression to math-verify (LaTeX or plain), else 0.0.

    Of a label with `####`, as GSM8K has it, what stands behind it counts.
    """

    timeout_seconds: int = Field(default=5, ge=1, le=600)
    """Longest time for reading, and for comparing, one answer; beyond it the answer gets 0.0."""


class TextOverlapSpec(ApiModel):
    """Reward: the F1 of the words that answer and label share, as SQuAD counts them. Of several labels the best one."""


class ChoiceSpec(ApiModel):
    r"""Reward 1.0 when the answer's letter is the label's, else 0.0.

    That of the last `\boxed{B}`, else of the last `answer: B` or `answer is (B)`, else that of an answer that is a
    letter alone.
    """


class FormatSpec(ApiModel):
    """Reward 1.0 when all of the answer matches a pattern, else 0.0."""

    pattern: str = Field(min_length=1, max_length=4096)
    """A regular expression of Python, in which a full stop matches line breaks, too."""

    @field_validator("pattern")
    @classmethod
    def _is_one(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"it is no regular expression ({error}). Correct it.") from error
        return pattern


class TagsSpec(ApiModel):
    """Reward: the share of tags that the answer opens and closes once, in their order."""

    names: list[Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", max_length=64)]] = Field(
        min_length=1, max_length=16
    )
    """Without their brackets, e.g. [think, answer]."""


class ServerSpec(RuledModel):
    """A server that scores, and how it is called."""

    url: str = Field(pattern=r"^https?://[^ ]+$", max_length=2048)
    """Where requests are posted; of a judge what `/chat/completions` is added to, such as `http://judge:8000/v1`."""
    token_env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=256)
    """A variable of the rollout's environment that holds a token, which is sent as `Authorization: Bearer`."""
    timeout_seconds: int = Field(default=60, ge=1, le=86400)
    """Longest time for one request."""
    retries: int = Field(default=3, ge=0, le=100)
    """Further requests after one that failed: no connection, no answer in time, or a status of 408, 429 or 5xx. Any
    other status fails the job."""
    backoff_seconds: float = Field(default=1.0, ge=0, le=3600)
    """Pause before the first retry; twice as long before each further one."""
    concurrency: int = Field(default=32, ge=1, le=4096)
    """Requests of one rollout rank at the same time."""


class RemoteSpec(ServerSpec):
    """Rewards that a server gives to all answers to a prompt by one request."""


class JudgeReply(StrEnum):
    """How a judge is asked for its score."""

    SCHEMA = "Schema"
    TEXT = "Text"


class JudgeSpec(ServerSpec):
    """Rewards that a model behind an endpoint like OpenAI's gives, to each answer by a request of its own."""

    rules = JUDGE

    model: str = Field(min_length=1, max_length=256)
    """Its name there."""
    rubric: str = Field(min_length=1, max_length=65536)
    """The judge's instruction, with {response} in it, and {prompt} and {label} where it needs them."""
    lowest: float = Field(default=0.0, ge=-1e6, le=1e6)
    """The score that is worth 0.0."""
    highest: float = Field(default=10.0, ge=-1e6, le=1e6)
    """The score that is worth 1.0."""
    max_tokens: int = Field(default=512, ge=1, le=1048576)
    """Longest reply."""
    reply: JudgeReply = JudgeReply.SCHEMA
    """Schema: each request has a JSON schema of reason and score (`response_format`); a server that refuses it is asked
    as with Text from then on. Text: for a last line `Score: N`."""

    @field_validator("rubric")
    @classmethod
    def _shows_the_answer(cls, rubric: str) -> str:
        if "{response}" not in rubric:
            raise ValueError("it has no {response}: the judge would see no answer. Put it where the answer goes.")
        return rubric


class RewardFunctionSpec(ApiModel):
    """A user's reward: a function of the protocol `rljob_workers.rewards.base.RewardFunction`."""

    function: ImportPath
    """`package.module:function`."""
    path: str | None = Field(default=None, min_length=1, max_length=4096)
    """A folder that is searched first for the module; relative to the manifest."""
    per_sample: bool = False
    """True: a function of the protocol `SampleReward`, called with one answer. False: with all answers to a prompt."""
    timeout_seconds: int = Field(default=60, ge=1, le=86400)
    """Longest time for the samples of one prompt; with perSample for one sample."""


class FailedReward(StrEnum):
    """Treatment of a sample that could not be scored."""

    INVALID = "Invalid"
    SCORE = "Score"


class RewardFailureSpec(RuledModel):
    """Samples whose reward raises, hangs, or returns None or NaN for them."""

    rules = REWARD_FAILURE

    retries: int = Field(default=3, ge=0, le=100)
    """Further calls of a reward for the samples that it has not scored (custom without perSample and remote: for all of
    their prompt), before they count as failed. All of them together, each as long as custom.timeoutSeconds and its
    pause, should end before restartPolicy.stallTimeoutSeconds."""
    backoff_seconds: float = Field(default=1.0, ge=0, le=3600)
    """Pause before the first retry; twice as long before each further one."""
    then: FailedReward = FailedReward.INVALID
    """Invalid: nothing is learnt from the sample, and it counts nowhere; a prompt with fewer than two others is drawn
    again, and with the advantage ReMax one without any other, or without a score of its greedy answer. Score: it gets
    `score`, like an answer that earned it."""
    score: float | None = Field(default=None, ge=-1e9, le=1e9)
    """With `then: Score`."""


class OneReward(RuledModel):
    """Fields of a reward, alone or in a sum."""

    exact_match: ExactMatchSpec | None = None
    """The answer must equal the label."""
    character_match: CharacterMatchSpec | None = None
    """Partial credit, character by character: a model with random weights finds its way from nothing."""
    math_verify: MathVerifySpec | None = None
    """The answer must be the same expression as the label."""
    text_overlap: TextOverlapSpec | None = None
    """Partial credit, word by word."""
    choice: ChoiceSpec | None = None
    """The answer must choose the label's letter."""
    format: FormatSpec | None = None
    """The answer must match a pattern."""
    tags: TagsSpec | None = None
    """The answer must have tags."""
    remote: RemoteSpec | None = None
    """A server scores."""
    judge: JudgeSpec | None = None
    """A model scores by a rubric."""
    custom: RewardFunctionSpec | None = None
    """A function of yours."""

    @property
    def kinds(self) -> list[str]:
        """Which of KINDS it has."""
        return [kind for kind in KINDS if getattr(self, to_snake(kind)) is not None]


class SummedRewardSpec(OneReward):
    """One of several rewards, of at most one kind; of none: as without sum."""

    rules = REWARD_OF_SUM

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]+$", max_length=64)]
    """The name of its metrics: `reward/NAME` is the mean of what it gives, before the weight."""
    weight: float = Field(default=1.0, ge=-1e9, le=1e9)
    """Its weight in the sum; 0 for one that is measured and nothing else."""


class OverlongSpec(ApiModel):
    """A penalty that grows over the last tokens before the longest response (DAPO)."""

    buffer: int = Field(ge=1, le=1048576)
    """Over so many tokens below sampling.maxNewTokens it grows from 0 to `penalty`."""
    penalty: float = Field(default=1.0, gt=0, le=1e9)
    """Subtracted from a response of maxNewTokens."""


class ShorterSpec(ApiModel):
    """A bonus for the shorter of the right answers to a prompt, and a penalty for longer ones (Kimi k1.5)."""

    weight: float = Field(default=1.0, gt=0, le=1e9)
    """The shortest answer gets half of it, the longest loses half; an answer whose reward is not positive gains nothing
    by being short."""


class RewardSpec(OneReward):
    """A reward of at most one kind, or the sum of several.

    None of them: exact match for `prompts`, `score_answer` for `reasoningGym`.
    """

    rules = REWARD

    sum: list[SummedRewardSpec] | None = Field(default=None, min_length=1, max_length=16)
    """Several rewards: each is multiplied by its weight, and added up. A sample that one of them cannot score has no
    score."""
    overlong: OverlongSpec | None = None
    """Takes something off the reward of responses that come near sampling.maxNewTokens, tokens that a tool wrote
    included; the mean is the metric reward/overlong. Null: nothing."""
    shorter: ShorterSpec | None = None
    """Compares the lengths of the answers to one prompt, and adds to their rewards by it; the mean is the metric
    reward/shorter. Null: nothing."""
    on_failure: RewardFailureSpec = RewardFailureSpec()
    """Treatment of a sample that cannot be scored; no role is restarted for it. Of the rewards that come with the
    product remote and judge alone may fail, and mathVerify for a label that is no expression."""
    max_failed_share: float = Field(default=0.1, ge=0, le=1)
    """More failed samples than this share, after their retries, among the last batchSize x samplesPerPrompt (at least
    256) of one rollout rank fail the job. 1: never."""

    @property
    def functions(self) -> dict[str, RewardFunctionSpec]:
        """The user's functions by their field, e.g. `rollout.reward.sum[0].custom`."""
        parts: list[RewardSpec | SummedRewardSpec] = [self, *(self.sum or ())]
        fields = ["rollout.reward.custom", *(f"rollout.reward.sum[{place}].custom" for place in range(len(parts) - 1))]
        return {field: part.custom for field, part in zip(fields, parts, strict=True) if part.custom is not None}

    @property
    def compares_with_labels(self) -> bool:
        """Whether one of them cannot do without."""
        return any(not set(each.kinds) & set(WITHOUT_LABELS) for each in self.sum or (self,))


class RolloutFunctionSpec(ApiModel):
    """A user's rollout: a function of the protocol `rljob_workers.rollout.function.RolloutFunction`."""

    function: ImportPath
    """`package.module:function`, which is async and is called for each sample with prompt, engine and params."""
    path: str | None = Field(default=None, min_length=1, max_length=4096)
    """A folder that is searched first for the module; relative to the manifest."""
    arguments: dict[str, Any] = {}
    """Keyword arguments of each call, in the function's own spelling."""
    timeout_seconds: int | None = Field(default=None, ge=1, le=86400)
    """Longest time that one call spends outside of the engine: its tools, all together. Null: half of
    restartPolicy.stallTimeoutSeconds."""
    retries: int = Field(default=3, ge=0, le=100)
    """Further calls for a sample whose call raised something other than a ValueError, which fails the job, or took too
    long. After them the sample is lost: it counts nowhere, and reward.maxFailedShare is the limit of such samples; a
    prompt with fewer than two others is drawn again."""
    backoff_seconds: float = Field(default=1.0, ge=0, le=3600)
    """Pause before the first retry; twice as long before each further one."""


class LongPrompts(StrEnum):
    """Treatment of prompts with more tokens than are generated for."""

    DROP = "Drop"
    TRUNCATE = "Truncate"
    REFUSE = "Refuse"


class GroupOrder(StrEnum):
    """Which groups a rollout is made of."""

    BOUND = "Bound"
    SWAP = "Swap"


class RolloutSpec(ApiModel):
    """Size of one rollout, and how far generation may run ahead of training."""

    num_rollouts: int = Field(ge=1, le=10_000_000)
    """The job succeeds after training on this many."""
    batch_size: Annotated[int, fixed("checkpoints and the queue count prompts in rollouts of this size.")] = Field(
        ge=1, le=1_000_000
    )
    """Prompts of one rollout."""
    samples_per_prompt: Annotated[int, fixed("the rows of the queue are numbered by it.")] = Field(ge=1, le=4096)
    """Samples of one prompt: the group that their advantages are relative to. 1: with advantages that are relative to
    something else, ReMax, ReinforcePlusPlus, Gae, Distillation or a function of yours."""
    max_staleness: int = Field(default=1, ge=0, le=64)
    """Largest r - v for a row of train_r and any weight version v that made a token of it; where groups are carried on
    (partial with order Swap), a token that is learnt from. 0: strictly on-policy."""
    order: GroupOrder = GroupOrder.BOUND
    """Bound: a rollout has the groups that were begun for it, and waits for the slowest of them. Swap: a group that is
    finished takes the place of one that an earlier rollout still waits for, which goes to its rollout, as far as
    maxStaleness allows for every token of it. Every group that was drawn is trained on, slow ones later."""
    over_sampling: float | None = Field(default=None, ge=1, le=64)
    """With order Swap and partial: so many times batchSize groups are drawn for the newest rollout that is open, and
    those that are unfinished when it is complete go on for the next. The queue then has room for batchSize x
    (maxStaleness + overSampling) groups. Null: 1, as many as it needs."""
    sampling: SamplingSpec = SamplingSpec()
    """How tokens are drawn."""
    concurrency: int | None = Field(default=None, ge=1, le=65536)
    """Samples that are in flight at each engine: a prompt is begun while there are fewer, and begun with all of its
    samples. Null: as many as the server runs at once. An engine never has more than its share of the rollouts that may
    be open, batchSize x (maxStaleness + overSampling) / engines prompts."""
    function: RolloutFunctionSpec | None = None
    """How a sample is made of a prompt: several turns, with tools in between. Null: in a single turn, which is
    cheapest."""
    reward: RewardSpec = RewardSpec()
    """How samples are scored, where the rollout function has not done so."""
    max_prompt_tokens: int | None = Field(default=None, ge=1, le=1048576)
    """Longer prompts are passed over, and counted: another is drawn in their place (longPrompts). Null: those that
    leave no room for a response in the model."""
    long_prompts: LongPrompts = LongPrompts.DROP
    """Treatment of longer prompts. Drop: as said there. Truncate: their last tokens, as many as there may be, are
    taken, and they are counted. Refuse: the job fails, and names the first."""
    max_prompt_kills: int = Field(default=3, ge=1, le=100)
    """A prompt whose worker died this often while it was in work, the last time it alone, is set aside and another is
    drawn. At least 3: prompts that two deaths have in common are suspects, and only those are worked on alone."""
    max_attempts: int = Field(default=8, ge=1, le=1000)
    """Draws for one group before the job fails with a name; those that dynamicSampling refuses are not among them."""
    curriculum: CurriculumSpec | None = None
    """Which row of the data comes next is chosen while the job runs; data.shuffleSeed orders nothing then. Null: every
    pass over the data has each row once."""
    dynamic_sampling: DynamicSamplingSpec | None = None
    """Draws groups anew that a filter refuses, such as those whose rewards are all equal. Null: what is drawn is
    trained on."""
    partial: PartialSpec | None = None
    """Groups that are interrupted, by the death of a rank or an engine or by an order, go on behind what was generated
    of them instead of at their beginnings. Null: they are begun again."""

    @property
    def carries(self) -> bool:
        """Whether groups go on from rollout to rollout until they are finished, without what has become too old."""
        return self.partial is not None and self.order is GroupOrder.SWAP

    @property
    def more_groups(self) -> int:
        """Groups that may be begun beside those that the open rollouts need."""
        return ceil(self.batch_size * ((self.over_sampling or 1.0) - 1))

    @property
    def capacity(self) -> int:
        """Groups that may be begun and not trained."""
        return self.batch_size * (self.max_staleness + 1) + self.more_groups
