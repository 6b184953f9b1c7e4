"""Where prompts come from. Used by the rollout role.

Never imports torch by itself. Which source a spec means is decided here, once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rljob_workers.data.prompts import Prompt, PromptSource, RowSource

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rljob_api.spec.data import DataSpec

__all__ = ["Prompt", "PromptSource", "RowSource", "build_prompt_source"]


def build_prompt_source(spec: DataSpec, tokenizer: PreTrainedTokenizerBase) -> RowSource:
    """The source that `spec` means; ValueError (a sentence) where it cannot be."""
    from rljob_workers.data.prompts import PromptEncoder
    from rljob_workers.models.chat_templates import chat_template_of
    from rljob_workers.models.tokenizers import encode_prompt  # transformers: not for a check of a manifest

    template = chat_template_of(spec.chat_template, tokenizer)
    encoder = PromptEncoder(spec, partial(encode_prompt, tokenizer, template=template))
    if spec.reasoning_gym is not None:
        from rljob_workers.data.procedural import ReasoningGymPrompts

        return ReasoningGymPrompts(spec, encoder)
    from rljob_workers.data.rows import FilePrompts

    files = [FilePrompts(spec, file, encoder) for file in spec.files]
    if spec.sources is None:
        return files[0]
    from rljob_workers.data.mixture import MixedPrompts, Mixing

    return MixedPrompts(files, Mixing([each.weight for each in spec.sources], spec.shuffle_seed))
