"""Texts that end a sample, found in the text of its last tokens, as SGLang finds them.

Made by the dialect, asked by the scheduler after each token. SGLang reads one token more than the longest text has, and
so does this: a text that is drawn in more tokens than the tokenizer makes of it is not found by either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rljob_workers.models.tokenizers import TextDecoder, text_decoder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, eq=False)
class StopTexts:
    """Texts that end the samples of one group."""

    texts: tuple[str, ...]
    window: int
    """Last tokens of a sample that are read."""
    decode: TextDecoder
    """Special tokens are written out, so that a text may be one."""

    @classmethod
    def of(cls, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> StopTexts | None:
        """None where there are none."""
        if not texts:
            return None
        longest = max(len(tokenizer.encode(text, add_special_tokens=False)) for text in texts)
        return cls(tuple(texts), longest + 1, text_decoder(tokenizer, skip_special_tokens=False))

    def found(self, samples: Sequence[Sequence[int]]) -> list[str | None]:
        """The first of the texts that ends each sample, by its last tokens."""
        tails = self.decode([sample[-self.window :] for sample in samples])
        return [next((text for text in self.texts if text in tail), None) for tail in tails]
