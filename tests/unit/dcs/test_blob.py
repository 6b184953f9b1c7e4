from __future__ import annotations

import os

import pytest
import torch
import xxhash
from safetensors.torch import load

from rljob_workers.dcs.tensor_bytes import safetensors_pieces, stage_part
from rljob_workers.models.blob import is_part_of_several, part_file

TENSORS = {
    "float32": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "bfloat16": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "transposed": torch.arange(6, dtype=torch.int64).reshape(2, 3).t(),
    "scalar": torch.tensor(7, dtype=torch.int32),
    "bool": torch.tensor([True, False]),
    "empty": torch.zeros(0, 3),
}


def test_the_pieces_are_what_safetensors_reads() -> None:
    found = load(b"".join(bytes(piece) for piece in safetensors_pieces(TENSORS)))
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("chunk_bytes", [1, 7, 64, 1 << 20])
def test_a_staged_blob_has_a_checksum_for_every_chunk(chunk_bytes: int) -> None:
    blob = stage_part("test", TENSORS, chunk_bytes)
    try:
        content = os.pread(blob.descriptor, blob.num_bytes + 1, 0)
    finally:
        os.close(blob.descriptor)
    assert len(content) == blob.num_bytes
    assert b"".join(bytes(piece) for piece in safetensors_pieces(TENSORS)) == content
    chunks = [content[start : start + chunk_bytes] for start in range(0, len(content), chunk_bytes)]
    assert blob.checksums == b"".join(xxhash.xxh3_64_digest(chunk) for chunk in chunks)


def test_a_dtype_without_a_name_is_refused_with_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"tensor odd: dtype torch\.complex64 has no safetensors name"):
        list(safetensors_pieces({"odd": torch.zeros(2, dtype=torch.complex64)}))


@pytest.mark.parametrize(
    ("file", "is_part"),
    [
        (part_file(0, 1), False),
        (part_file(1, 2), True),
        ("critic-00000.safetensors", False),
        ("model.safetensors.index.json", False),
    ],
)
def test_a_part_of_several_is_known_by_its_name(file: str, is_part: bool) -> None:
    assert is_part_of_several(file) is is_part
