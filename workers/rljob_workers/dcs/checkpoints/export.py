"""A role's model in a record as a Hugging Face folder, in a type of choice: tensor by tensor, whatever wrote it.

For `checkpoints.command`. A record has the weights as they were published and, where these are rounded, the exact ones
as float32 slices in the state of its ranks:

    model = RecordedWeights(folder, role, dtype)                    # files are mapped, nothing is read
    write_folder(model, model.describing_files(), to, on_write)     # beside, then renamed

A tensor that was published in the wanted type is taken as it is. Any other one is made of the exact weights where the
record has them, which rounds once, and converted from the published ones where it has none. So what is held in memory
is one tensor, in float32 and as it is written; mapped pages go when someone needs the memory.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from enum import Enum, auto
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from rljob_api.names import Role
from rljob_api.roles import VALUE_ROLE
from rljob_api.wire.checkpoint_report import ExportDtype
from rljob_workers.dcs.checkpoints.description import described_model, weight_files
from rljob_workers.dcs.checkpoints.on_disk import (
    CHECKSUMS_FILE,
    RECORDED_MARK,
    REFERENCE_PATTERN,
    TICKETS_FILE,
    file_of,
    sync_folder,
    write_synced,
)
from rljob_workers.dcs.errors import CheckpointDamaged
from rljob_workers.dcs.tensor_bytes import index_of_parts, streamed_pieces
from rljob_workers.models.blob import INDEX_FILE, part_file, read_blob, rounds
from rljob_workers.models.building import CONFIG_FILE
from rljob_workers.models.slices import PARAMETER, SavedState
from rljob_workers.simulation.policy import NAMES

PART_BYTES = 5 * 10**9
"""Of one file, at most, unless a tensor is larger."""


class Origin(Enum):
    """What a tensor is made of."""

    PUBLISHED = auto()
    """The published one, bit for bit."""
    EXACT = auto()
    """Float32 slices of the state."""
    CONVERTED = auto()
    """The published one, of another type."""


class RecordedWeights:
    """The tensors of a role's model in a record; each is made when it is asked for."""

    def __init__(self, record: Path, role: Role, dtype: ExportDtype | None) -> None:
        """Maps the files in the folder of a record, and reads their heads.

        ValueError where the record has no such model, CheckpointDamaged where its files do not belong together.
        """
        self.folder = record / file_of(role, "")
        self.role = role
        self.files = weight_files(self.folder)
        """Of the published weights."""
        if not self.files:
            raise ValueError(_no_model(record, role))
        self._described = described_model(self.folder)
        self._dtype = None if dtype is None else getattr(torch, dtype.value)
        self._published = {name: tensor for file in self.files for name, tensor in _mapped(file).items()}
        if NAMES[0] in self._published:
            raise ValueError(f"{record} was saved by a simulated trainer, which has no model. There is none to export.")
        self._exact = self._exact_weights()
        exact = set() if self._exact is None else self._exact.names(PARAMETER)
        self.origins = {name: self._origin(name, exact) for name in self._published}
        self._places: dict[torch.dtype, torch.Tensor] = {}

    @property
    def described(self) -> Mapping[str, Any]:
        """config.json of what is exported."""
        if self._dtype is None:
            return self._described
        others = {name: value for name, value in self._described.items() if name != "torch_dtype"}
        return {**others, "dtype": str(self._dtype).removeprefix("torch.")}

    @property
    def reads_state(self) -> bool:
        """Whether exact weights are taken from the state of the ranks."""
        return Origin.EXACT in self.origins.values()

    def meta(self) -> dict[str, torch.Tensor]:
        """Every tensor without its numbers, on the meta device."""
        return {
            name: torch.empty(tensor.shape, dtype=self._type_of(tensor), device="meta")
            for name, tensor in self._published.items()
        }

    def tensors(self, names: Iterable[str]) -> Iterator[torch.Tensor]:
        """One after the other, each valid until the next one is asked for: they are made in the same place.

        ValueError for one with a number that the type does not hold.
        """
        for name in names:
            published = self._published[name]
            match self.origins[name]:
                case Origin.PUBLISHED:
                    yield published
                case Origin.CONVERTED:
                    yield self._rounded(name, published)
                case Origin.EXACT:
                    assert self._exact is not None
                    exact = self._place(torch.float32, published.shape)
                    self._exact.fill(PARAMETER, {name: exact})
                    yield exact if self._dtype is torch.float32 else self._rounded(name, exact)

    def describing_files(self) -> dict[str, bytes]:
        """config.json, and what else of a Hugging Face folder lies beside the weights: the tokenizer's files ..."""
        others = {path.name: path for path in self.folder.iterdir() if path.is_file() and self._describes(path)}
        config = (json.dumps(self.described, indent=2) + "\n").encode()
        return {CONFIG_FILE: config, **{name: path.read_bytes() for name, path in sorted(others.items())}}

    def _describes(self, path: Path) -> bool:
        of_job = (CHECKSUMS_FILE, TICKETS_FILE, RECORDED_MARK, CONFIG_FILE, INDEX_FILE)
        is_of_job = path.name in of_job or path.match(REFERENCE_PATTERN) or path.match(f"{self.role.value}-[0-9]*")
        return not is_of_job and path.suffix != ".safetensors"

    def _exact_weights(self) -> SavedState | None:
        """The state, where something is to be taken from it."""
        if all(self._type_of(tensor) is tensor.dtype for tensor in self._published.values()):
            return None
        state = _state_in(self.folder, self.role)
        if state is None or PARAMETER not in state.kinds:
            return None
        exact = state.names(PARAMETER)
        shapes = {name: tuple(tensor.shape) for name, tensor in self._published.items() if name in exact}
        if how := state.difference(PARAMETER, shapes):
            raise CheckpointDamaged(
                self.folder,
                f"has a state that does not belong to its published weights ({how}). Leave --dtype out to export the"
                " weights as they were published",
            )
        return state

    def _origin(self, name: str, exact: Set[str]) -> Origin:
        tensor = self._published[name]
        if self._type_of(tensor) is tensor.dtype:
            return Origin.PUBLISHED
        return Origin.EXACT if name in exact else Origin.CONVERTED

    def _type_of(self, tensor: torch.Tensor) -> torch.dtype:
        """That it is exported in: numbers that are no floats stay what they are."""
        return self._dtype if self._dtype is not None and tensor.is_floating_point() else tensor.dtype

    def _rounded(self, name: str, source: torch.Tensor) -> torch.Tensor:
        made = self._place(self._type_of(source), source.shape).copy_(source)
        found, given = made.view(-1), source.reshape(-1)
        for start in range(0, len(found), _LOOKED_AT):
            values = given[start : start + _LOOKED_AT]
            lost = found[start : start + _LOOKED_AT].isinf() & values.isfinite()
            if bool(lost.any()):
                raise ValueError(
                    f"--dtype: {name} has the value {float(values[lost][0]):g}, which {self._dtype} does not hold. Give"
                    " float32, or bfloat16."
                )
        return made

    def _place(self, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
        """Memory that has room for every tensor, and is made once for each type: an allocator keeps what was freed."""
        if dtype not in self._places:
            self._places[dtype] = torch.empty(max(map(torch.Tensor.numel, self._published.values())), dtype=dtype)
        return self._places[dtype][: shape.numel()].view(shape)


_LOOKED_AT = 1 << 20
"""Elements that are compared at a time."""


def _no_model(record: Path, role: Role) -> str:
    if role is VALUE_ROLE:
        return f"--role: {record} has no critic, since its job had none. Leave --role out, which exports the actor."
    return f"{record} has no weights of the {role.value}: no model.safetensors. Restore it from a copy."


def _mapped(file: Path) -> dict[str, torch.Tensor]:
    try:
        return read_blob(file)
    except SafetensorError as error:
        raise CheckpointDamaged(file, f"is not a whole safetensors file ({error})") from error
    except FileNotFoundError as error:
        raise CheckpointDamaged(file, "is not there") from error


def _state_in(folder: Path, role: Role) -> SavedState | None:
    if not list(folder.glob(f"{role.value}-[0-9]*.json")):
        return None
    try:
        return SavedState(folder, role.value)
    except (SafetensorError, FileNotFoundError, ValueError, KeyError) as error:
        raise CheckpointDamaged(folder, f"has a state of the {role.value} that cannot be read ({error})") from error


def num_bytes_of(tensor: torch.Tensor) -> int:
    """Also of one on the meta device."""
    return tensor.numel() * tensor.element_size()


def write_folder(
    weights: RecordedWeights, described: Mapping[str, bytes], to: Path, on_write: Callable[[int], None]
) -> int:
    """Writes the Hugging Face folder `to`, which is there whole or not at all; gives how many parts its weights have.

    `described` are the small files beside them; `on_write` gets the bytes of each tensor that is written.
    """
    to = to.absolute()
    to.parent.mkdir(parents=True, exist_ok=True)
    beside = to.parent / f".{to.name}.partial-{os.getpid()}"
    try:
        beside.mkdir()
        meta = weights.meta()
        parts = rounds({name: num_bytes_of(tensor) for name, tensor in meta.items()}, PART_BYTES)
        files = {part_file(index, len(parts)): names for index, names in enumerate(parts)}
        for file, names in files.items():
            pieces = streamed_pieces({name: meta[name] for name in names}, weights.tensors(names))
            write_synced(beside / file, _counted(pieces, on_write))
        if len(files) > 1:
            index = index_of_parts(beside, files, sum(map(num_bytes_of, meta.values())))
            write_synced(beside / INDEX_FILE, [index.encode()])
        for file, content in described.items():
            write_synced(beside / file, [content])
        sync_folder(beside)
        beside.rename(to)
        sync_folder(to.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return len(files)


def _counted(pieces: Iterable[memoryview], on_write: Callable[[int], None]) -> Iterator[memoryview]:
    for piece in pieces:
        yield piece
        on_write(len(piece))
