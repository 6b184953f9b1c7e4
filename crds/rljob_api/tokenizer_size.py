"""How many tokens the tokenizer of a model made from a config has, without building it.

Pure, for the API's cross-field rules and for `rljob_workers.models`. Imports nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the spec's own rules ask this module
    from rljob_api.spec import TokenizerConfig

PRINTABLE_ASCII = "".join(chr(code) for code in range(0x20, 0x7F)) + "\n"
"""The default alphabet: printable ASCII and the newline, without which no multi-line prompt could be written."""

SPECIAL_TOKENS = ("<|eos|>", "<|pad|>")
"""End of sequence and padding, in the order of their ids, which follow those of the characters or bytes."""

NUM_BYTES = 256


def alphabet_of(config: TokenizerConfig) -> str:
    """The characters of a Character tokenizer in the order of their ids (the spec's rules: none of them twice)."""
    return PRINTABLE_ASCII if config.alphabet is None else config.alphabet


def tokenizer_size(config: TokenizerConfig) -> int:
    """Number of ids, special tokens included."""
    characters = NUM_BYTES if config.kind == "Byte" else len(alphabet_of(config))
    return characters + len(SPECIAL_TOKENS)
