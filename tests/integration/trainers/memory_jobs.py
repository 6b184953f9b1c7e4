"""Jobs whose trainers' memory is measured: both backends, both types, activations kept and computed again."""

from __future__ import annotations

from typing import Any

from rljob_api.spec import RLJobSpec

ROWS, PROMPT_TOKENS, RESPONSE_TOKENS = 16, 33, 32
"""Of one micro-batch, on each rank."""

JOBS: dict[str, tuple[str, str, bool | None]] = {
    "Flat, float32": ("Flat", "float32", None),
    "Flat, bfloat16": ("Flat", "bfloat16", None),
    "Fsdp, float32": ("Fsdp", "float32", None),
    "Fsdp, bfloat16": ("Fsdp", "bfloat16", None),
    "Fsdp, float32, activations kept": ("Fsdp", "float32", False),
}
"""Name -> backend, dtype, activationCheckpointing."""

_SPEC: dict[str, Any] = {
    "data": {"prompts": "prompts.jsonl"},
    "rollout": {
        "numRollouts": 1,
        "batchSize": 2,
        "samplesPerPrompt": 16,
        "sampling": {"maxNewTokens": RESPONSE_TOKENS},
    },
    "training": {"globalBatchSize": 32, "microBatchSize": ROWS},
}
_MODEL = {
    "hiddenSize": 64,
    "intermediateSize": 192,
    "numLayers": 3,
    "headDim": 16,
    "vocabSize": 256,
    "tokenizer": {"alphabet": "0123456789="},
}


def job_of(name: str) -> RLJobSpec:
    """A job of the table above."""
    backend, dtype, checkpointing = JOBS[name]
    training = {**_SPEC["training"], "activationCheckpointing": checkpointing}
    roles = {"actor": {"backend": backend}, "critic": {}}
    model = {"dtype": dtype, "config": _MODEL}
    algorithm = {"advantage": "Gae"}
    return RLJobSpec.model_validate(
        {**_SPEC, "model": model, "algorithm": algorithm, "training": training, "roles": roles}
    )
