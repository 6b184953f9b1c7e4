"""transformers' model of a config, sharded over ranks or whole, with attention over packed rows and `score` on it.

Built by the factories and by the twin; its weights are not set here. Attention sees each of the rows that lie back to
back in one sequence alone: one kernel call per block of rows of similar length.

    model = build_sharded(model_config(described), options, mesh_of(group, device))
    log_probs, entropy = score(model, inputs, temperature)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.distributed import HashStore  # type: ignore[attr-defined] # exported without saying so
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from rljob_api.model_files.families import FAMILIES, family_problem
from rljob_workers.algorithms.log_probs import chunked_log_probs, wide_linear
from rljob_workers.devices import group_backend
from rljob_workers.trainers.fsdp.stored_tensors import bind_layout
from rljob_workers.trainers.row_blocks import RowBlocks

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from transformers import PretrainedConfig, PreTrainedModel

    from rljob_workers.trainers.data_parallel import DataParallelGroup
    from rljob_workers.trainers.fsdp.inputs import ModelInputs


def mesh_of(group: DataParallelGroup, device: torch.device) -> DeviceMesh:
    """The mesh of `group`, whose ranks compute on devices of this kind; a collective."""
    from torch.distributed.device_mesh import init_device_mesh

    if not distributed.is_initialized():
        assert group.world == 1, "a group of several ranks has joined before"
        store = HashStore()
        distributed.init_process_group(group_backend(device), store=store, rank=0, world_size=1)
    with group.collective("the mesh of the sharded model"):
        return init_device_mesh(device.type, (group.world,))


NAME = "rljob_rows"


def register() -> None:
    """Makes the name known to transformers. May be called twice."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend_within_rows)


def attend_within_rows(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    row_blocks: RowBlocks,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,  # noqa: ANN401 -- transformers' own, which change nothing here
) -> tuple[torch.Tensor, None]:
    """Causal attention of each row over itself. The signature is transformers'.

    Shapes: query [1, heads, tokens, width], key and value [1, key heads, tokens, width] -> [1, tokens, heads, width].
    `sliding_window`: how many tokens a token sees, itself included. `softcap`: scores become c tanh(score / c).
    """
    del module, others
    assert attention_mask is None, "no mask is made for this attention, and none is read"
    if s_aux is not None:
        raise ValueError(
            "model.path: its attention has sinks, which cannot be packed here. Set training.packing to false."
        )
    results = []
    for block in row_blocks.blocks:
        queries, keys, values = (_rows_of(tensor, block) for tensor in (query, key, value))
        mask = _window_mask(block.shape[1], sliding_window, block.device)
        if softcap is None:
            attended = scaled_dot_product_attention(
                queries, keys, values, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=True
            )
        else:
            attended = _softcapped(queries, keys, values, mask, scaling, softcap)
        results.append(attended.transpose(1, 2).flatten(0, 1))
    return torch.cat(results)[row_blocks.slot_of_token][None], None


