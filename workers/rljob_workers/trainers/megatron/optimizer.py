"""Gradients and AdamW of a decoder's chunks, by Megatron's distributed optimizer: each rank has its shard of the state.

Shards lie over the ranks that have the same parameters: data and context parallelism (of experts: the ranks that have
the same ones). Used by `megatron_model`; `saved_state` reads and fills the shards.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from rljob_workers.models.slices import EXP_AVG, EXP_AVG_SQ, PARAMETER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rljob_workers.trainers.data_parallel import DataParallelGroup
    from rljob_workers.trainers.megatron.decoder import Decoder, NamedParameter
    from rljob_workers.trainers.optimizer_steps import AdamWConfig


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """What this rank has of one parameter, flattened, in float32."""

    parameter: NamedParameter
    start: int
    """Its first element in the flattened parameter of this rank."""
    state: Mapping[str, torch.Tensor]
    """Kind -> [elements]: the parameter itself and its moments, all live."""

    @property
    def stop(self) -> int:
        """Behind its last element."""
        return self.start + self.state[PARAMETER].numel()


class DistributedAdamW:
    """The optimizer of one rank. All methods but `clear`, `shards` and `load` are collectives."""

    def __init__(self, decoder: Decoder, config: AdamWConfig, gang: DataParallelGroup) -> None:
        """Wraps the chunks, whose gradients are added up from here on. Moments begin as zeros."""
        from megatron.core import optimizer as megatron_optimizer
        from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer, get_standard_config_overrides

        # Not Transformer Engine's where it is installed: one that counts steps elsewhere than the checkpoints' does.
        megatron_optimizer.USING_PYTORCH_OPTIMIZER = True
        self._decoder = decoder
        self._config = config
        self._gang = gang
        self.steps = 0
        """That were taken."""
        self._is_exchanging = False
        """Whether gradients are on their way, or were where nothing is overlapped: no pass may add to them."""
        wrapping = DistributedDataParallelConfig(
            grad_reduce_in_fp32=True,
            overlap_grad_reduce=decoder.options.bucket is not None,
            bucket_size=decoder.options.bucket,
            use_distributed_optimizer=True,
            average_in_collective=False,
        )
        is_rounded = decoder.options.dtype == torch.bfloat16
        settings = OptimizerConfig(
            optimizer="adam",
            lr=config.learning_rate.peak,
            weight_decay=config.weight_decay,
            adam_beta1=config.beta1,
            adam_beta2=config.beta2,
            adam_eps=config.epsilon,
            clip_grad=0.0,  # the caller clips
            bf16=is_rounded,
            params_dtype=decoder.options.dtype,
            use_distributed_optimizer=True,
            decoupled_weight_decay=True,
        )
        with gang.collective("the optimizer's shards"):  # ranks compare their groups of parameters
            self.chunks: list[Any] = [
                DistributedDataParallel(decoder.settings, wrapping, chunk, disable_bucketing=number > 0)
                for number, chunk in enumerate(decoder.chunks)
            ]
            self._optimizer: Any = get_megatron_optimizer(
                settings,
                self.chunks,
                config_overrides=get_standard_config_overrides(settings),
                use_gloo_process_groups=False,
            )
        # By default a schedule reduces gradients at its end, but several make an optimizer step.
        decoder.settings.finalize_model_grads_func = None
        for optimizer in self._parts:
            for group in optimizer.optimizer.param_groups:
                group["fused"] = True  # by default torch makes copies of a whole moment
                for parameter in group["params"]:
                    zeros = torch.zeros_like(parameter), torch.zeros_like(parameter)
                    optimizer.optimizer.state[parameter] = dict(zip((EXP_AVG, EXP_AVG_SQ), zeros, strict=True))
        self._number_steps()

    @property
    def _parts(self) -> list[Any]:
        """Of dense parameters, and of experts."""
        return getattr(self._optimizer, "chained_optimizers", [self._optimizer])

    @contextmanager
    def passes(self, *, are_last: bool) -> Iterator[None]:
        """Around a schedule. Megatron exchanges a bucket once a last pass has come to all of it.

        An exchange takes what is there: one of a schedule before the last would be wrong, silently.
        """
        settings = self._decoder.settings
        holding = [chunk.no_sync for chunk in self.chunks]
        if self._decoder.options.bucket is None:
            yield
        elif are_last:
            settings.no_sync_func = holding if len(holding) > 1 else holding[0]  # for its passes but the last
            self._is_exchanging = True
            yield
        else:
            settings.no_sync_func = nullcontext  # it would end ours
            with ExitStack() as stack:
                for hold in holding:
                    stack.enter_context(hold())
                yield

    def add_up(self) -> None:
        """Gradients over data and context parallelism, norms of sequence parallelism, and tied ends of a pipeline."""
        from megatron.core.distributed import finalize_model_grads

        if self._decoder.options.bucket is not None and not self._is_exchanging:
            for chunk in self.chunks:
                chunk.start_grad_sync()
        finalize_model_grads(self.chunks, None)
        self._is_exchanging = False

    def average(self, normaliser: float) -> float:
        """Divides what `add_up` gave; the norm over all weights, each counted once."""
        for chunk in self.chunks:
            chunk.scale_gradients(1.0 / normaliser)
        self._optimizer.prepare_grads()
        return float(self._optimizer.get_grad_norm())

    def step(self, clipping: float) -> None:
        """One step with the gradient of `average` times `clipping`."""
        rate = self._config.learning_rate.of(self.steps)
        for optimizer in self._parts:
            for group in optimizer.optimizer.param_groups:
                group["lr"] = rate
                group["weight_decay"] = self._config.weight_decay * group["wd_mult"]
                gradients = [one.grad for one in group["params"] if one.grad is not None]
                if clipping != 1.0 and gradients:
                    torch._foreach_mul_(gradients, clipping)
        self._optimizer.step_with_ready_grads()
        self.steps += 1

    def clear(self) -> None:
        """Drops the gradient; where it is on its way, a collective."""
        if self._is_exchanging:
            for chunk in self.chunks:
                chunk.finish_grad_sync()
            self._is_exchanging = False
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self._optimizer.zero_grad()

    def shards(self) -> Iterator[Shard]:
        """What this rank has of the state; of some parameters nothing."""
        for parameter in self._decoder.parameters():
            for optimizer in self._parts:
                if parameter.values in getattr(optimizer, "model_param_gbuf_map", {}):
                    held = optimizer._get_main_param_and_optimizer_states(parameter.values)
                    start = optimizer._get_model_param_range_map(parameter.values)["param"].start
                    state = {PARAMETER: held["param"], EXP_AVG: held[EXP_AVG], EXP_AVG_SQ: held[EXP_AVG_SQ]}
                    yield Shard(parameter, start, {kind: one.detach().view(-1) for kind, one in state.items()})

    def load(self) -> None:
        """The chunks' parameters were replaced: those that are trained become them."""
        self._optimizer.reload_model_params()

    def go_on_from(self, steps: int) -> None:
        """The shards were filled with the state after so many steps."""
        self.steps = steps
        self._number_steps()
        # Where published weights are not rounded, and those of the folder were, only a shard's own elements are exact.
        with self._gang.collective("the weights that were restored"):
            for chunk in self.chunks:
                chunk.start_param_sync(force_sync=True)

    def _number_steps(self) -> None:
        for optimizer in self._parts:
            for parameter, state in optimizer.optimizer.state.items():
                state["step"] = torch.tensor(float(self.steps), device=parameter.device)
