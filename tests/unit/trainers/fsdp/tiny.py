"""Tiny random models of every family, as Hugging Face folders, and rows for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rljob_workers.tensors.jagged import Jagged

VOCABULARY = 61

_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": None,
}
_ALTERNATING = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}

MODELS: Mapping[str, Mapping[str, Any]] = {
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "tie_word_embeddings": True},
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 12,
        "norm_topk_prob": True,
        "tie_word_embeddings": False,
    },
    "llama": {
        "model_type": "llama",
        "tie_word_embeddings": False,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    "mistral": {"model_type": "mistral", "sliding_window": 5, "tie_word_embeddings": False},
    "gemma2": {
        "model_type": "gemma2",
        "query_pre_attn_scalar": 8,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 4.0,
        **_ALTERNATING,
    },
    "gemma3_text": {"model_type": "gemma3_text", "query_pre_attn_scalar": 8, **_ALTERNATING},
}
"""By the family's name. Windows are shorter than rows, experts do not divide by ranks."""

OTHERS: Mapping[str, Mapping[str, Any]] = {
    "granite": {
        "model_type": "granite",
        "logits_scaling": 3.0,
        "embedding_multiplier": 2.0,
        "tie_word_embeddings": True,
    },
    "gpt_neox": {"model_type": "gpt_neox", "hidden_dropout": 0.3, "attention_dropout": 0.3},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 5, "num_experts_per_tok": 2},
    "gpt_oss": {
        "model_type": "gpt_oss",
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        **_ALTERNATING,
    },
    "bloom": {"model_type": "bloom", "n_layer": 2, "n_head": 4, "hidden_dropout": 0.3, "attention_dropout": 0.3},
}
"""What is not in the table. What stands between their hidden states and their logits is their own affair; Bloom adds to
scores by distance, gpt_oss has sinks, and three of them are stored under other names than they have in memory."""


def described(name: str) -> dict[str, Any]:
    return {**_COMMON, **{**MODELS, **OTHERS}[name]}


def save_model(name: str, folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """A random model as transformers saves it."""
    return save_described(described(name), folder, dtype)


def save_described(fields: Mapping[str, Any], folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """A random model of a config.json."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    torch.manual_seed(5)
    config = CONFIG_MAPPING[fields["model_type"]].from_dict(dict(fields))
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms are 1 or 0 at first, which would hide one that is not loaded
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.to(dtype).save_pretrained(folder)
    return folder


def make_tokens(seed: int = 0, rows: int = 7, longest: int = 23) -> tuple[Jagged, torch.Tensor]:
    """Rows of uneven length, and how long their responses are. The first has a prompt and a response of one token."""
    chance = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, longest, (rows,), generator=chance)
    lengths[0] = 2
    responses = torch.maximum(torch.ones(rows, dtype=torch.int64), lengths * 2 // 3)
    tokens = [torch.randint(0, VOCABULARY, (int(length),), generator=chance, dtype=torch.int32) for length in lengths]
    return Jagged.from_rows(tokens), responses


def row_by_row(model: Any, tokens: Jagged, responses: torch.Tensor, temperature: float) -> torch.Tensor:
    """Log-probs by transformers alone: each row in a forward pass of its own, all its logits at once."""
    parts = []
    for row, response in zip(tokens.rows(), responses.tolist(), strict=True):
        logits = model(input_ids=row[None].long(), use_cache=False).logits[0, :-1]
        wide = torch.promote_types(logits.dtype, torch.float32)
        log_probs = torch.log_softmax(logits.to(wide) / temperature, -1)
        parts.append(log_probs.gather(1, row[1:, None].long())[-response:, 0])
    return torch.cat(parts)
