"""What stands in for SGLang's compiled kernels, against a plain MurmurHash3."""

import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.engines.sglang.cpu import sgl_kernel


def murmur3(data: bytes) -> int:
    """MurmurHash3_x86_32 with seed 0 of whole words, as its author published it."""
    h = 0
    for (k,) in struct.iter_unpack("<I", data):
        k = k * 0xCC9E2D51 & 0xFFFFFFFF
        k = (k << 15 | k >> 17) & 0xFFFFFFFF
        h ^= k * 0x1B873593 & 0xFFFFFFFF
        h = (h << 13 | h >> 19) & 0xFFFFFFFF
        h = h * 5 + 0xE6546B64 & 0xFFFFFFFF
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return h ^ h >> 16


def test_the_plain_one_is_murmur3() -> None:
    assert murmur3(b"abcd") == 0x43ED676A
    assert murmur3(b"") == 0


@given(seed=st.integers(0, 2**63 - 1), position=st.integers(0, 2**31), column=st.integers(0, 300_000))
def test_the_hash_behind_seeds_is_murmur3_of_seed_position_and_column(seed: int, position: int, column: int) -> None:
    found = sgl_kernel.murmur_hash32(torch.tensor([seed]), torch.tensor([position]), torch.tensor([column]))
    assert found.tolist() == [[murmur3(struct.pack("<QII", seed, position, column))]]


def test_a_kernel_that_is_called_all_the_same_states_that_it_is_absent() -> None:
    with pytest.raises(NotImplementedError, match=r"sgl_kernel\.gelu_cpu has no stand-in on this CPU"):
        sgl_kernel.gelu_cpu()
