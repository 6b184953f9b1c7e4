"""Figures of one trainer on one device: tokens/s, model FLOP utilisation, memory, and what exports cost a step.

    python -m tests.gpu.speed --size 4B --length 4096 --backend Fsdp

A model of the size with random weights, bfloat16 compute with float32 masters, on rows of `length` tokens of which a
quarter is the prompt. Prints one JSON object. On the CPU only `--size smallest` ends within a minute.

Model FLOPs of a token, forward and backward: 6 for each weight that it is multiplied with (the head's too, not those
of the embedding) and 6 x layers x heads x head size for each token of its row, half of which it sees. Recomputed
activations do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rljob_api.model_files.size import parameters_of_config
from rljob_api.spec import RLJobSpec
from rljob_api.spec.model import Architecture, ModelConfig
from rljob_api.spec.roles import TrainerBackend
from rljob_workers.dcs.tensor_bytes import stage_part
from rljob_workers.devices import own_device
from rljob_workers.models.blob import write_blob
from rljob_workers.models.building import build_config, tensor_shapes
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.models.weights import Folder
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers import build_trainer
from rljob_workers.trainers.base import Trainer, TrainRows
from rljob_workers.trainers.data_parallel import SingleRank
from tests.train_rows import rows_of

SIZES: dict[str, dict[str, Any]] = {
    "smallest": {"hiddenSize": 64, "intermediateSize": 128, "numLayers": 2, "vocabSize": 512},
    # As Qwen3-0.6B and Qwen3-4B are.
    "0.6B": {
        "hiddenSize": 1024, "intermediateSize": 3072, "numLayers": 28, "numAttentionHeads": 16,
        "numKeyValueHeads": 8, "headDim": 128, "vocabSize": 151936,
    },
    "4B": {
        "hiddenSize": 2560, "intermediateSize": 9728, "numLayers": 36, "numAttentionHeads": 32,
        "numKeyValueHeads": 8, "headDim": 128, "vocabSize": 151936,
    },
}  # fmt: skip
PEAK_FLOPS = {"NVIDIA H100": 989e12, "NVIDIA H200": 989e12, "NVIDIA A100": 312e12}
"""Of dense bfloat16 products, as the maker says; of others utilisation is not reported."""
TOKENS_PER_STEP = 65536
TOKENS_PER_SMALL_STEP = 1024
CHUNK_BYTES = 4 << 20
"""weightSync.chunkBytes."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, required=True)
    parser.add_argument("--length", type=int, required=True, help="Tokens of a row.")
    parser.add_argument("--backend", choices=[backend.value for backend in TrainerBackend], required=True)
    parser.add_argument("--steps", type=int, default=5, help="Optimizer steps that are timed.")
    arguments = parser.parse_args()
    message: dict[str, Any] = {"size": arguments.size, "length": arguments.length, "backend": arguments.backend}
    try:
        found = measure(job_of(arguments.size, arguments.length, arguments.backend), arguments.length, arguments.steps)
    except torch.OutOfMemoryError as error:
        found = {"outOfMemory": str(error).splitlines()[0]}
    sys.stdout.write(json.dumps(message | found) + "\n")


