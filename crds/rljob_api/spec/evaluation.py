"""Evaluation during training (`spec.evaluation`): fields and rules. Anyone may import it. Reads no file.

A field that a set does not say has no default here: `rljob_api.spec.set_defaults` takes it from training.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StringConstraints

from rljob_api.base import ApiModel
from rljob_api.rule import Rule, RuledModel
from rljob_api.spec.data import PromptsSpec, TemplateVariables

EVALUATION: tuple[Rule, ...] = (
    Rule(
        field="sets",
        holds=lambda evaluation: len({each.name for each in evaluation.sets}) == len(evaluation.sets),
        sentence="two of them have the same name, which their metrics go by. Give each a name of its own.",
        cel="self.sets.all(one, self.sets.exists_one(other, other.name == one.name))",
    ),
    Rule(
        field="sets",
        holds=lambda evaluation: all(each.data.sources is None for each in evaluation.sets),
        sentence="have one with data.sources, which are mixed by weights, and a set has each of its prompts once. Give "
        "each file a set of its own, in data.prompts.",
        cel="self.sets.all(each, !has(each.data.sources))",
    ),
)


class EvaluationChatTemplateSpec(ApiModel):
    """Each field that is not given is as in data.chatTemplate."""

    kwargs: TemplateVariables | None = None
    """Variables of the template; {}: none."""
    tools: list[dict[str, Any]] | None = Field(default=None, max_length=64)
    """Schemas of functions that the template describes to the model; []: none."""
    file: str | None = Field(default=None, max_length=4096)
    """A template (Jinja), relative to the manifest; empty: the tokenizer's own."""


class EvaluationDataSpec(PromptsSpec):
    """`prompts` or `reasoningGym`. Keys and template that are not given are as in data."""

    prompt_key: str | None = Field(default=None, min_length=1, max_length=256)
    """Key of the prompt. Null: data.promptKey."""
    label_key: str | None = Field(default=None, max_length=256)
    """Key of the label; empty: there is none. Null: data.labelKey."""
    source_key: str | None = Field(default=None, max_length=256)
    """Key of the name of where a line comes from; empty: the name of the file. Null: data.sourceKey."""
    apply_chat_template: bool | None = None
    """Wrap string prompts as one user message. Null: data.applyChatTemplate."""
    system_prompt: str | None = Field(default=None, max_length=65536)
    """The system's message before every chat that does not begin with one; empty: none. Null: data.systemPrompt."""
    chat_template: EvaluationChatTemplateSpec | None = None
    """Null: data.chatTemplate."""


class EvaluationSamplingSpec(ApiModel):
    """How tokens are drawn. Each field that is not given is as in rollout.sampling."""

    temperature: float | None = Field(default=None, ge=0, le=100)
    """Logits are divided by it before a token is drawn. 0: the likeliest token each time."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Draw from the smallest set of tokens with at least this probability; 1 means all."""
    top_k: int | None = Field(default=None, ge=0, le=1048576)
    """Draw from this many most likely tokens; 0 means all."""
    min_p: float | None = Field(default=None, ge=0, le=1)
    """Draw from the tokens that have at least this share of the likeliest one's probability; 0 means all."""
    max_new_tokens: int | None = Field(default=None, ge=1, le=1048576)
    """Longest answer, in tokens, its end-of-sequence token included."""
    stop_token_ids: list[Annotated[int, Field(ge=0, le=1048576)]] | None = Field(default=None, max_length=64)
    """Tokens that end an answer, beside the tokenizer's end-of-sequence token; []: none."""
    stop: list[Annotated[str, Field(min_length=1, max_length=256)]] | None = Field(default=None, max_length=16)
    """Texts that end an answer, which has the tokens of the text as well; []: none."""


class EvaluationSetSpec(ApiModel):
    """Prompts that are answered and scored apart from training."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]+$", max_length=64)]
    """Its metrics are `eval/NAME/...`."""
    data: EvaluationDataSpec
    """The prompts: all of them, each once. The job's reward scores the answers."""
    sampling: EvaluationSamplingSpec | None = None
    """Null: as rollout.sampling says."""
    samples_per_prompt: int = Field(default=1, ge=1, le=4096)
    """k of mean@k, and the largest k of pass@k."""
    pass_reward: float = Field(default=1.0, ge=-1e9, le=1e9)
    """A sample passes with this reward or more."""


class EvaluationSpec(RuledModel):
    """Which versions are evaluated, and on what."""

    rules = EVALUATION

    sets: list[EvaluationSetSpec] = Field(min_length=1, max_length=16)
    """Sets that each evaluation consists of."""
    every_steps: int = Field(ge=1, le=10_000_000)
    """Versions that are multiples of this are evaluated, and the last one."""
    at_start: bool = False
    """Whether version 0 is evaluated, too."""
    engine_share: float = Field(default=0.5, gt=0, le=1)
    """An evaluation takes at most this part of the samples that an engine has in flight, and at least one, while
    rollouts have something to generate. While they have nothing, it takes what is free."""

    def is_due(self, version: int, num_rollouts: int) -> bool:
        """Whether a version of a job with so many rollouts is evaluated."""
        return self.at_start if version == 0 else version % self.every_steps == 0 or version == num_rollouts
