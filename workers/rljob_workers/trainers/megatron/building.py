"""A decoder of the hub as chunks of Megatron, without weights, on one rank of a gang whose groups are made.

Families are those of `rljob_api.model_files.parallel_layout`. The chunks give hidden states: the head's product is the
caller's, a chunk of tokens at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from rljob_api.spec.training import RecomputedModule
from rljob_workers.devices import own_device
from rljob_workers.trainers.megatron.layer_choice import Layers
from rljob_workers.trainers.megatron.layers import Norm, PackedAttention, ValueHead
from rljob_workers.trainers.megatron.sizes import DecoderSizes, padded_vocabulary
from rljob_workers.trainers.megatron.stored_names import is_expert

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from transformers import PretrainedConfig

    from rljob_api.spec.parallelism import ParallelismSpec


def _left_as_it_is(weight: torch.Tensor) -> torch.Tensor:
    return weight


_MODULES = {
    RecomputedModule.CORE_ATTN: "core_attn",
    RecomputedModule.MLP: "mlp",
    RecomputedModule.MOE: "moe",
}
"""Megatron's names."""


def transformer_config(
    config: PretrainedConfig,
    sizes: DecoderSizes,
    parallelism: ParallelismSpec,
    dtype: torch.dtype,
    layers: Layers,
    *,
    recomputes: bool,
    recomputed: Collection[RecomputedModule],
) -> Any:  # noqa: ANN401 -- of an untyped library
    """Megatron's settings.

    `recomputes`: a layer's activations are computed again in the backward pass; else those of its `recomputed` parts.
    """
    from megatron.core.transformer.transformer_config import TransformerConfig

    more: dict[str, Any] = {}
    if sizes.experts:
        more |= {
            "num_moe_experts": sizes.experts,
            "moe_router_topk": config.num_experts_per_tok,
            "moe_ffn_hidden_size": sizes.expert_inner,
            "moe_router_load_balancing_type": "none",
            "moe_aux_loss_coeff": 0.0,
            "moe_router_pre_softmax": not config.norm_topk_prob,
            "moe_router_dtype": "fp32",
            "moe_grouped_gemm": layers is Layers.ENGINE,
            "expert_model_parallel_size": parallelism.expert,
            "expert_tensor_parallel_size": parallelism.expert_tensor,
        }
    if recomputes:
        more |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    elif recomputed:
        more |= {"recompute_granularity": "selective", "recompute_modules": [_MODULES[one] for one in recomputed]}
    is_interleaved = parallelism.virtual_pipeline > 1
    return TransformerConfig(
        num_layers=sizes.layers,
        hidden_size=sizes.hidden,
        num_attention_heads=sizes.heads,
        num_query_groups=sizes.key_heads,
        kv_channels=sizes.head_width,
        ffn_hidden_size=sizes.inner,
        gated_linear_unit=True,
        activation_func=functional.silu,
        normalization="RMSNorm",
        layernorm_epsilon=config.rms_norm_eps,
        qk_layernorm=config.model_type.startswith("qwen3"),
        add_bias_linear=False,
        add_qkv_bias=config.model_type == "qwen2",
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=parallelism.tensor,
        pipeline_model_parallel_size=parallelism.pipeline,
        virtual_pipeline_model_parallel_size=parallelism.virtual_pipeline if is_interleaved else None,
        context_parallel_size=parallelism.context,
        sequence_parallel=parallelism.cuts_sequence,
        bf16=dtype == torch.bfloat16,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        # On two stages both neighbours of a stage are one rank, and one batch of sends would exchange their tensors.
        overlap_p2p_comm=is_interleaved,
        batch_p2p_comm=not is_interleaved,
        variable_seq_lengths=parallelism.pipeline > 1,
        calculate_per_token_loss=True,  # DDP divides by nothing
        # Not perform_initialization=False, which leaves parameters unmarked as cut, so that their norms are counted
        # wrong; nor use_cpu_initialization, by which each rank makes all of each parameter first.
        init_method=_left_as_it_is,
        output_layer_init_method=_left_as_it_is,
        # Of models without experts, too: with the default rows of several lengths are refused. Another dispatcher
        # wants equally many tokens on all ranks, and ends the process where they are not.
        moe_token_dispatcher_type="alltoall",  # noqa: S106 -- tokens of text
        # Transformer Engine's, in float32; the local one asks for the rows' lengths in each layer, and waits for them.
        apply_rope_fusion=layers is Layers.ENGINE,
        # Other fusions are compiled by torch, a minute of each rank's start, or are kernels of apex.
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
        **more,
    )


