"""The tokens that end an answer: one rule for both engines, what is saved beside weights, and checks of a manifest.

They are those that config.json, generation_config.json and the tokenizer name, and the job's own (`stopTokenIds`),
which come with each request. A token that pads ends nothing unless one of these names it. Reads files, no tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GENERATION_FILE = "generation_config.json"


ALWAYS_END = ("<|eom_id|>", "<|content_model_end_sampling|>", "<|ifm|im_end|>")
"""Added tokens at which SGLang ends an answer of any model whose tokenizer has them, whatever its files name."""


_DEFAULTS = {"llama": 2, "mistral": 2, "mixtral": 2, "gemma2": 1, "gemma3_text": 1, "phi3": 32000}
"""Values that transformers takes for eos_token_id where the config.json of a family is silent; null is no silence."""


@dataclass(frozen=True, slots=True)
class EndTokens:
    """The tokens that end an answer, by what names them."""

    of_config: frozenset[int]
    of_generation: frozenset[int]
    """Named by generation_config.json."""
    of_tokenizer: frozenset[int]

    @property
    def all(self) -> frozenset[int]:
        """All together."""
        return self.of_config | self.of_generation | self.of_tokenizer


def end_tokens(described: Mapping[str, Any], folder: Path | None, of_tokenizer: frozenset[int]) -> EndTokens:
    """Ends in a config.json, in its folder, and of a tokenizer. A folder of None: the model is made, and has none.

    ValueError, a sentence, for a file that cannot be read or names something that is no token.
    """
    given = {} if folder is None else generation_config(folder)
    return EndTokens(_ends_in_config(described), _token_ids(given.get("eos_token_id"), GENERATION_FILE), of_tokenizer)


def generation_config(folder: Path) -> dict[str, Any]:
    """The object in generation_config.json; empty where there is none. ValueError where it is no JSON object."""
    file = folder / GENERATION_FILE
    if not file.is_file():
        return {}
    try:
        described = json.loads(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"model.path: {file} is not whole JSON ({error}). Copy it again, or remove it.") from error
    if not isinstance(described, dict):
        raise ValueError(f"model.path: {file} is no JSON object. Copy it again, or remove it.")
    return described


def saved_generation_config(given: Mapping[str, Any], ends: frozenset[int]) -> bytes:
    """A generation_config.json that says what is `given`, and which tokens end an answer."""
    numbers = sorted(ends)
    named = {"eos_token_id": numbers[0] if len(numbers) == 1 else numbers} if numbers else {}
    return (json.dumps({**given, **named}, indent=2) + "\n").encode()


def _ends_in_config(described: Mapping[str, Any]) -> frozenset[int]:
    """Ends that the whole names and, where a text model is nested in it, that one."""
    inner = described.get("text_config")
    parts = (described, inner) if isinstance(inner, Mapping) else (described,)
    return frozenset().union(*(_named_in(part) for part in parts))


def _named_in(fields: Mapping[str, Any]) -> frozenset[int]:
    family = fields.get("model_type")
    default = _DEFAULTS.get(family) if isinstance(family, str) else None
    return _token_ids(fields.get("eos_token_id", default), "config.json")


def _token_ids(given: object, file: str) -> frozenset[int]:
    ids = given if isinstance(given, list) else [] if given is None else [given]
    if any(type(token) is not int or token < 0 for token in ids):
        raise ValueError(
            f"model.path: its {file} has eos_token_id {given!r}, which must be the number of a token, a list of such"
            " or null. Give the file that belongs to the weights."
        )
    return frozenset(ids)