def _rows_of(tensor: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    """[1, heads, tokens, width] -> [rows, heads, longest, width]."""
    return tensor[0][:, block].transpose(0, 1)


def _window_mask(length: int, sliding_window: int | None, device: torch.device) -> torch.Tensor | None:
    """[length, length], True where a token (dim 0) sees another. None: it sees all before it."""
    if not sliding_window or length <= sliding_window:
        return None
    place = torch.arange(length, device=device)
    distance = place[:, None] - place
    return (distance >= 0) & (distance < sliding_window)


def _softcapped(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
    softcap: float,
) -> torch.Tensor:
    """No kernel of torch caps scores, so they are all held: [rows, heads, longest, longest]."""
    length = queries.shape[2]
    if mask is None:
        mask = torch.ones(length, length, dtype=torch.bool, device=queries.device).tril()
    groups = queries.shape[1] // keys.shape[1]
    keys, values = (tensor.repeat_interleave(groups, 1) for tensor in (keys, values))
    scores = queries @ keys.transpose(2, 3) * (queries.shape[3] ** -0.5 if scaling is None else scaling)
    scores = (softcap * torch.tanh(scores / softcap)).masked_fill(~mask, float("-inf"))
    wide = torch.promote_types(scores.dtype, torch.float32)
    return torch.softmax(scores, -1, dtype=wide).to(values.dtype) @ values


SCORE = "score"
"""Name of the method."""


def score(model: PreTrainedModel, inputs: ModelInputs, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Log pi of each target, and the entropy of the distribution that it is a draw of; both [responses], float32.

    With a graph where gradients are on. A collective where the model is sharded, with no response tokens, too.
    """
    scored: tuple[torch.Tensor, torch.Tensor] = getattr(model, SCORE)(inputs, temperature)
    return scored


def bind_score(model: PreTrainedModel, head_dtype: torch.dtype | None, *, is_known_family: bool) -> None:
    """Gives the model its method `score`, whose logits are in `head_dtype`; None: in the type that it computes in.

    What a model of a family that is not known does with its hidden states only its own forward pass knows: it makes
    the logits of all tokens, which takes the memory for them.
    """
    if is_known_family:
        setattr(model, SCORE, MethodType(partial(_score_hidden_states, head_dtype=head_dtype), model))
        return
    if head_dtype is not None:
        _widen_head(model, head_dtype)
    setattr(model, SCORE, MethodType(_score_logits, model))


def _widen_head(model: PreTrainedModel, head_dtype: torch.dtype) -> None:
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if not isinstance(head, torch.nn.Linear):
        raise ValueError(
            f"model.headDtype: {str(head_dtype).removeprefix('torch.')} needs a head that is one matrix, which a"
            f" {model.config.model_type} model does not have. Set model.headDtype to what model.dtype is."
        )
    setattr(head, "forward", partial(_wide_head, head, head_dtype))  # noqa: B010 -- a method, in the eyes of mypy


def _wide_head(head: torch.nn.Linear, dtype: torch.dtype, hidden: torch.Tensor) -> torch.Tensor:
    logits = wide_linear(hidden, head.weight, dtype)
    return logits if head.bias is None else logits + head.bias.to(dtype)


def _score_hidden_states(
    model: PreTrainedModel, inputs: ModelInputs, temperature: float, *, head_dtype: torch.dtype | None
) -> tuple[torch.Tensor, torch.Tensor]:
    return chunked_log_probs(
        predicting_states(model, inputs),
        _head(model),
        inputs.targets,
        temperature=temperature,
        softcap=getattr(model.config, "final_logit_softcapping", None),
        head_dtype=head_dtype,
    )


def predicting_states(model: PreTrainedModel, inputs: ModelInputs) -> torch.Tensor:
    """What the head sees at the token before each response token, [responses, width]."""
    hidden: torch.Tensor = model.base_model(**_arguments(inputs)).last_hidden_state
    return hidden.flatten(0, 1)[inputs.predicting]


def _head(model: PreTrainedModel) -> torch.Tensor:
    """[vocabulary, width]."""
    head: torch.nn.Linear = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return head.weight


def _score_logits(model: PreTrainedModel, inputs: ModelInputs, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    # By the method and not by calling the model: FSDP is in `score` already.
    logits = model.forward(**_arguments(inputs)).logits.flatten(0, 1)[inputs.predicting]
    wide = torch.promote_types(logits.dtype, torch.float32)
    log_probs = torch.log_softmax(logits / temperature, -1, dtype=wide)
    return log_probs.gather(1, inputs.targets[:, None]).squeeze(1), -(log_probs.exp() * log_probs).sum(-1)


def _arguments(inputs: ModelInputs) -> dict[str, Any]:
    """Never an attention mask and never a cache: with either, transformers lets joined rows see each other."""
    blocks = {} if inputs.row_blocks is None else {"row_blocks": inputs.row_blocks}
    return {"input_ids": inputs.token_ids, "position_ids": inputs.positions, "use_cache": False, **blocks}


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
    """Whether a layer's activations are computed again in the backward pass instead of being retained."""
    device: str = "cpu"


def build_sharded(config: PretrainedConfig, options: ModelOptions, mesh: DeviceMesh) -> PreTrainedModel:
    """A policy of which each rank holds its shard."""
    return shard(_made(config, options), options, mesh, SCORE)


def shard(model: PreTrainedModel, options: ModelOptions, mesh: DeviceMesh, method: str) -> PreTrainedModel:
    """Each rank's shard of every parameter: layer by layer, and all that is in no layer as one group.

    The embedding, the head (which may be the same tensor) and the last norm are gathered for a whole pass of `method`.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    policy = MixedPrecisionPolicy()
    if options.compute != options.storage:
        policy = MixedPrecisionPolicy(param_dtype=options.compute, reduce_dtype=options.storage)
    for layer in _layers(model):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    _give_memory(model, options)
    register_fsdp_forward_method(model, method)
    return model


def reshard(model: PreTrainedModel) -> None:
    """Lets go of what is gathered: a pass without a backward pass leaves so what is in no layer."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def build_whole(config: PretrainedConfig, options: ModelOptions) -> PreTrainedModel:
    """All of it on this rank."""
    model = _made(config, options)
    _give_memory(model, options)
    return model


def _made(config: PretrainedConfig, options: ModelOptions) -> PreTrainedModel:
    """A policy on the meta device."""
    model = causal_model(config, options)
    bind_layout(model)
    bind_score(model, options.head_dtype, is_known_family=config.model_type in FAMILIES)
    return model


def causal_model(config: PretrainedConfig, options: ModelOptions) -> PreTrainedModel:
    """Transformers' causal language model, on the meta device, that computes as `options` say."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM

    problem = family_problem(config.to_dict())
    if problem is not None:
        raise ValueError(problem)
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(
            f"model.path: its config.json has model_type {config.model_type!r}, of which transformers has no causal"
            " language model. Give one."
        )
    register()
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
    return model


def _attention(config: PretrainedConfig, options: ModelOptions) -> dict[str, str]:
    """Ours for joined rows, else what transformers takes by itself, except where that may not cap scores.

    For Gemma 2 some versions (5.17) take torch's kernel, which does not, and log-probs are wrong without an error.
    """
    if options.packing:
        return {"attn_implementation": NAME}
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
    initialisation, which is passed that the parameters have values. One that it does not make stays NaN.
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
