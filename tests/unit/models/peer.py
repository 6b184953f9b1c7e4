"""transformers' own model of a config: what ours is compared with. Its modeling code is for tests alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rljob_api.model_files.decoder_config import DecoderConfig, read_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


def peer_of(config: DecoderConfig, state: Mapping[str, torch.Tensor]) -> PreTrainedModel:
    """In eval mode, with copies of the weights `state`, in their dtype."""
    made = AutoConfig.for_model(**config.described)
    dtype = state["model.embed_tokens.weight"].dtype
    model: PreTrainedModel = AutoModelForCausalLM.from_config(made, dtype=dtype)  # type: ignore[no-untyped-call]
    missing, unexpected = model.load_state_dict(dict(state), strict=False)
    assert not unexpected
    assert missing == (["lm_head.weight"] if config.tie_word_embeddings else [])
    model.train(mode=False)
    return model


def config_of(model: PreTrainedModel) -> DecoderConfig:
    """Ours, of a model of transformers."""
    return read_config(model.config.to_dict())


def state_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The model's own tensors (not copies) without a head that is tied."""
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    return {name: tensor for name, tensor in model.state_dict().items() if name not in tied}
