"""transformers' model of a config, sharded over ranks or whole, with `score` on it. Its weights are not set yet.

    config = model_config(described)                                   # what config.json says
    model = build_sharded(config, options, init_device_mesh("cpu", (world,)))
    load_weights(model, read_weights(folder), source=str(folder))      # `loading`
    log_probs, entropy = score(model, inputs, temperature)             # `scoring`

A model is made without memory, cut, and only then given memory: no rank ever holds more than its shard.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint

from rljob_api.families import FAMILIES, family_problem
from rljob_workers.trainers.fsdp import attention
from rljob_workers.trainers.fsdp.scoring import SCORE, bind_score
from rljob_workers.trainers.fsdp.stored_names import bind_layout

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from transformers import PretrainedConfig, PreTrainedModel


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How a model is held and computed."""

    storage: torch.dtype
    """Of the weights that are held: float32 where they are trained."""
    compute: torch.dtype
    """Of products and activations; what is gathered from other ranks is gathered in it. A whole model computes in the
    type that it is stored in."""
    packing: bool = True
    """Whether rows are joined into one sequence, or padded."""
    head_dtype: torch.dtype | None = None
    """Of logits, where it is wider than `compute`; None: as that."""
    activation_checkpointing: bool = False
    """Whether a layer's activations are computed again in the backward pass instead of being kept."""
    device: str = "cpu"


def model_config(described: Mapping[str, Any]) -> PretrainedConfig:
    """The config of what config.json says; ValueError for a model_type that transformers does not know."""
    from transformers import CONFIG_MAPPING

    kind = described.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise ValueError(
            f"model.path: its config.json has model_type {kind!r}, which this version of transformers does not know."
            " Give a causal language model of a family that it knows, or install a newer transformers."
        )
    return CONFIG_MAPPING[kind].from_dict(dict(described))


def build_sharded(config: PretrainedConfig, options: ModelOptions, mesh: DeviceMesh) -> PreTrainedModel:
    """Each rank's shard of every parameter: layer by layer, and all that is in no layer as one group.

    The embedding, the head (which may be the same tensor) and the last norm are gathered for a whole pass.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    model = _made(config, options)
    policy = MixedPrecisionPolicy()
    if options.compute != options.storage:
        policy = MixedPrecisionPolicy(param_dtype=options.compute, reduce_dtype=options.storage)
    for layer in _layers(model):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    _give_memory(model, options)
    register_fsdp_forward_method(model, SCORE)
    return model


def build_whole(config: PretrainedConfig, options: ModelOptions) -> PreTrainedModel:
    """All of it on this rank."""
    model = _made(config, options)
    _give_memory(model, options)
    return model


def _made(config: PretrainedConfig, options: ModelOptions) -> PreTrainedModel:
    """A model on the meta device."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM

    problem = family_problem(config.to_dict())
    if problem is not None:
        raise ValueError(problem)
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(
            f"model.path: its config.json has model_type {config.model_type!r}, of which transformers has no causal"
            " language model. Give one."
        )
    attention.register()
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=options.storage, **_attention(config, options)
        )
    if not _experts_fit_kernel(model, options.compute):
        model.set_experts_implementation("eager")
    # A log-prob is compared with that of another pass over the same row, and with the engine's: chance has no place in
    # it, be it dropout by a module or by a config's rate, a skipped layer or a router's noise. All of them ask this.
    model.eval()  # type: ignore[no-untyped-call]
    if options.activation_checkpointing:
        _checkpoint_activations(model)
    bind_layout(model)
    bind_score(model, options.head_dtype, is_known_family=config.model_type in FAMILIES)
    return model


def _attention(config: PretrainedConfig, options: ModelOptions) -> dict[str, str]:
    """Ours for joined rows, else what transformers takes by itself, except where that may not cap scores.

    For Gemma 2 some versions (5.17) take torch's kernel, which does not, and log-probs are wrong without an error.
    """
    if options.packing:
        return {"attn_implementation": attention.NAME}
    return {"attn_implementation": "eager"} if getattr(config, "attn_logit_softcapping", None) else {}


_KERNEL_ROW_BYTES = 16


def _experts_fit_kernel(model: PreTrainedModel, compute: torch.dtype) -> bool:
    """Whether torch's product over all experts takes them: no float64, rows of a multiple of 16 bytes.

    Else it raises in the middle of a pass. True of a model without experts.
    """
    widths = [parameter.shape[-1] for name, parameter in model.named_parameters() if ".experts." in name]
    return all(compute != torch.float64 and width * compute.itemsize % _KERNEL_ROW_BYTES == 0 for width in widths)


def _checkpoint_activations(model: PreTrainedModel) -> None:
    """Each layer's activations are computed again in the backward pass.

    transformers' own checkpointing works in training mode only. Within the layer's call, so that FSDP's hooks, which
    gather its weights, stay outside of what is computed again.
    """
    for layer in _layers(model):
        again = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
        setattr(layer, "forward", again)  # noqa: B010 -- a method, in the eyes of mypy


def _layers(model: PreTrainedModel) -> list[torch.nn.Module]:
    """Inner ones first, as FSDP wants it of layers within layers."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    return list(reversed(layers))


def _give_memory(model: PreTrainedModel, options: ModelOptions) -> None:
    """Parameters without values, and buffers with those that are a function of the config.

    Buffers that no folder holds (rotary frequencies, Gemma's scale of the embedding) are made by transformers' own
    initialisation, which is told that the parameters have their values already. One that it does not make stays NaN.
    """
    model.to_empty(device=options.device)
    model.tie_weights()
    stored = model.state_dict(keep_vars=True)
    for tensor in stored.values():
        tensor._is_hf_initialized = True
    made = [(name, buffer) for name, buffer in model.named_buffers() if name not in stored]
    for _, buffer in made:
        if buffer.is_floating_point():
            buffer.fill_(float("nan"))
    for module in model.modules():
        module.__dict__.pop("_is_hf_initialized", None)
    model.initialize_weights()  # type: ignore[no-untyped-call]
    left = [name for name, buffer in model.named_buffers() if name not in stored and bool(buffer.isnan().any())]
    if left:
        raise ValueError(
            f"model.path: transformers did not compute {left[0]} of a {model.config.model_type} model, which is in no"
            " folder of weights. Give a model of another family, or another version of transformers."
        )
