"""megatron-core 0.16.1 on a CPU and Gloo, without a change of its sources: the one place that knows of this.

`install` is called once in a process that has no GPU, after the fork and before any object of Megatron is made. On a
GPU nothing of it is called. Each part of it says for what it is there; a test leaves each out and sees what fails.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

_NAMES_ON_GPU = {
    "torch.FloatTensor": "torch.cuda.FloatTensor",
    "torch.HalfTensor": "torch.cuda.HalfTensor",
    "torch.BFloat16Tensor": "torch.cuda.BFloat16Tensor",
}


_FACTORIES = ("zeros", "ones", "empty", "full", "tensor", "arange")


class _TorchOnCpu(types.ModuleType):
    """`torch` as one module of Megatron sees it: device="cuda" is the CPU, and no memory is pinned."""

    def __init__(self) -> None:
        super().__init__("torch")
        for name in _FACTORIES:
            setattr(self, name, _made_on_cpu(getattr(torch, name)))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- torch's
        return getattr(torch, name)


def _made_on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def make(*args: Any, **settings: Any) -> torch.Tensor:  # noqa: ANN401 -- torch's
        if str(settings.get("device", "")).startswith("cuda"):
            settings["device"] = "cpu"
        settings.pop("pin_memory", None)
        return factory(*args, **settings)

    return make


class _NoStream:
    """In place of a stream or an event: there is one order of work."""

    def __init__(self, *args: Any, **settings: Any) -> None: ...  # noqa: ANN401 -- torch's

    def __getattr__(self, name: str) -> Callable[..., _NoStream]:
        return lambda *args, **settings: self  # noqa: ARG005 -- any


def _device() -> None:
    """Buffers of gradients, what a stage receives, rotary frequencies: they are made on the current device."""
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment, return-value]


def _synchronize() -> None:
    """After each exchange between stages, and in the optimizer."""
    torch.cuda.synchronize = lambda *args, **settings: None  # noqa: ARG005 -- any


def _literals() -> None:
    """device="cuda" in the sources: the token count of a schedule, the norm of a gradient, the scale of a loss."""
    from megatron.core import utils
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.core.optimizer import clip_grads, grad_scaler, optimizer
    from megatron.core.pipeline_parallel import schedules
    from megatron.core.transformer.moe import moe_utils

    for module in (schedules, clip_grads, grad_scaler, optimizer, moe_utils, rope_utils, utils):
        module.torch = _TorchOnCpu()


def _cuda_method() -> None:
    """Tied embeddings of the last stage, and rotary frequencies of padded rows under context parallelism."""
    torch.Tensor.cuda = lambda self, *args, **settings: self  # type: ignore[method-assign] # noqa: ARG005 -- any


def _type_names() -> None:
    """Optimizers distinguish float32 from bfloat16 by the text torch.cuda.FloatTensor."""
    plain = torch.Tensor.type

    def named(self: torch.Tensor, *args: Any, **settings: Any) -> Any:  # noqa: ANN401 -- torch's
        found = plain(self, *args, **settings)
        return found if args or settings else _NAMES_ON_GPU.get(str(found), found)

    torch.Tensor.type = named  # type: ignore[assignment, method-assign]


def _streams() -> None:
    """The dispatcher of experts, and buckets of gradients."""
    torch.cuda.Stream = torch.cuda.Event = _NoStream  # type: ignore[assignment, misc]
    torch.cuda.current_stream = lambda *args, **settings: _NoStream()  # type: ignore[assignment] # noqa: ARG005 -- any
    torch.cuda.default_stream = torch.cuda.current_stream
    torch.cuda.stream = lambda *args: contextlib.nullcontext()  # type: ignore[assignment] # noqa: ARG005 -- any
    torch.Tensor.record_stream = lambda *args, **settings: None  # type: ignore[method-assign] # noqa: ARG005 -- any


def _random_states() -> None:
    """Sequence parallelism forks the generator of CUDA in every pass: for nothing, where there is no dropout."""
    from megatron.core.tensor_parallel import random

    class NoDropout(random.CudaRNGStatesTracker):  # type: ignore[misc] # of an untyped library
        def fork(self, name: str | None = None) -> contextlib.AbstractContextManager[None]:  # noqa: ARG002 -- one signature
            return contextlib.nullcontext()

    random._CUDA_RNG_STATE_TRACKER = NoDropout()
    random._CUDA_RNG_STATE_TRACKER_INITIALIZED = True


def _recomputed_random_states() -> None:
    """Recomputation saves and restores the generator of CUDA."""
    from megatron.core.tensor_parallel import random

    random._get_cuda_rng_state = lambda *args, **settings: torch.get_rng_state()  # noqa: ARG005 -- any
    random._set_cuda_rng_state = lambda state, *args, **settings: torch.set_rng_state(state)  # noqa: ARG005 -- any


def _split_sizes() -> None:
    """Experts: sizes of an exchange become numbers only where their tensor is on CUDA."""
    from megatron.core.transformer.moe import token_dispatcher

    def moved(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:  # noqa: ANN401, ARG001 -- Megatron's
        return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor

    token_dispatcher.maybe_move_tensor_to_cpu = moved


def _uneven_pieces() -> None:
    """Experts that are cut over tensor ranks: Gloo gathers and scatters pieces of one size only."""
    from megatron.core.tensor_parallel import mappings

    gather_even, scatter_even = mappings._gather_along_first_dim, mappings._reduce_scatter_along_first_dim

    def gather(
        input_: torch.Tensor,
        group: torch.distributed.ProcessGroup,
        output_split_sizes: Sequence[int] | None = None,
        use_global_buffer: bool = False,
    ) -> torch.Tensor:
        if output_split_sizes is None or group.size() == 1:
            whole: torch.Tensor = gather_even(input_, group, None, use_global_buffer)
            return whole
        padded = input_.new_zeros(max(output_split_sizes), *input_.shape[1:])
        padded[: len(input_)] = input_
        parts = gather_even(padded, group).chunk(group.size())
        return torch.cat([part[:size] for part, size in zip(parts, output_split_sizes, strict=True)])

    def scatter(
        input_: torch.Tensor,
        group: torch.distributed.ProcessGroup,
        input_split_sizes: Sequence[int] | None = None,
        use_global_buffer: bool = False,
    ) -> torch.Tensor:
        if input_split_sizes is None or group.size() == 1:
            part: torch.Tensor = scatter_even(input_, group, None, use_global_buffer)
            return part
        padded = input_.new_zeros(group.size(), max(input_split_sizes), *input_.shape[1:])
        for place, piece in zip(padded, torch.split(input_, list(input_split_sizes)), strict=True):
            place[: len(piece)] = piece
        own: torch.Tensor = scatter_even(padded.flatten(0, 1), group)
        return own[: input_split_sizes[group.rank()]]

    mappings._gather_along_first_dim, mappings._reduce_scatter_along_first_dim = gather, scatter


PARTS: dict[str, Callable[[], None]] = {
    "device": _device,
    "synchronize": _synchronize,
    "literals": _literals,
    "cuda method": _cuda_method,
    "type names": _type_names,
    "streams": _streams,
    "random states": _random_states,
    "recomputed random states": _recomputed_random_states,
    "split sizes": _split_sizes,
    "uneven pieces": _uneven_pieces,
}


_installed: set[str] = set()


def install(names: Sequence[str] = tuple(PARTS)) -> None:
    """Puts these parts in place, each once in a process."""
    for name in names:
        if name not in _installed:
            PARTS[name]()
            _installed.add(name)
