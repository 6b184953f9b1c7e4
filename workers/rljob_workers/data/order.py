"""The order of one pass over the data: a permutation that is computed and never stored. Pure.

A Feistel network over the smallest even number of bits that holds the indices, walked until it lands among them (Black
and Rogaway 2002, "Ciphers with arbitrary finite domains"). Where a prompt comes is thus a function of (seed, pass,
size) alone, the same in every process and with every version of a library, whatever the size.
"""

from __future__ import annotations

import struct

import xxhash

_NUM_ROUNDS = 6
"""Four suffice for a random-looking permutation of a large domain; small domains want more."""
_KEY = struct.Struct("<QQBQ")


def item_at(index: int, size: int, seed: int | None) -> int:
    """Which of `size` items comes at position `index` of the endless stream; every pass has an order of its own.

    Without a seed every pass is in the order of the data.
    """
    pass_number, position = divmod(index, size)
    return position if seed is None else shuffled_position(position, size, seed=seed, pass_number=pass_number)


def shuffled_position(position: int, size: int, *, seed: int, pass_number: int) -> int:
    """Which of `size` items comes at `position` (0 <= position < size) in this pass."""
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half_bits) - 1
    value = position
    while True:
        left, right = value >> half_bits, value & mask
        for number in range(_NUM_ROUNDS):
            left, right = right, left ^ (_round(seed, pass_number, number, right) & mask)
        value = left << half_bits | right
        if value < size:  # the walk is a cycle through `position`, so that it always comes back among the items
            return value


def _round(seed: int, pass_number: int, number: int, half: int) -> int:
    return xxhash.xxh3_64_intdigest(_KEY.pack(seed & (1 << 64) - 1, pass_number, number, half))
