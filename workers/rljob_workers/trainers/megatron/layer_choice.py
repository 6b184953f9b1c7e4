"""Which layers a decoder is made of: the one place that decides, and that knows whether Transformer Engine is there.

`decoder` asks once for each model. Whatever else of Transformer Engine Megatron would take by itself is settled here.
"""

from __future__ import annotations

import logging
from enum import Enum, auto

import torch

_LOG = logging.getLogger(__name__)


class Layers(Enum):
    """Of one decoder."""

    LOCAL = auto()
    """Megatron's local ones, with attention and norm of our own (`layers`)."""
    ENGINE = auto()
    """Transformer Engine's: fused kernels, for a GPU."""


def layers_for(device: torch.device, dtype: torch.dtype) -> Layers:
    """Of a decoder on `device` whose parameters are of `dtype`; says so in the log of a rank that has a GPU.

    Float32 stays with the local layers: Transformer Engine computes its products in TF32, of 11 bits, and has no fused
    attention for it.
    """
    if device.type != "cuda":
        return Layers.LOCAL
    version = engine_version()
    if version is None:
        _LOG.info("Megatron computes with its local layers: Transformer Engine is not installed.")
        return Layers.LOCAL
    if dtype != torch.bfloat16:
        _LOG.info("Megatron computes with its local layers: Transformer Engine %s would round float32.", version)
        return Layers.LOCAL
    _LOG.info("Megatron computes with the layers of Transformer Engine %s.", version)
    return Layers.ENGINE


def engine_version() -> str | None:
    """Of Transformer Engine, where Megatron could import it. One that is installed and broken raises what it raises."""
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.utils import get_te_version

    return str(get_te_version()) if gpt_layer_specs.HAVE_TE else None


def use_kernels_of(layers: Layers) -> None:
    """Megatron takes norms of gradients and the product of a gate from Transformer Engine wherever it is installed.

    With local layers it shall not: on a CPU they do not run, and in float32 the gate would be rounded. To be called
    before layers and optimizer are made; it holds for the process, as Megatron's groups do.
    """
    from megatron.core import utils
    from megatron.core.optimizer import clip_grads, optimizer
    from megatron.core.transformer.moe import moe_utils

    if layers is Layers.ENGINE:
        return
    moe_utils.te_general_gemm = None  # a name that 0.16.1 reads, and has with Transformer Engine only
    for module in (clip_grads, optimizer):
        module.multi_tensor_applier = utils.local_multi_tensor_applier
        module.multi_tensor_scale_impl = utils.local_multi_tensor_scale
    clip_grads.l2_norm_impl = utils.local_multi_tensor_l2_norm
