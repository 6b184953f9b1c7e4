"""The prompts of a job (`spec.data`): fields and rules. Anyone may import it. Reads no file."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from rljob_api.base import ApiModel
from rljob_api.rule import Rule, RuledModel
from rljob_api.spec.model import Seed

DATA: tuple[Rule, ...] = (
    Rule(
        field="prompts",
        holds=lambda data: (data.prompts is None) != (data.reasoning_gym is None),
        sentence="exactly one of prompts and reasoningGym must be given. Give prompts for a JSONL file, or "
        "reasoningGym for procedural tasks.",
        cel="has(self.prompts) != has(self.reasoningGym)",
    ),
    Rule(
        field="sourceKey",
        holds=lambda data: data.source_key is None or data.reasoning_gym is None,
        sentence="names a key of the lines of prompts, and tasks of reasoningGym have none. Remove sourceKey.",
        cel="!has(self.sourceKey) || !has(self.reasoningGym)",
    ),
)


MAX_SOURCE_CHARACTERS = 128
"""Of the name under sourceKey."""


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
    source_key: str | None = Field(default=None, min_length=1, max_length=256)
    """Key of the name of where a line comes from, such as `algebra` in a mixture; it goes with every sample. Null: the
    name of the file, or of the dataset."""
    reasoning_gym: ReasoningGymSpec | None = None
    """Tasks made by a procedure instead of a file."""
    shuffle_seed: Seed | None = 0
    """Seed of the order, new in every pass over the data; null keeps the order of the file."""
    apply_chat_template: bool = False
    """Wrap string prompts as one user message of the tokenizer's chat template."""