def build_chunks(
    config: PretrainedConfig,
    sizes: DecoderSizes,
    parallelism: ParallelismSpec,
    settings: Any,  # noqa: ANN401 -- of an untyped library
    layers: Layers,
) -> list[torch.nn.Module]:
    """This rank's chunks of layers, each with embedding and head where it is the first and the last.

    `settings` are of `transformer_config`. Their memory is not initialised.
    """
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build

    chunks: list[torch.nn.Module] = []
    layer, norm = _layer(sizes, layers, has_qk_norm=settings.qk_layernorm)
    for number in range(parallelism.virtual_pipeline):
        vp_stage = number if parallelism.virtual_pipeline > 1 else None
        specs = [layer] * get_num_layers_to_build(settings, vp_stage=vp_stage)
        chunk = GPTModel(
            config=settings,
            transformer_layer_spec=TransformerBlockSubmodules(layer_specs=specs, layer_norm=norm),
            vocab_size=padded_vocabulary(sizes.vocabulary, parallelism.tensor),
            max_sequence_length=config.max_position_embeddings,
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage),
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage),
            position_embedding_type="rope",
            share_embeddings_and_output_weights=sizes.is_tied,
            parallel_output=True,
            vp_stage=vp_stage,
        )
        # transformers' own, whatever the kind of scaling: Megatron knows the factor of Llama 3's alone.
        chunk.rotary_pos_emb.inv_freq = _inverse_frequencies(config)
        if chunk.post_process:
            if sizes.has_value_head:
                chunk.output_layer = ValueHead(sizes.hidden, settings.params_dtype, own_device())
            chunk.output_layer.forward = _hidden_states
        for name, parameter in chunk.named_parameters():
            if is_expert(name):
                # By itself Megatron adds gradients of experts up over the ranks of other experts' tokens only where
                # they are dealt: with tensor ranks alone each would step by those of its own tokens, silently.
                parameter.allreduce = False
        chunks.append(chunk)
    return chunks


def _hidden_states(hidden: torch.Tensor, **others: Any) -> tuple[torch.Tensor, None]:  # noqa: ANN401, ARG001 -- Megatron's
    """In place of the head: no logits."""
    return hidden, None


def _layer(sizes: DecoderSizes, layers: Layers, *, has_qk_norm: bool) -> tuple[Any, type]:
    """What a layer is made of, and the norm behind the last one."""
    from megatron.core.models.gpt import gpt_layer_specs

    if layers is Layers.ENGINE:
        from megatron.core.extensions.transformer_engine import TENorm

        spec = gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec(
            num_experts=sizes.experts or None, moe_grouped_gemm=bool(sizes.experts), qk_layernorm=has_qk_norm
        )
        if sizes.experts:
            _count_tokens(spec)
        return spec, TENorm
    spec = gpt_layer_specs.get_gpt_layer_local_spec(
        num_experts=sizes.experts or None, moe_grouped_gemm=False, qk_layernorm=has_qk_norm, normalization="RMSNorm"
    )
    layer, attention = spec.submodules, spec.submodules.self_attention.submodules
    if sizes.experts:
        _count_tokens(spec)
    attention.core_attention = PackedAttention
    layer.input_layernorm = layer.pre_mlp_layernorm = Norm
    if has_qk_norm:
        attention.q_layernorm = attention.k_layernorm = Norm
    return spec, Norm


def _count_tokens(spec: Any) -> None:  # noqa: ANN401 -- of an untyped library
    from rljob_workers.trainers.megatron.routers import CountedLayer, CountingRouter

    spec.module = CountedLayer
    spec.submodules.mlp.submodules.router = CountingRouter


def _inverse_frequencies(config: PretrainedConfig) -> torch.Tensor:
    """[head width / 2] float32, a tensor of its own: transformers' is a buffer of another type."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rotary = LlamaRotaryEmbedding(config)  # type: ignore[arg-type] # it reads fields that all families have
    assert rotary.attention_scaling == 1.0, "families whose rotary embedding scales attention are refused"
    return rotary.inv_freq.detach().float().clone().to(own_device())


def head_weight(chunk: Any) -> torch.Tensor:  # noqa: ANN401 -- of an untyped library
    """This rank's rows of the head of a last chunk, padding included; a critic's whole."""
    tied = chunk.share_embeddings_and_output_weights
    weight: torch.Tensor = chunk.shared_embedding_or_output_weight() if tied else chunk.output_layer.weight
    return weight


def first_layers(chunks: Sequence[Any]) -> list[int]:
    """Of each chunk, which layer of the model its first one is; 0 for a chunk without layers."""
    return [chunk.decoder.layers[0].layer_number - 1 if len(chunk.decoder.layers) else 0 for chunk in chunks]