def job_of(size: str, length: int, backend: str) -> RLJobSpec:
    tokens = TOKENS_PER_SMALL_STEP if size == "smallest" else TOKENS_PER_STEP
    rows = max(2, tokens // length)
    config = {**SIZES[size], "maxPositionEmbeddings": 2 * length, "tokenizer": {"kind": "Byte"}}
    return RLJobSpec.model_validate(
        {
            "model": {"config": config, "dtype": "bfloat16"},
            "data": {"prompts": "none.jsonl"},
            "rollout": {"numRollouts": 1, "batchSize": 1, "samplesPerPrompt": rows, "sampling": {"maxNewTokens": 1}},
            "training": {"globalBatchSize": rows, "microBatchSize": 1},
            "roles": {"actor": {"backend": backend}, "actorFwd": None},
        }
    )


def measure(spec: RLJobSpec, length: int, steps: int) -> dict[str, Any]:
    """Steps as they are, then one beside which weights and state are copied."""
    device, config = own_device(), spec.model.config
    assert config is not None
    trainer = build_trainer(spec, build_tokenizer(spec.model), SingleRank())
    load_random(trainer, spec)
    rows = make_rows(spec.training.global_batch_size, length, config.vocab_size or 2)
    train(trainer, rows)  # the first one allocates, and chooses kernels
    wait_for(device)
    seconds = sorted(timed(device, lambda: train(trainer, rows)) for _ in range(steps))[steps // 2]
    tokens = len(rows.response_lengths) * length
    flops = tokens * flops_per_token(config, length)
    peak = next((peak for name, peak in PEAK_FLOPS.items() if device_name(device).startswith(name)), None)
    return {
        "device": device_name(device),
        "parameters": parameters_of_config(config),
        "tokensPerStep": tokens,
        "secondsPerStep": round(seconds, 4),
        "tokensPerSecond": round(tokens / seconds),
        "modelFlopUtilisation": None if peak is None else round(flops / seconds / peak, 3),
        "peakGiB": round(peak_bytes(device) / 2**30, 2),
        **exports(trainer, rows, device),
    }


def exports(trainer: Trainer, rows: TrainRows, device: torch.device) -> dict[str, float]:
    """What a publication and a checkpoint keep the trainer waiting for, and the step that is computed beside them."""
    stall = timed(device, lambda: publish(trainer))
    began = time.perf_counter()
    state = trainer.stage_state()
    begun = time.perf_counter() - began
    beside = timed(device, lambda: train(trainer, rows))
    whole = timed(device, state.tensors)
    return {
        "publicationStallSeconds": round(stall, 4),
        "checkpointStallSeconds": round(begun, 4),
        "secondsPerStepBesideACheckpoint": round(beside, 4),
        "secondsOfTheCopyLeftAfterThatStep": round(whole, 4),
    }


def publish(trainer: Trainer) -> None:
    """As a publisher does before it reports its part: staged, and its bytes checksummed."""
    blob = stage_part("speed", trainer.stage_weights(), CHUNK_BYTES)
    os.close(blob.descriptor)


def flops_per_token(config: ModelConfig, length: int) -> float:
    """See above."""
    lookups = 0 if config.tie_word_embeddings else (config.vocab_size or 0) * config.hidden_size
    attention = config.num_layers * config.num_attention_heads * config.head_dim
    return 6.0 * (parameters_of_config(config) - lookups) + 6.0 * attention * length


def load_random(trainer: Trainer, spec: RLJobSpec) -> None:
    """Weights as initial ones are, drawn where that is fast: the loaders read them from a file."""
    assert spec.model.config is not None
    assert spec.model.config.architecture is Architecture.QWEN3
    shapes = tensor_shapes(build_config(spec.model, build_tokenizer(spec.model)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "random.safetensors"
        write_blob(path, {name: drawn(shape) for name, shape in shapes.items()})
        trainer.load(Folder(path))


def drawn(shape: tuple[int, ...]) -> torch.Tensor:
    weight = torch.ones(shape, device=own_device())
    return (weight.normal_(0.0, 0.02) if len(shape) == 2 else weight).to("cpu", torch.bfloat16)


def make_rows(count: int, length: int, vocabulary: int) -> TrainRows:
    """`count` rows of `length` tokens, each of a prompt of its own."""
    chance = torch.Generator().manual_seed(0)
    responses = torch.full((count,), length - length // 4, dtype=torch.int64)
    total = int(responses.sum())

    def per_token(values: torch.Tensor) -> Jagged:
        return Jagged.from_lengths(values, responses)

    tokens = torch.randint(0, vocabulary, (count * length,), generator=chance, dtype=torch.int32)
    return rows_of(
        tokens=Jagged.from_lengths(tokens, torch.full((count,), length, dtype=torch.int64)),
        response_lengths=responses,
        loss_masks=per_token(torch.ones(total, dtype=torch.uint8)),
        log_probs=None,
        rollout_log_probs=per_token(torch.full((total,), -11.0)),
        advantages=per_token(torch.randn(total, generator=chance)),
        ref_log_probs=None,
    )


def train(trainer: Trainer, rows: TrainRows) -> None:
    trainer.accumulate(rows, num_micro_batches=trainer.num_micro_batches(rows))
    trainer.optimizer_step()


def timed(device: torch.device, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - began


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
