"""Builders: tiny jobs and rows to train on."""

from __future__ import annotations

import torch

from rljob_api.manifest import parse_manifest
from rljob_api.spec import RLJobSpec
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.base import TrainRows
from tests.train_rows import rows_of

_MANIFEST = """
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: tiny}
spec:
  model:
    dtype: %(dtype)s
    config:
      architecture: %(architecture)s
      hiddenSize: 32
      intermediateSize: 48
      headDim: 8
      initializerRange: 0.3
      tieWordEmbeddings: %(tied)s
      tokenizer: {alphabet: "0123456789="}
  data: {prompts: prompts.jsonl}
  algorithm: {lossAggregation: %(aggregation)s, kl: {coefficient: 0.05}}
  rollout:
    numRollouts: 4
    batchSize: 4
    samplesPerPrompt: 4
    sampling: {temperature: 1.3}
  training:
    globalBatchSize: 16
    microBatchSize: %(micro_batch_size)s
    optimizer: {learningRate: 0.01, weightDecay: 0.1, maxGradNorm: 0.5, warmupSteps: 2}
  roles: {reference: {}}
"""


def make_spec(
    *,
    dtype: str = "float32",
    architecture: str = "Qwen3",
    tied: bool = True,
    micro_batch_size: int = 16,
    aggregation: str = "TokenMean",
) -> RLJobSpec:
    text = _MANIFEST % {
        "dtype": dtype,
        "architecture": architecture,
        "tied": str(tied).lower(),
        "micro_batch_size": micro_batch_size,
        "aggregation": aggregation,
    }
    return parse_manifest(text, "tiny").spec


def make_rows(seed: int, *, num_groups: int = 4, samples: int = 4, longest: int = 12) -> TrainRows:
    """Rows of `num_groups` prompts; some masked tokens, log-probs near those of a model that is close to uniform."""
    chance = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, count: int) -> torch.Tensor:
        return torch.randint(low, high, (count,), generator=chance)

    prompts = [integers(0, 10, int(integers(1, 6, 1))) for _ in range(num_groups)]
    lengths = integers(1, longest + 1, num_groups * samples)
    tokens = [
        torch.cat([prompts[row // samples], integers(0, 12, length)]).to(torch.int32)
        for row, length in enumerate(lengths.tolist())
    ]
    total = int(lengths.sum())

    def per_token(values: torch.Tensor) -> Jagged:
        return Jagged.from_lengths(values, lengths)

    log_probs = -2.5 + 0.3 * torch.randn(total, generator=chance)
    return rows_of(
        tokens=Jagged.from_rows(tokens),
        response_lengths=lengths,
        loss_masks=per_token((torch.rand(total, generator=chance) > 0.1).to(torch.uint8)),
        log_probs=per_token(log_probs),
        rollout_log_probs=per_token(log_probs + 0.1 * torch.randn(total, generator=chance)),
        advantages=per_token(torch.randn(total, generator=chance)),
        ref_log_probs=per_token(log_probs + 0.1 * torch.randn(total, generator=chance)),
    )


def select_rows(rows: TrainRows, indices: list[int]) -> TrainRows:
    return TrainRows({column: values.select(indices) for column, values in rows.columns.items()})
