"""The tokens that end an answer of a job's policy, and generation_config.json, which says so to others.

For the engines' servers and for what is saved beside weights. The rule is `rljob_api.model_files.ends`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api.model_files.ends import ALWAYS_END, end_tokens, generation_config, saved_generation_config
from rljob_workers.models.building import described_config

if TYPE_CHECKING:
    from collections.abc import Collection

    from transformers import PreTrainedTokenizerBase

    from rljob_api.spec.model import ModelSpec


def ends_of_model(model: ModelSpec, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ends that its files and tokenizer name. ValueError, a sentence, where a file names something that is no token."""
    added = tokenizer.get_added_vocab()
    own = frozenset({tokenizer.eos_token_id, *(added[text] for text in ALWAYS_END if text in added)})
    return end_tokens(described_config(model, tokenizer), _folder_of(model), own).all


def engine_generation_config(model: ModelSpec, tokenizer: PreTrainedTokenizerBase) -> bytes:
    """For an engine that reads its model's folder: the ends, and no default of sampling, which the job alone says."""
    return saved_generation_config({}, ends_of_model(model, tokenizer))


def policy_generation_config(
    model: ModelSpec, tokenizer: PreTrainedTokenizerBase, stop_token_ids: Collection[int]
) -> bytes:
    """Beside a job's weights: what the model's own says, with all ends that the job has, those it sampled with too."""
    folder = _folder_of(model)
    given = {} if folder is None else generation_config(folder)
    return saved_generation_config(given, ends_of_model(model, tokenizer) | frozenset(stop_token_ids))


def _folder_of(model: ModelSpec) -> Path | None:
    return None if model.path is None else Path(model.path)
