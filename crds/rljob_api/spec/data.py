"""The prompts of a job (`spec.data`): fields and rules. Anyone may import it. Reads no file."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_validator

from rljob_api.base import ApiModel
from rljob_api.rule import Rule, RuledModel
from rljob_api.spec.model import Seed

DATA: tuple[Rule, ...] = (
    Rule(
        field="prompts",
        holds=lambda data: [data.prompts, data.sources, data.reasoning_gym].count(None) == 2,
        sentence="exactly one of prompts, sources and reasoningGym must be given. Give prompts for a file, sources for "
        "several with weights, or reasoningGym for procedural tasks.",
        cel="[has(self.prompts), has(self.sources), has(self.reasoningGym)].filter(given, given).size() == 1",
    ),
    Rule(
        field="sourceKey",
        holds=lambda data: not data.source_key or data.reasoning_gym is None,
        sentence="names a key of the lines of prompts, and tasks of reasoningGym have none. Remove sourceKey.",
        cel="!has(self.sourceKey) || self.sourceKey == '' || !has(self.reasoningGym)",
    ),
)


MAX_SOURCE_CHARACTERS = 128
"""Longest name under sourceKey."""


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


MIXTURE_BLOCK = 1000
"""Prompts in which the shares of several sources come out even, at most."""


class SourceSpec(ApiModel):
    """One of several files of prompts."""

    prompts: str = Field(min_length=1, max_length=4096)
    """As data.prompts."""
    weight: float = Field(default=1.0, gt=0, le=1e6)
    """Its part of the prompts, beside the weights of the others. In every thousand prompts, or fewer where the weights
    come out even in fewer, it has this part to the last one."""
    prompt_key: str | None = Field(default=None, min_length=1, max_length=256)
    """Null: data.promptKey."""
    label_key: str | None = Field(default=None, min_length=1, max_length=256)
    """Null: data.labelKey."""


_TEMPLATE_OWN = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "messages",
        "padding",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Arguments of apply_chat_template that the job or other fields give."""


def _leaves_what_is_given(variables: dict[str, Any]) -> dict[str, Any]:
    own = next((name for name in variables if name in _TEMPLATE_OWN), None)
    if own is not None:
        raise ValueError(f"{own} is no variable of a template, but given by the job. Remove it.")
    return variables


TemplateVariables = Annotated[dict[str, Any], AfterValidator(_leaves_what_is_given)]


class ChatTemplateSpec(ApiModel):
    """The chat template, and what it is given beside the messages."""

    kwargs: TemplateVariables = {}
    """Variables of the template, in its own spelling, e.g. {enable_thinking: false}."""
    tools: list[dict[str, Any]] = Field(default=[], max_length=64)
    """Schemas of functions that the template describes to the model, as transformers takes them."""
    file: str | None = Field(default=None, min_length=1, max_length=4096)
    """A template (Jinja) instead of the tokenizer's own; relative to the manifest."""


@dataclass(frozen=True, slots=True)
class PromptFile:
    """A file of prompts of a job."""

    field: str
    """The field with its path: `data.prompts` or `data.sources[1].prompts`."""
    path: str
    prompt_key: str
    label_key: str | None


class PromptsSpec(RuledModel):
    """Where prompts are: exactly one of `prompts`, `sources` and `reasoningGym`."""

    rules = DATA

    prompts: str | None = Field(default=None, min_length=1, max_length=4096)
    """A JSONL file, one prompt a line, a Parquet file (or `train-*.parquet`, several of the same columns), or a folder
    that `datasets.save_to_disk` wrote. A relative path is relative to the manifest; `hf:OWNER/NAME/PATH` is a file of a
    data set of the hub, which must be in the cache of huggingface_hub."""
    sources: Annotated[list[SourceSpec] | None, Field(min_length=1, max_length=64)] = None
    """Several files of prompts, mixed by weights: the n-th prompt is of the same source in every run."""
    reasoning_gym: ReasoningGymSpec | None = None
    """Tasks made by a procedure instead of a file."""
    shuffle_seed: Seed | None = 0
    """Seed of the order, new in every pass over the data; null keeps the order of the file."""

    @field_validator("sources")
    @classmethod
    def _none_too_rare(cls, sources: list[SourceSpec] | None) -> list[SourceSpec] | None:
        total = sum(each.weight for each in sources or ())
        rare = next((each for each in sources or () if each.weight * MIXTURE_BLOCK < total), None)
        if rare is not None:  # stays in Python: CEL on Kubernetes would add up within its budget alone
            raise ValueError(
                f"the weight {rare.weight:g} of {rare.prompts} is less than a thousandth of all. Raise it, or leave the"
                " source out."
            )
        return sources


class DataSpec(PromptsSpec):
    """Exactly one of `prompts`, `sources` and `reasoningGym`."""

    prompt_key: str = Field(default="prompt", min_length=1, max_length=256)
    """Key of the prompt: a string, or a list of chat messages (needs a chat template)."""
    label_key: Annotated[str | None, AfterValidator(lambda key: key or None)] = Field(default="label", max_length=256)
    """Key of the label handed to the reward; empty or null: there is none. `kubectl apply` leaves null out."""
    source_key: str | None = Field(default=None, min_length=1, max_length=256)
    """Key of the name of where a line comes from, such as `algebra` in a mixture; it goes with every sample. Null: the
    name of the file, or of the dataset."""
    apply_chat_template: bool = False
    """Wrap string prompts as one user message of the tokenizer's chat template."""
    system_prompt: str | None = Field(default=None, min_length=1, max_length=65536)
    """The system's message before every chat that does not begin with one. Null: none."""
    chat_template: ChatTemplateSpec | None = None
    """Null: the tokenizer's own template, with the messages alone."""

    @property
    def files(self) -> tuple[PromptFile, ...]:
        """All of them; none with `reasoningGym`."""
        if self.prompts is not None:
            return (PromptFile("data.prompts", self.prompts, self.prompt_key, self.label_key),)
        return tuple(
            PromptFile(
                f"data.sources[{place}].prompts",
                each.prompts,
                each.prompt_key or self.prompt_key,
                each.label_key or self.label_key,
            )
            for place, each in enumerate(self.sources or ())
        )


def block_counts(weights: list[float]) -> list[int]:
    """How many prompts of each source a block has: exact where the weights come out even in at most MIXTURE_BLOCK.

    Else the block has MIXTURE_BLOCK, divided by largest remainders. Each has at least one (see `sources`).
    """
    exact = [Fraction(repr(weight)) for weight in weights]
    whole = [int(weight * lcm(*(each.denominator for each in exact))) for weight in exact]
    total = sum(whole)
    shares = [Fraction(each, total) for each in whole]
    even = lcm(*(share.denominator for share in shares))
    if even <= MIXTURE_BLOCK:
        return [int(share * even) for share in shares]
    quotas = [share * MIXTURE_BLOCK for share in shares]
    counts = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(quotas)), key=lambda place: (counts[place] - quotas[place], place))
    for place in by_remainder[: MIXTURE_BLOCK - sum(counts)]:
        counts[place] += 1
    return counts
