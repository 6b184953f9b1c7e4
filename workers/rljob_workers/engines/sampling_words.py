"""Sampling parameters in the words of SGLang's dialect, which both kinds of engine are asked in. Pure.

Read by the clients. How many samples a request has, and their seed, each says in its own way.
"""

from __future__ import annotations

from typing import Any

from rljob_workers.engines.base import SamplingParams


def sampling_words(params: SamplingParams) -> dict[str, Any]:
    """Everything is said, so that no default of the server's or of its model's counts."""
    return {
        "max_new_tokens": params.max_new_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k or -1,
        "stop_token_ids": list(params.stop_token_ids),
        "stop": list(params.stop),
    }
