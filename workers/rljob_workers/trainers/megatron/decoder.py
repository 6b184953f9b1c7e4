"""A decoder on one rank: its chunks, and what their hidden states say of response tokens.

`schedule` carries micro-batches through it, `weights` fills it. Built by the models of `megatron_model`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from rljob_workers.algorithms.log_probs import VocabularyPart, chunked_log_probs
from rljob_workers.algorithms.objective import Output, Outputs
from rljob_workers.devices import own_device
from rljob_workers.trainers.megatron.balance import NOT_BALANCED, Balance
from rljob_workers.trainers.megatron.building import build_chunks, first_layers, head_weight, transformer_config
from rljob_workers.trainers.megatron.groups import Place, start_groups
from rljob_workers.trainers.megatron.inputs import Context, PackedInputs
from rljob_workers.trainers.megatron.layer_choice import Layers, layers_for, use_kernels_of
from rljob_workers.trainers.megatron.sizes import DecoderSizes, sizes_of
from rljob_workers.trainers.megatron.stored_names import Piece, local_name, pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transformers import PretrainedConfig

    from rljob_api.spec.parallelism import ParallelismSpec
    from rljob_api.spec.training import RecomputedModule
    from rljob_workers.trainers.data_parallel import DataParallelGroup


@dataclass(frozen=True, slots=True)
class DecoderOptions:
    """How a decoder is held and computed."""

    parallelism: ParallelismSpec
    dtype: torch.dtype
    """Of its parameters and activations."""
    head_dtype: torch.dtype | None = None
    """Of logits, where it is wider; None: as that."""
    has_value_head: bool = False
    """Whether it gives values: a critic's."""
    balance: Balance = NOT_BALANCED
    """Of its experts, where it has some and is trained."""
    recomputes: bool = False
    """Whether a layer's activations are computed again in the backward pass instead of being retained."""
    recomputed: Sequence[RecomputedModule] = ()
    """Parts of a layer of which the same holds, where it does not of all."""
    bucket: int | None = None
    """Elements of gradients that are exchanged at once, beside the last backward pass; None: all of them after it."""
    timeout_seconds: float = 60.0
    """For which a rank waits for another within a collective."""


@dataclass(frozen=True, slots=True, eq=False)
class NamedParameter:
    """A parameter of this rank, and what of stored tensors it is."""

    name: str
    """Within its chunk, as Megatron's local layers have it."""
    values: torch.nn.Parameter
    first_layer: int
    """Of its chunk."""
    pieces: list[Piece]


class Decoder:
    """This rank's part; its weights are not set yet."""

    def __init__(self, config: PretrainedConfig, options: DecoderOptions, gang: DataParallelGroup) -> None:
        """A collective of the gang, once in a process: Megatron's groups are the process's."""
        self.options = options
        self.sizes: DecoderSizes = sizes_of(config, has_value_head=options.has_value_head)
        self.place: Place = start_groups(options.parallelism, gang, timeout_seconds=options.timeout_seconds)
        self.layers: Layers = layers_for(own_device(), options.dtype)
        use_kernels_of(self.layers)
        self.settings: Any = transformer_config(
            config,
            self.sizes,
            options.parallelism,
            options.dtype,
            self.layers,
            recomputes=options.recomputes,
            recomputed=options.recomputed,
        )
        with gang.collective("the chunks of the model"):  # tied ends of a pipeline are compared
            self.chunks = build_chunks(config, self.sizes, options.parallelism, self.settings, self.layers)

    @property
    def outputs(self) -> frozenset[Output]:
        """What it gives."""
        has_values = self.options.has_value_head
        return frozenset({Output.VALUES} if has_values else {Output.LOG_PROBS, Output.ENTROPY})

    @property
    def context(self) -> Context:
        """Which tokens of each row are this rank's."""
        from megatron.core import parallel_state

        return Context(parallel_state.get_context_parallel_rank(), self.options.parallelism.context)

    def parameters(self) -> Iterator[NamedParameter]:
        """All of this rank's, in one order for all ranks of a stage."""
        for chunk, first in zip(self.chunks, first_layers(self.chunks), strict=True):
            for own_name, parameter in chunk.named_parameters():
                name = local_name(own_name)
                yield NamedParameter(name, parameter, first, pieces(name, self.sizes, self.place, first))

    def outputs_of(
        self, chunk: torch.nn.Module, hidden: torch.Tensor, inputs: PackedInputs, temperature: float
    ) -> torch.Tensor:
        """Of all response tokens, the same on each rank of the last stage, with a graph where `hidden` has one.

        [1, tokens] values, or [2, tokens] log-probs and entropies: `named` gives them their names. `chunk` is the last
        one, and `hidden` [1, tokens, width] what it gives of this rank's tokens.
        """
        states = self._gathered(hidden[0])[inputs.predicting]
        found = (
            self._values(chunk, states)
            if self.sizes.has_value_head
            else self._scores(chunk, states, inputs, temperature)
        )
        whole = found.new_zeros(len(found), inputs.num_responses).index_copy(1, inputs.slots, found)
        return self._over_context(whole)

    def named(self, found: torch.Tensor) -> Outputs:
        """What `outputs_of` has found."""
        if self.sizes.has_value_head:
            return Outputs(values=found[0])
        return Outputs(log_probs=found[0], entropy=found[1])

    def _gathered(self, hidden: torch.Tensor) -> torch.Tensor:
        """[own tokens, width] on each tensor rank, whose gradients are those of all of them."""
        from megatron.core.tensor_parallel import mappings

        # Each tensor rank has a share of the gradient of log-probs, its vocabulary's, and all of that of values.
        is_share = not self.sizes.has_value_head
        if self.options.parallelism.cuts_sequence:
            whole: torch.Tensor = mappings.gather_from_sequence_parallel_region(
                hidden, tensor_parallel_output_grad=is_share
            )
            return whole
        copied: torch.Tensor = mappings.copy_to_tensor_model_parallel_region(hidden) if is_share else hidden
        return copied

    def _scores(
        self, chunk: torch.nn.Module, states: torch.Tensor, inputs: PackedInputs, temperature: float
    ) -> torch.Tensor:
        from megatron.core import parallel_state

        head = head_weight(chunk)
        first = len(head) * self.place.tensor_rank
        part = None
        if self.place.tensor > 1:
            head = head[: self.sizes.vocabulary - first]  # padding is no token
            part = VocabularyPart(first, parallel_state.get_tensor_model_parallel_group())
        log_probs, entropy = chunked_log_probs(
            states, head, inputs.targets, temperature=temperature, head_dtype=self.options.head_dtype, part=part
        )
        return torch.stack([log_probs, entropy])

    def _values(self, chunk: torch.nn.Module, states: torch.Tensor) -> torch.Tensor:
        wide = torch.promote_types(states.dtype, torch.float32)
        return functional.linear(states.to(wide), head_weight(chunk).to(wide)).t()

    def _over_context(self, whole: torch.Tensor) -> torch.Tensor:
        """What each context rank has of it, added up. Each takes the same loss of all, and goes back by its own."""
        if self.options.parallelism.context == 1:
            return whole
        from megatron.core import parallel_state
        from megatron.core.tensor_parallel.mappings import reduce_from_tensor_model_parallel_region

        joined: torch.Tensor = reduce_from_tensor_model_parallel_region(
            whole, group=parallel_state.get_context_parallel_group()
        )
        return joined
