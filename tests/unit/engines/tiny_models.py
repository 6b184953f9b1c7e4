"""Tiny random models, as Hugging Face computes them and as the engine does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, PreTrainedModel, Qwen3Config

from rljob_api.names import Lineage, WeightVersion
from rljob_api.wire.identity import WeightId
from rljob_workers.engines.torch_engine.continuous_batching import ContinuousBatching
from rljob_workers.engines.torch_engine.decoder import DecoderWeights, Geometry, fuse_weights, geometry_of
from rljob_workers.engines.torch_engine.requests import Batch, PromptGroup
from rljob_workers.engines.torch_engine.scheduler import Limits, Scheduler
from tests.unit.models.peer import config_of

VOCAB = 29
_CONFIGS: dict[str, Callable[..., PretrainedConfig]] = {"qwen3": Qwen3Config, "llama": LlamaConfig}
FIRST = WeightId(lineage=Lineage(1), version=WeightVersion(0))
SECOND = WeightId(lineage=Lineage(1), version=WeightVersion(1))


def make_model(kind: str, *, seed: int = 0, tied: bool = True, max_position_embeddings: int = 512) -> PreTrainedModel:
    """A random model whose norms are not 1 and whose distributions are far from uniform."""
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": max_position_embeddings,
        "tie_word_embeddings": tied,
        "initializer_range": 0.3,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = _CONFIGS[kind](**sizes)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "norm" in name:
                    weight.copy_(0.5 + torch.rand_like(weight))
    model.train(mode=False)
    return model


def weights_of(model: PreTrainedModel) -> tuple[Geometry, DecoderWeights]:
    """The model as the engine holds it."""
    geometry = geometry_of(config_of(model), torch.float32)
    return geometry, fuse_weights(model.state_dict(), geometry)


def make_scheduler(model: PreTrainedModel, **limits: int) -> Scheduler:
    """A scheduler that holds the model as FIRST."""
    geometry, weights = weights_of(model)
    scheduler = Scheduler(geometry, Limits(**limits))
    scheduler.install(weights, FIRST)
    return scheduler


def make_group(prompt: Sequence[int], **changes: object) -> PromptGroup:
    """A group with plain sampling."""
    values: dict[str, object] = {
        "rid": "r",
        "num_samples": 1,
        "seed": 0,
        "max_new_tokens": 8,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "stop_token_ids": frozenset(),
    }
    return PromptGroup(prompt=prompt, **(values | changes))  # type: ignore[arg-type]


def make_batch(*groups: PromptGroup) -> Batch:
    """A batch that notifies no reader when it is done."""
    return Batch(groups)


def run(scheduler: ContinuousBatching[Any], *batches: Batch) -> None:
    """Submits together and steps until all is done."""
    with torch.inference_mode():
        for batch in batches:
            scheduler.submit(batch)
        while scheduler.has_work:
            scheduler.step()


def outputs(batch: Batch) -> list[list[int]]:
    """Tokens of every row."""
    assert batch.error is None
    return [batch.tokens[row, :length].tolist() for row, length in enumerate(batch.lengths.tolist())]


def hf_log_probs(
    model: PreTrainedModel, prompt: Sequence[int], output: Sequence[int], temperature: float = 1.0
) -> torch.Tensor:
    """log softmax(logits / temperature) of the output's tokens, by Hugging Face's own forward pass."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *output]])).logits[0, len(prompt) - 1 : -1].float() / temperature
    chosen: torch.Tensor = logits.log_softmax(-1).gather(1, torch.tensor(output)[:, None])[:, 0]
    return chosen
