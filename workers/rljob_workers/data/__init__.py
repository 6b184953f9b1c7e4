"""Where prompts come from. Used by the rollout role.

Never imports torch by itself. Which source a spec means is decided here, once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rljob_workers.data.prompts import Prompt, PromptSource

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rljob_api.spec.data import DataSpec

__all__ = ["Prompt", "PromptSource", "build_prompt_source"]


def build_prompt_source(spec: DataSpec, tokenizer: PreTrainedTokenizerBase) -> PromptSource:
    """The source that `spec` means; ValueError (a sentence) where it cannot be."""
    from rljob_workers.data.prompts import PromptEncoder
    from rljob_workers.models.tokenizers import encode_prompt  # transformers: not for a check of a manifest

    encoder = PromptEncoder(spec, partial(encode_prompt, tokenizer))
    if spec.reasoning_gym is not None:
        from rljob_workers.data.procedural import ReasoningGymPrompts

        return ReasoningGymPrompts(spec, encoder)
    from rljob_workers.data.jsonl import JsonlPrompts

    return JsonlPrompts(spec, encoder)
