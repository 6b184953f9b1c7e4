"""Tensors as safetensors bytes: the pieces of a file, and a whole blob in anonymous memory.

For the publisher, which serves memory, and the checkpoint store, which writes files; both need the bytes once, in
order, to checksum them on the way.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash

CHECKSUM_BYTES = 8


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
class StagedPart:
    """A whole part of a weight behind a file descriptor that its owner closes: a `ChunkServer` once it serves it."""

    descriptor: int
    num_bytes: int
    chunk_bytes: int
    checksums: bytes
    """xxh3-64, big-endian, of all chunks, one after the other."""


def stage_part(name: str, tensors: Mapping[str, torch.Tensor], chunk_bytes: int) -> StagedPart:
    """Writes tensors (on the host) as safetensors into anonymous memory."""
    pieces = list(safetensors_pieces(tensors))
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        # Written and not mapped: a page fault for every page costs twice the copy.
        for piece in pieces:
            write_whole(descriptor, piece)
        checksums = b"".join(chunk_checksums(pieces, chunk_bytes))
        return StagedPart(descriptor, sum(len(piece) for piece in pieces), chunk_bytes, checksums)
    except BaseException:
        os.close(descriptor)
        raise


def write_whole(descriptor: int, data: memoryview) -> None:
    """Writes all of it at the descriptor's position: one call takes at most 2 GiB."""
    while len(data) > 0:
        data = data[os.write(descriptor, data) :]


def chunk_checksums(pieces: Iterable[memoryview], chunk_bytes: int) -> Iterator[bytes]:
    """xxh3-64 of every chunk of what the pieces are together."""
    digest, room = xxhash.xxh3_64(), chunk_bytes
    for piece in pieces:
        rest = piece
        while len(rest) > 0:
            taken, rest = rest[:room], rest[room:]
            digest.update(taken)
            room -= len(taken)
            if room == 0:
                yield digest.digest()
                digest, room = xxhash.xxh3_64(), chunk_bytes
    if room < chunk_bytes:
        yield digest.digest()


def safetensors_pieces(tensors: Mapping[str, torch.Tensor]) -> Iterator[memoryview]:
    """The bytes of a safetensors file: its header, then every tensor."""
    yield from streamed_pieces(tensors, tensors.values())


def streamed_pieces(described: Mapping[str, torch.Tensor], tensors: Iterable[torch.Tensor]) -> Iterator[memoryview]:
    """The same of tensors that are made one by one; `described` has their shapes and types, in their order.

    It may have them on the meta device. A tensor is used until the piece after its own is asked for.
    """
    yield memoryview(_header(described))
    for tensor in tensors:
        flat = tensor.detach().contiguous().reshape(-1)
        if flat.numel() > 0:
            yield flat.view(torch.uint8).numpy().data


def checksum(data: memoryview) -> bytes:
    """xxh3-64, big-endian: CHECKSUM_BYTES."""
    return xxhash.xxh3_64_digest(data)


def digest_of(checksums: bytes) -> str:
    """xxh3-128, hex, of the checksums of all chunks: what a blob is known by."""
    return xxhash.xxh3_128_hexdigest(checksums)


def tensor_names(path: Path) -> list[str]:
    """The tensors of a safetensors file, by its header."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return [name for name in header if name != "__metadata__"]


def index_of_parts(folder: Path, files: Iterable[str], total_size: int | None = None) -> str:
    """`model.safetensors.index.json` of a folder with these files: which tensor is in which."""
    metadata = {} if total_size is None else {"total_size": total_size}
    weight_map = {name: file for file in files for name in tensor_names(folder / file)}
    return json.dumps({"metadata": metadata, "weight_map": weight_map})


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
