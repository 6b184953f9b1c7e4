"""The first tokens of a text of any length, at a cost that depends on how many are wanted and how long they are.

For rollout functions, whose tools return megabytes. Pure but for the tokenizer's own work, which holds no GIL.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Encoding, Tokenizer

CHARACTERS_PER_TOKEN = 8
"""Read at first for each token that is wanted, about twice what texts have."""


LEAST_CHARACTERS = 4096
"""Texts up to here are read as a whole."""


MORE_READ = 4
"""So many times as much is read where a read had too few tokens, or where the first one did not settle them: there is
no piece that ends."""


UNSETTLED_PIECES = 4
"""Pieces of the pre-tokenizer before a cut that may be others in the whole text. Expressions of known tokenizers look
ahead over one run of white space, and divide it into three pieces at most."""


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Tokens of a text's beginning."""

    token_ids: list[int]
    characters_left: int
    """At the text's end, of which none of them is."""


def first_tokens(backend: Tokenizer, text: str, most: int) -> FirstTokens:
    """At most `most` tokens of `text`, those that the whole text begins with.

    Tokens never cross pieces, and a piece that ends well before the cut is the same in the whole text. Only inside of
    one piece that goes on over the whole read (a tokenizer without pre-tokenizer, a run of one kind of character) the
    last tokens may be others than those of the whole text; a megabyte is not read for them.
    """
    first = max(LEAST_CHARACTERS, CHARACTERS_PER_TOKEN * most)
    read = first
    while True:
        encoding = backend.encode(text[:read], add_special_tokens=False)
        are_enough = len(encoding.ids) >= most and read > first
        if read >= len(text) or _num_settled(encoding) >= most or are_enough:
            break
        read *= MORE_READ
    ids = encoding.ids[:most]
    if len(ids) == len(encoding.ids) and read >= len(text):
        return FirstTokens(ids, 0)
    end = encoding.offsets[len(ids) - 1][1] if ids else 0
    return FirstTokens(ids, len(text) - end)


def _num_settled(encoding: Encoding) -> int:
    """Tokens before the last pieces."""
    pieces = encoding.word_ids
    last = next((piece for piece in reversed(pieces) if piece is not None), 0)
    return sum(1 for piece in pieces if piece is not None and piece <= last - UNSETTLED_PIECES)
