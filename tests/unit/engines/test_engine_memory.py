"""What an engine's weights take is what the dry run says, with a tied head and without."""

import gc

import pytest
import torch

from rljob_api.machine.memory import engine_memory
from rljob_api.model_files.size import shape_of_config
from rljob_api.spec.engine import EngineSpec
from rljob_api.spec.model import Dtype, ModelConfig, ModelSpec
from rljob_workers.engines.torch_engine.decoder import fuse_weights, geometry_of
from rljob_workers.models.building import build_config, initial_state, torch_dtype
from rljob_workers.models.tokenizers import build_tokenizer
from tests.memory_meter import MemoryMeter


@pytest.mark.parametrize(
    ("dtype", "head_dtype"),
    [(Dtype.FLOAT32, Dtype.FLOAT32), (Dtype.BFLOAT16, Dtype.BFLOAT16), (Dtype.BFLOAT16, Dtype.FLOAT32)],
)
@pytest.mark.parametrize("tied", [True, False])
def test_its_weights(dtype: Dtype, head_dtype: Dtype, tied: bool) -> None:
    config = ModelConfig(tie_word_embeddings=tied)
    spec = ModelSpec(config=config, dtype=dtype)
    tokenizer = build_tokenizer(spec)
    state = initial_state(spec, tokenizer)
    geometry = geometry_of(build_config(spec, tokenizer), torch_dtype(dtype), head_dtype=torch_dtype(head_dtype))
    with MemoryMeter() as meter:
        weights = fuse_weights(state, geometry)
        gc.collect()
        held = meter.live_bytes
    assert isinstance(weights.embedding, torch.Tensor)
    by_formula = engine_memory(shape_of_config(config), dtype, head_dtype, EngineSpec())
    head_norms = 2 * config.num_layers * config.head_dim  # of queries and of keys; here they are once for each head
    expanded = config.num_layers * config.head_dim * (config.num_attention_heads + config.num_key_value_heads)
    assert held == by_formula.weights + (expanded - head_norms) * (4 if dtype is Dtype.FLOAT32 else 2)
    assert by_formula.peak == 2 * by_formula.weights
