"""The package `sgl_kernel`, as far as SGLang needs it on a CPU without AMX. Read by `serving` only.

At import SGLang takes some functions `*_cpu` from it that no dense decoder calls (speculative decoding, moved cache
blocks). All else it asks for only where the CPU has AMX; elsewhere it computes with plain torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import torch

_MASK_32 = 0xFFFFFFFF


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if not name.endswith("_cpu"):
        raise AttributeError(name)

    def absent(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in on this CPU. Run SGLang on a GPU.")

    return absent


def murmur_hash32(seed: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """MurmurHash3 (32 bit) of the parts (seed's low, seed's high, position, column): [rows, columns], below 2**32.

    `seed` and `positions` are [rows]. It is where `sampling_seed` takes its chance from.
    """
    rows = seed.to(torch.int64)[:, None]
    parts = (
        rows & _MASK_32,
        (rows >> 32) & _MASK_32,
        positions.to(torch.int64)[:, None] & _MASK_32,
        columns.to(torch.int64),
    )
    hashed = torch.zeros((), dtype=torch.int64)
    for part in parts:  # products overflow 64 bits, but their low 32 bits stay right
        mixed = _rotate((part * 0xCC9E2D51) & _MASK_32, 15) * 0x1B873593
        hashed = (_rotate(hashed ^ (mixed & _MASK_32), 13) * 5 + 0xE6546B64) & _MASK_32
    hashed = hashed ^ (4 * len(parts))
    hashed = ((hashed ^ (hashed >> 16)) * 0x85EBCA6B) & _MASK_32
    hashed = ((hashed ^ (hashed >> 13)) * 0xC2B2AE35) & _MASK_32
    return hashed ^ (hashed >> 16)


def _rotate(part: torch.Tensor, bits: int) -> torch.Tensor:
    return ((part << bits) | (part >> (32 - bits))) & _MASK_32


_OPERATORS = torch.library.Library("sgl_kernel", "FRAGMENT")  # type: ignore[no-untyped-call]
_OPERATORS.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor columns) -> Tensor")  # type: ignore[no-untyped-call]
_OPERATORS.impl("murmur_hash32_cpu", murmur_hash32, "CPU")  # type: ignore[no-untyped-call]
