"""Micro-batches through the chunks of a decoder, by Megatron's schedule: forward alone, or forward and backward.

The last stage has the outputs. It sends them to the other stages after the schedule, so that all ranks of a model count
the same rows. Used by `megatron_model`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from rljob_workers.trainers.megatron.balance import RoutedTokens, routed_tokens
from rljob_workers.trainers.megatron.building import head_weight
from rljob_workers.trainers.megatron.decoder import Decoder
from rljob_workers.trainers.megatron.inputs import PackedInputs, packed_inputs
from rljob_workers.trainers.megatron.passes import num_micro_batches
from rljob_workers.trainers.micro_batches import RowRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rljob_workers.algorithms.objective import Outputs
    from rljob_workers.tensors.jagged import Jagged
    from rljob_workers.trainers.model_trainer import LossOf, NormaliserOf

_EMPTY = RowRange(0, 0, 0, 0)


class Schedule:
    """Carries rows through a decoder; each call is a collective of the ranks that share the model."""

    def __init__(self, decoder: Decoder, chunks: Sequence[torch.nn.Module], device: torch.device) -> None:
        """`chunks` are the decoder's, as they are called: wrapped, where they are trained."""
        self._decoder = decoder
        self._chunks = list(chunks)
        self._device = device

    def score(
        self, tokens: Jagged, response_lengths: torch.Tensor, parts: Sequence[RowRange], temperature: float
    ) -> list[Outputs]:
        """The outputs of each of `parts`, on every rank."""
        return self._run(tokens, response_lengths, parts, temperature, None, None)

    def train(
        self,
        tokens: Jagged,
        response_lengths: torch.Tensor,
        parts: Sequence[RowRange],
        temperature: float,
        loss_of: LossOf,
        normaliser_of: NormaliserOf,
    ) -> None:
        """Adds up the gradient of loss_of(part, outputs) of each part, which every rank calls once for each.

        Of experts, what balances them too, weighed by `normaliser_of`.
        """
        outputs = self._run(tokens, response_lengths, parts, temperature, loss_of, normaliser_of)
        if not self._is_last_stage:
            for part, found in zip(parts, outputs, strict=True):
                loss_of(part, found)

    @property
    def _is_last_stage(self) -> bool:
        from megatron.core import parallel_state

        return bool(parallel_state.is_pipeline_last_stage())

    def _run(
        self,
        tokens: Jagged,
        response_lengths: torch.Tensor,
        parts: Sequence[RowRange],
        temperature: float,
        loss_of: LossOf | None,
        normaliser_of: NormaliserOf | None,
    ) -> list[Outputs]:
        from megatron.core.pipeline_parallel import get_forward_backward_func

        parallelism = self._decoder.options.parallelism
        is_interleaved = parallelism.virtual_pipeline > 1
        missing = num_micro_batches(len(parts), parallelism) - len(parts)
        multiple, context = parallelism.row_multiple, self._decoder.context
        passes = []
        for part in (*parts, *[None] * missing):
            inputs = packed_inputs(tokens, response_lengths, part or _EMPTY, multiple, context, self._device)
            passes.append((part, inputs, self._routed(inputs, part, response_lengths, normaliser_of)))
        found: list[torch.Tensor] = []
        step = partial(self._step, found=found, temperature=temperature, loss_of=loss_of)
        iterators = [iter(passes) for _ in self._chunks]
        get_forward_backward_func()(
            forward_step_func=step,
            data_iterator=iterators if is_interleaved else iterators[0],
            model=self._chunks if is_interleaved else self._chunks[0],
            num_microbatches=len(passes),
            seq_length=multiple,
            micro_batch_size=1,
            forward_only=loss_of is None,
        )
        return self._on_all_stages(found, parts)

    def _routed(
        self,
        inputs: PackedInputs,
        part: RowRange | None,
        response_lengths: torch.Tensor,
        normaliser_of: NormaliserOf | None,
    ) -> RoutedTokens | None:
        """What routers of experts get of a pass that trains."""
        if normaliser_of is None or part is None or not self._decoder.sizes.experts:
            return None
        options, rank = self._decoder.options, self._decoder.place.tensor_rank
        if options.parallelism.cuts_sequence:
            own = inputs.rows.chunk(options.parallelism.tensor)[rank]
            inputs = replace(inputs, rows=own)
        return routed_tokens(inputs, part, response_lengths, options.balance, normaliser_of)

    def _step(
        self,
        passes: Iterator[tuple[RowRange | None, PackedInputs, RoutedTokens | None]],
        chunk: Any,  # noqa: ANN401 -- of an untyped library
        *,
        found: list[torch.Tensor],
        temperature: float,
        loss_of: LossOf | None,
    ) -> tuple[torch.Tensor, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor, dict[str, Any]]]]:
        """One pass of one chunk, and what the schedule calls with the result of the last one."""
        from megatron.core.packed_seq_params import PackedSeqParams

        part, inputs, routed = next(passes)
        ends = inputs.ends
        # Transformer Engine compares both kinds of ends, and waits for it; where rows are cut it wants both.
        padded = ends if self._decoder.options.parallelism.context > 1 else None
        packed = PackedSeqParams("thd", ends, ends, padded, padded, inputs.longest, inputs.longest)
        packed.row_blocks = inputs.blocks  # for our attention
        packed.routed = routed  # for our routers
        hidden = chunk(inputs.token_ids, None, None, packed_seq_params=packed)
        return hidden, partial(self._end, found, chunk, part, inputs, temperature, loss_of)

    def _end(
        self,
        found: list[torch.Tensor],
        chunk: Any,  # noqa: ANN401 -- of an untyped library
        part: RowRange | None,
        inputs: PackedInputs,
        temperature: float,
        loss_of: LossOf | None,
        hidden: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
        """The loss of a pass. One of no response tokens hangs on the model too: other stages wait for its gradient."""
        outputs = self._decoder.outputs_of(_unwrapped(chunk), hidden, inputs, temperature)
        of_rows = None
        if part is not None:
            found.append(outputs.detach())
            if loss_of is not None:
                of_rows = loss_of(part, self._decoder.named(outputs))
        if of_rows is None or not inputs.num_responses:
            # The head too: gradients are exchanged once each parameter has one.
            of_rows = (hidden.float().sum() + head_weight(_unwrapped(chunk)).flatten()[:1].float().sum()) * 0.0
        return of_rows, torch.zeros([], dtype=torch.int), {}

    def _on_all_stages(self, found: Sequence[torch.Tensor], parts: Sequence[RowRange]) -> list[Outputs]:
        if self._decoder.options.parallelism.pipeline == 1:
            return [self._decoder.named(one) for one in found]
        from megatron.core import parallel_state

        lengths = [part.last_token - part.first_token for part in parts]
        if self._is_last_stage:
            whole = torch.cat(list(found), 1).float()
        else:
            whole = torch.empty(len(self._decoder.outputs), sum(lengths), device=self._device)
        distributed.broadcast(
            whole,
            src=parallel_state.get_pipeline_model_parallel_last_rank(),
            group=parallel_state.get_pipeline_model_parallel_group(),
        )
        return [self._decoder.named(one) for one in torch.split(whole, lengths, 1)]


def _unwrapped(chunk: Any) -> Any:  # noqa: ANN401 -- of an untyped library
    """Without what adds up gradients."""
    return getattr(chunk, "module", chunk)
