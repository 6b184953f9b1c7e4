"""The value head of a critic: its tensor, its first values, and the folder of a model that has one.

For the trainers' factories, and for who saves a critic. A critic is a policy's backbone with the tensor `score.weight`
[1, hidden size] in the place of the language head: transformers' `...ForSequenceClassification` with one label, so that
the folder of a reward model is one of a critic, and the other way round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rljob_workers.models.building import (
    EMBEDDING,
    HEAD,
    check_shapes,
    described_config,
    saved_files,
    stored_weights,
    tensor_shapes,
    torch_dtype,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from transformers import PreTrainedTokenizerBase

    from rljob_api.model_files.decoder_config import DecoderConfig
    from rljob_api.spec.model import ModelSpec

VALUE_HEAD = "score.weight"


def critic_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor of a critic."""
    backbone = {name: shape for name, shape in tensor_shapes(config).items() if name != HEAD}
    return {**backbone, VALUE_HEAD: (1, config.hidden_size)}


def check_critic_fit(state: Mapping[str, torch.Tensor], config: DecoderConfig, *, source: str) -> None:
    """ValueError that names the first tensor that differs, with both shapes. A language head may be there."""
    wanted = critic_shapes(config)
    check_shapes(state, wanted, {HEAD: wanted[EMBEDDING]}, source=source)


def new_value_head(width: int) -> dict[str, torch.Tensor]:
    """The head that nothing was learnt in, of a backbone of that hidden size: zeros, float32.

    Every value is 0 then, so that the first advantages are those of the returns alone. A head that is drawn (a normal
    distribution of deviation 1 / sqrt(width + 1) is common) says of each state something of the size of the returns
    that means nothing, and it is subtracted from them. Zeros keep nothing from learning: a hidden state is not 0, so
    that the first step moves the head and the second one all that is below. They are also the same on every rank.
    """
    return {VALUE_HEAD: torch.zeros(1, width)}


def require_value_head(folder: Path) -> None:
    """ValueError, with the cure, where a folder of weights is not that of a model with one value for each token."""
    stored = stored_weights(folder)
    if VALUE_HEAD not in stored:
        raise ValueError(
            f"critic: {folder} has no tensor {VALUE_HEAD}, so that it is no reward model. Give the folder of a"
            " ...ForSequenceClassification with num_labels 1, or none: then the critic begins as the policy with a new"
            " head."
        )
    labels = stored[VALUE_HEAD].shape[0]
    if labels != 1:
        raise ValueError(
            f"critic: {VALUE_HEAD} in {folder} has {labels} labels, but a state has one value. Give a reward model with"
            " num_labels 1."
        )


def critic_files(model: ModelSpec, tokenizer: PreTrainedTokenizerBase) -> dict[str, bytes]:
    """What is saved beside the weights of a critic whose backbone is `model`, so that transformers loads the folder.

    config.json says that it is a ...ForSequenceClassification with one label; and the tokenizer's files.
    """
    described = described_config(model, tokenizer)
    labels = {"num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    described = {**described, **labels, "architectures": [_class_name(described)]}
    return saved_files(described, torch_dtype(model.dtype), tokenizer)


def _class_name(described: Mapping[str, Any]) -> str:
    """The class of transformers with a value head, of the family of a config.json; a likely one where it has none."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    )

    kind = described.get("model_type", "")
    known: str | None = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.get(kind)
    family = str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind, kind)).removesuffix("ForCausalLM")
    return known or f"{family}ForSequenceClassification"
