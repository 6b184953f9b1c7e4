"""Tensors as safetensors bytes: the pieces of a file, and a whole blob in anonymous memory.

For the publisher, which serves memory, and the checkpoint store, which writes files; both need the bytes once, in
order, to checksum them on the way.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
import xxhash

_ALIGNMENT = 8
_DTYPES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True, slots=True)
class Blob:
    """A whole weight behind a file descriptor that its owner closes."""

    descriptor: int
    num_bytes: int
    chunk_bytes: int
    checksums: tuple[str, ...]
    """xxh3-64, hex, one per chunk."""


def stage_blob(name: str, tensors: Mapping[str, torch.Tensor], chunk_bytes: int) -> Blob:
    """Writes tensors (on the host) as safetensors into anonymous memory."""
    pieces = list(safetensors_pieces(tensors))
    num_bytes = sum(len(piece) for piece in pieces)
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        os.truncate(descriptor, num_bytes)
        with mmap.mmap(descriptor, num_bytes) as memory, memoryview(memory) as view:
            offset = 0
            for piece in pieces:
                view[offset : offset + len(piece)] = piece
                offset += len(piece)
            starts = range(0, num_bytes, chunk_bytes)
            checksums = tuple(checksum(view[start : start + chunk_bytes]) for start in starts)
        return Blob(descriptor, num_bytes, chunk_bytes, checksums)
    except BaseException:
        os.close(descriptor)
        raise


def safetensors_pieces(tensors: Mapping[str, torch.Tensor]) -> Iterator[memoryview]:
    """The bytes of a safetensors file: its header, then every tensor."""
    yield memoryview(_header(tensors))
    for tensor in tensors.values():
        flat = tensor.detach().contiguous().reshape(-1)
        if flat.numel() > 0:
            yield flat.view(torch.uint8).numpy().data


def checksum(data: memoryview) -> str:
    """xxh3-64, hex."""
    return xxhash.xxh3_64_hexdigest(data)


def _header(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Length (8 bytes, little-endian) and JSON, padded so that the data begins aligned."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            raise ValueError(f"tensor {name}: dtype {tensor.dtype} has no safetensors name. Stage it as another dtype.")
        end = offset + tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
