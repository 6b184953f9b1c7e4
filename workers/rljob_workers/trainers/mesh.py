"""The ranks of a gang as a backend lays them out: which hold other rows, and which share a model and so its rows.

    mesh = data_parallel(gang)                      every rank holds the model, or a shard: Flat, Fsdp
    mesh = Mesh.of(gang, dp_rank_of=[0, 0, 1, 1])   two ranks share each model: tensor, pipeline, context parallel

The gang is for what all ranks agree on and leave together. Rows are claimed by the source of the ranks that share them
and sent to the others (`share`). What is counted of rows is added up over data parallelism alone (`add_up`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import orjson
import torch

from rljob_workers.trainers.data_parallel import DataParallelGroup, SingleRank

_ALIGNMENT = 16
"""Of each tensor in what is sent, in bytes: a view of any type begins at a multiple of its own size."""


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """What ranks that share a model are sent by their source."""

    header: bytes
    tensors: tuple[torch.Tensor, ...] = ()
    """On the host."""


@dataclass(frozen=True, slots=True, eq=False)
class Mesh:
    """Where one rank stands in its gang."""

    gang: DataParallelGroup
    """All ranks that take part in any common collective: agreement is theirs."""
    dp_rank: int
    """Which rows are this rank's: the ranks that share a model have the same."""
    dp_size: int
    """Among how many rows are dealt."""
    is_source: bool
    """It claims the rows, and counts them, for those that share its model. One rank of each `dp_rank` is."""
    sharing: DataParallelGroup
    """The ranks of this `dp_rank`; rank 0 of it is the source."""

    @classmethod
    def of(cls, gang: DataParallelGroup, dp_rank_of: Sequence[int]) -> Mesh:
        """The mesh where rank i of the gang is of data-parallel rank dp_rank_of[i]; a collective.

        The first rank of each is its source. ValueError where a number is missing or a rank has none.
        """
        dp_size = max(dp_rank_of) + 1
        parts = [[rank for rank, dp_rank in enumerate(dp_rank_of) if dp_rank == of] for of in range(dp_size)]
        if len(dp_rank_of) != gang.world or not all(parts):
            raise ValueError(
                f"a mesh of {gang.world} ranks cannot have the data-parallel ranks {list(dp_rank_of)}: each rank needs"
                f" one, and each from 0 to {dp_size - 1} a rank."
            )
        dp_rank = dp_rank_of[gang.rank]
        sharing = gang.part(parts)
        return cls(gang, dp_rank, dp_size, is_source=sharing.rank == 0, sharing=sharing)

    def add_up(self, values: torch.Tensor, what: str) -> None:
        """Replaces `values` by their sum over data parallelism, bit for bit the same on each rank of the gang.

        A collective of the gang. The ranks that are no source bring zeros: they have counted the same rows.
        """
        if not self.is_source:
            values.zero_()
        self.gang.add_up(values, what)

    def gather(self, values: torch.Tensor, what: str) -> list[torch.Tensor]:
        """`values`, of one shape and dtype on all ranks, of each data-parallel rank; a collective of the gang."""
        if self.gang.world == 1:
            return [values]
        everyone = torch.zeros(self.dp_size, *values.shape, dtype=values.dtype)
        everyone[self.dp_rank] = values
        self.add_up(everyone, what)
        return list(everyone.unbind(0))

    def share(self, message: Message | None, what: str) -> Message:
        """The source's message, on all ranks that share its model; the others bring None. A collective of theirs.

        Its tensors are for reading: they lie in one buffer, except on the source, where they are its own.
        """
        if self.sharing.world == 1:
            assert message is not None, "a source sends"
            return message
        described = torch.zeros(0, dtype=torch.uint8) if message is None else _described(message)
        sizes = torch.tensor([len(described), 0 if message is None else _end(_places(message.tensors))])
        self.sharing.broadcast(sizes, 0, f"the size of {what}")
        head, size = sizes.tolist()
        if message is None:
            described = torch.zeros(head, dtype=torch.uint8)
        self.sharing.broadcast(described, 0, f"the columns of {what}")
        if not size:
            return message if message is not None else _message(described, torch.zeros(0, dtype=torch.uint8))
        body = torch.empty(size, dtype=torch.uint8) if message is None else _packed(message.tensors, size)
        self.sharing.broadcast(body, 0, what)
        return message if message is not None else _message(described, body)


def data_parallel(gang: DataParallelGroup) -> Mesh:
    """Every rank has rows of its own."""
    return Mesh(gang, gang.rank, gang.world, is_source=True, sharing=SingleRank())


def _described(message: Message) -> torch.Tensor:
    """Header, and dtype and shape of each tensor: JSON, as bytes."""
    tensors = [(str(tensor.dtype).removeprefix("torch."), list(tensor.shape)) for tensor in message.tensors]
    text = orjson.dumps({"header": message.header.decode(), "tensors": tensors})
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _message(described: torch.Tensor, body: torch.Tensor) -> Message:
    named = orjson.loads(described.numpy().tobytes())
    tensors = []
    start = 0
    for name, shape in named["tensors"]:
        dtype: torch.dtype = getattr(torch, name)
        size = prod(shape) * dtype.itemsize
        tensors.append(body[start : start + size].view(dtype).view(shape))
        start += _padded(size)
    return Message(named["header"].encode(), tuple(tensors))


def _packed(tensors: Sequence[torch.Tensor], size: int) -> torch.Tensor:
    """All bytes in one buffer, so that they are sent at once."""
    body = torch.zeros(size, dtype=torch.uint8)
    for tensor, start in zip(tensors, _places(tensors), strict=False):
        body[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)
    return body


def _places(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Where each begins, and behind them where all end."""
    places = [0]
    for tensor in tensors:
        places.append(places[-1] + _padded(tensor.nbytes))
    return places


def _end(places: Sequence[int]) -> int:
    return places[-1]


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
