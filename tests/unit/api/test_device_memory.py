"""Memory by formula: known models come out with known sizes, and more ranks never need more each."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.machine.memory import Pass, engine_memory, forward_memory, kv_bytes_per_token, trainer_memory
from rljob_api.model_files.size import ModelShape, critic_shape, model_shape, reference_shape, shape_of_files
from rljob_api.spec import RLJobSpec
from rljob_api.spec.engine import EngineSpec
from rljob_api.spec.model import Dtype, ModelSpec
from rljob_api.spec.roles import TrainerBackend
from tests.unit.api.manifests import changed

QWEN3_4B: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}


QWEN3_32B = QWEN3_4B | {
    "hidden_size": 5120,
    "intermediate_size": 25600,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "tie_word_embeddings": False,
}
QWEN3_30B_A3B = QWEN3_4B | {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}


def stored(described: dict[str, Any]) -> dict[str, list[int]]:
    """Names and shapes as the folder of such a model has them, its head, also a tied one, beside the embedding."""
    hidden, inner, width = described["hidden_size"], described["intermediate_size"], described["head_dim"]
    queries, keys = described["num_attention_heads"] * width, described["num_key_value_heads"] * width
    shapes = {"model.embed_tokens.weight": [described["vocab_size"], hidden], "model.norm.weight": [hidden]}
    shapes["lm_head.weight"] = shapes["model.embed_tokens.weight"]
    experts = described.get("num_experts", 0)
    for layer in range(described["num_hidden_layers"]):
        parts = [f"mlp.experts.{expert}" for expert in range(experts)] or ["mlp"]
        if experts:
            inner = described["moe_intermediate_size"]
            shapes[f"model.layers.{layer}.mlp.gate.weight"] = [experts, hidden]
        for part in parts:
            shapes[f"model.layers.{layer}.{part}.gate_proj.weight"] = [inner, hidden]
            shapes[f"model.layers.{layer}.{part}.up_proj.weight"] = [inner, hidden]
            shapes[f"model.layers.{layer}.{part}.down_proj.weight"] = [hidden, inner]
        for name, shape in {
            "self_attn.q_proj": [queries, hidden],
            "self_attn.k_proj": [keys, hidden],
            "self_attn.v_proj": [keys, hidden],
            "self_attn.o_proj": [hidden, queries],
            "self_attn.q_norm": [width],
            "self_attn.k_norm": [width],
            "input_layernorm": [hidden],
            "post_attention_layernorm": [hidden],
        }.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    return shapes


@pytest.fixture(scope="module")
def shape() -> ModelShape:
    return shape_of_files(QWEN3_4B, stored(QWEN3_4B))


def test_a_known_model_has_its_known_size(shape: ModelShape) -> None:
    assert shape.parameters == 4_022_468_096  # as its card says: 4.0B, of which 3.6B are no embedding
    assert shape.outside == 151936 * 2560 + 2560
    assert shape.layer * 36 + shape.outside == shape.parameters
    assert kv_bytes_per_token(shape, Dtype.BFLOAT16) == 147_456  # 144 KiB


def test_eight_ranks_share_what_they_train(shape: ModelShape) -> None:
    work = Pass(tokens=16384, responses=8192, checkpointing=True)
    alone, eighth = (trainer_memory(shape, TrainerBackend.FSDP, Dtype.BFLOAT16, world, work) for world in (1, 8))
    assert alone.state == 16 * shape.parameters
    assert eighth.state == 16 * shape.parameters // 8
    assert (eighth.copies, eighth.activations) == (alone.copies, alone.activations)
    assert engine_memory(shape, Dtype.BFLOAT16, Dtype.BFLOAT16, EngineSpec()).weights == 2 * (
        shape.parameters + 151936 * 2560
    )  # its head is tied


def test_a_critic_has_a_row_in_the_place_of_the_language_head(shape: ModelShape, tmp_path: Path) -> None:
    tied, untied = make_critic({}), make_critic({"tieWordEmbeddings": False})
    assert (tied.parameters, untied.parameters) == (policy_parameters({}) + 32, policy_parameters({}) + 32)
    assert (untied.outside, untied.vocabulary) == (100 * 32 + 32 + 32, 1)

    folder = tmp_path / "reward"
    folder.mkdir()
    shapes = {name: size for name, size in stored(QWEN3_4B).items() if name != "lm_head.weight"}
    head = json.dumps({name: {"shape": size} for name, size in {**shapes, "score.weight": [1, 2560]}.items()}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head)
    (folder / "config.json").write_text(json.dumps({**QWEN3_4B, "tie_word_embeddings": False}))
    assert make_critic({}, modelPath=str(folder)) == replace(
        shape, parameters=shape.parameters + 2560, outside=shape.outside + 2560, vocabulary=1
    )


def test_a_teacher_has_the_size_of_its_own_files(shape: ModelShape, tmp_path: Path) -> None:
    head = json.dumps({name: {"shape": size} for name, size in stored(QWEN3_4B).items()}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head)
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_4B))
    policy = model_shape(ModelSpec.model_validate({"config": CONFIG}))
    for reference, expected in (({"modelPath": str(tmp_path)}, shape), ({}, policy)):
        spec = RLJobSpec.model_validate(changed({"spec.roles.reference": reference})["spec"])
        assert reference_shape(spec, policy) == expected


def test_a_critic_makes_no_logits(shape: ModelShape) -> None:
    work = Pass(tokens=512, responses=512, checkpointing=True)
    critic = trainer_memory(replace(shape, vocabulary=1), TrainerBackend.FLAT, Dtype.BFLOAT16, 1, work)
    policy = trainer_memory(shape, TrainerBackend.FLAT, Dtype.BFLOAT16, 1, work)
    assert policy.activations - critic.activations > 512 * 151936 * 4


CONFIG = {"hiddenSize": 32, "intermediateSize": 48, "numLayers": 3, "headDim": 8, "vocabSize": 100}


def policy_parameters(fields: dict[str, Any]) -> int:
    return model_shape(ModelSpec.model_validate({"config": {**CONFIG, **fields}})).parameters


def make_critic(fields: dict[str, Any], **critic: str) -> ModelShape:
    job: dict[str, Any] = {"spec.algorithm.advantage": "Gae", "spec.roles.critic": critic}
    for name, value in {**CONFIG, **fields}.items():
        job[f"spec.model.config.{name}"] = value
    spec = RLJobSpec.model_validate(changed(job)["spec"])
    return critic_shape(spec, model_shape(spec.model))


def test_a_folder_and_a_config_of_the_same_model_come_out_alike(tmp_path: Path) -> None:
    config = {"hiddenSize": 32, "intermediateSize": 48, "numLayers": 3, "headDim": 8, "vocabSize": 100}
    made = model_shape(ModelSpec.model_validate({"config": config}))
    described = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 100,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
    }
    head = json.dumps({name: {"shape": shape} for name, shape in stored(described).items()}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head)
    (tmp_path / "config.json").write_text(json.dumps(described))
    assert model_shape(ModelSpec(path=str(tmp_path))) == made
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-00001.safetensors")
    index = {"weight_map": dict.fromkeys(stored(described), "model-00001-of-00001.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "consolidated.safetensors").write_bytes(b"not what the index names")
    assert model_shape(ModelSpec(path=str(tmp_path))) == made
    (tmp_path / "config.json").write_text(json.dumps({**described, "vocab_size": None}))
    with pytest.raises(ValueError, match=r"^model\.path: its config\.json has vocab_size None, and without it"):
        model_shape(ModelSpec(path=str(tmp_path)))


def test_a_token_goes_through_some_experts_only() -> None:
    experts = {**QWEN3_4B, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
    assert shape_of_files(experts, stored(QWEN3_4B)).inner == 8 * 768


@given(
    backend=st.sampled_from([TrainerBackend.FLAT, TrainerBackend.FSDP]),
    dtype=st.sampled_from(Dtype),
    world=st.integers(1, 64),
    tokens=st.integers(1, 1 << 17),
)
def test_nothing_needs_less_for_more(backend: TrainerBackend, dtype: Dtype, world: int, tokens: int) -> None:
    shape = shape_of_files(QWEN3_4B, stored(QWEN3_4B))

    def peak(world: int, tokens: int, *, checkpointing: bool = True) -> int:
        return trainer_memory(shape, backend, dtype, world, Pass(tokens, tokens, checkpointing)).peak

    assert peak(world, tokens) >= peak(world + 1, tokens)
    assert peak(world, tokens) < peak(world, tokens + 1)
    assert peak(world, tokens) < peak(world, tokens, checkpointing=False)
    assert forward_memory(shape, backend, dtype, Pass(tokens, tokens)).peak < peak(1, tokens)
