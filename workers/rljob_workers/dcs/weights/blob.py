"""A weight as one safetensors blob: laid out in memory, checksummed in chunks.

Called by the publisher. The header is written here, because the blob is written once, in place, into memory that is
then served.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
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
    header, sizes = _header(tensors)
    num_bytes = len(header) + sum(sizes)
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        os.truncate(descriptor, num_bytes)
        with mmap.mmap(descriptor, num_bytes) as memory:
            _fill(memory, header, tensors)
            return Blob(descriptor, num_bytes, chunk_bytes, chunk_checksums(memory, chunk_bytes))
    except BaseException:
        os.close(descriptor)
        raise


def chunk_checksums(memory: mmap.mmap, chunk_bytes: int) -> tuple[str, ...]:
    """xxh3-64 of every chunk."""
    with memoryview(memory) as view:
        starts = range(0, len(view), chunk_bytes)
        return tuple(checksum(view[start : start + chunk_bytes]) for start in starts)


def checksum(data: memoryview) -> str:
    """xxh3-64, hex."""
    return xxhash.xxh3_64_hexdigest(data)


def _header(tensors: Mapping[str, torch.Tensor]) -> tuple[bytes, list[int]]:
    """Length (8 bytes, little-endian) and JSON, padded so that the data begins aligned; sizes in order."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    sizes: list[int] = []
    offset = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            raise ValueError(f"tensor {name}: dtype {tensor.dtype} has no safetensors name. Stage it as another dtype.")
        size = tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        sizes.append(size)
        offset += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text, sizes


def _fill(memory: mmap.mmap, header: bytes, tensors: Mapping[str, torch.Tensor]) -> None:
    with memoryview(memory) as view:
        view[: len(header)] = header
        offset = len(header)
        for tensor in tensors.values():
            flat = tensor.detach().contiguous().reshape(-1)
            if flat.numel() == 0:
                continue
            data = memoryview(flat.view(torch.uint8).numpy())
            view[offset : offset + len(data)] = data
            offset += len(data)
