"""Layers of the local specification of Megatron that are our own: attention over packed rows, and a norm.

Megatron's own attention without Transformer Engine takes neither packed rows nor context parallelism, and its norm no
sequence parallelism. `building` puts these in their places.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from rljob_workers.devices import own_device

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rljob_workers.trainers.row_blocks import RowBlocks


class PackedAttention(torch.nn.Module):
    """Causal attention of packed rows, each over itself, by torch's kernel.

    Context parallelism: of each row, in 2 c chunks, rank r of c has chunks r and 2 c - 1 - r, as Transformer Engine
    wants them; so all ranks have the same work. Keys and values of all ranks are gathered, their gradients scattered.
    """

    def __init__(
        self,
        config: Any,  # noqa: ANN401 -- of an untyped library, here and below
        layer_number: int,  # noqa: ARG002 -- Megatron's, here and below
        attn_mask_type: Any,  # noqa: ANN401, ARG002
        attention_type: str,  # noqa: ARG002
        attention_dropout: float | None = None,  # noqa: ARG002
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,  # noqa: ARG002
        pg_collection: Any = None,  # noqa: ANN401
        **others: Any,  # noqa: ANN401, ARG002
    ) -> None:
        super().__init__()
        self._scale = softmax_scale
        self._context = pg_collection.cp if config.context_parallel_size > 1 else None

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,  # noqa: ARG002 -- Megatron's, here and below
        attn_mask_type: Any = None,  # noqa: ANN401, ARG002
        attention_bias: torch.Tensor | None = None,  # noqa: ARG002
        packed_seq_params: Any = None,  # noqa: ANN401
    ) -> torch.Tensor:
        """Shapes: query [tokens, heads, width], key and value [tokens, key heads, width] -> [tokens, heads width]."""
        if self._context is None:
            return self._rows(query, key, value, packed_seq_params.row_blocks).flatten(1)
        ends: list[int] = packed_seq_params.cu_seqlens_q.tolist()
        return torch.cat(list(self._cut_rows(query, key, value, ends))).flatten(1)

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """[rows, tokens, heads, width] each; without a mask causally."""
        q, k, v = (one.transpose(1, 2) for one in (query, key, value))
        attended = scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=self._scale, enable_gqa=True
        )
        return attended.transpose(1, 2)

    def _rows(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rows: RowBlocks) -> torch.Tensor:
        found = [self._attend(query[block], key[block], value[block], None).flatten(0, 1) for block in rows.blocks]
        return torch.cat(found)[rows.slot_of_token]

    def _cut_rows(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ends: Sequence[int]
    ) -> Iterator[torch.Tensor]:
        from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region

        assert self._context is not None, "rows are cut over the ranks of a context"
        size, rank, local = self._context.size(), self._context.rank(), len(key)
        both = gather_from_sequence_parallel_region(torch.stack([key, value], 1), group=self._context)
        for start, stop in pairwise(ends):
            length, first = (stop - start) // (2 * size), start // size
            chunks = [both[_begin(number, size, local, first, length) :][:length] for number in range(2 * size)]
            whole = torch.cat(chunks)
            for place, number in enumerate((rank, 2 * size - 1 - rank)):
                seen = (number + 1) * length
                mask = torch.ones(length, seen, dtype=torch.bool, device=query.device).tril(number * length)
                own = query[first + place * length :][:length]
                yield self._attend(own[None], whole[None, :seen, 0], whole[None, :seen, 1], mask)[0]


def _begin(number: int, size: int, local: int, first: int, length: int) -> int:
    """Where chunk `number` of a row lies in `local` gathered tokens of each rank, the row's from `first` on."""
    is_early = number < size
    owner = number if is_early else 2 * size - 1 - number
    return owner * local + first + (0 if is_early else length)


class Norm(torch.nn.RMSNorm):
    """RMSNorm whose gradient is summed over tensor ranks, where each of them has other tokens."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **others: Any) -> None:  # noqa: ANN401, ARG002 -- Megatron's
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype, device=own_device())
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined] # Megatron's mark


class ValueHead(torch.nn.Module):
    """The head of a critic, whole on each tensor rank: `weight` [1, hidden]. Its product is the caller's."""

    def __init__(self, hidden_size: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(1, hidden_size, dtype=dtype, device=device))
