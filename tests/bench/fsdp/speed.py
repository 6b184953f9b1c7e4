"""Tokens a second of forward and backward passes: the sharded trainer, the flat one, and a plain transformers loop.

All train the same Qwen3 with the same loss on the same rows, in micro-batches of the same rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rljob_api.manifest import parse_manifest
from rljob_api.spec import RLJobSpec
from rljob_workers.algorithms.objective import MaskedRows, Outputs
from rljob_workers.models.blob import read_blob, write_blob
from rljob_workers.models.building import described_config, initial_state, model_config
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.models.weights import Folder
from rljob_workers.tensors.columns import Column, Over
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers import build_trainer
from rljob_workers.trainers.base import TrainRows
from rljob_workers.trainers.data_parallel import SingleRank
from rljob_workers.trainers.objectives import policy_objective
from tests.train_rows import rows_of

TEMPERATURE = 1.0
_MANIFEST = """
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: bench}
spec:
  model:
    config:
      hiddenSize: %(hidden)d
      intermediateSize: %(inner)d
      numLayers: %(layers)d
      numAttentionHeads: 8
      numKeyValueHeads: 4
      headDim: 32
      vocabSize: %(vocabulary)d
      maxPositionEmbeddings: 2048
  data: {prompts: prompts.jsonl}
  rollout: {numRollouts: 1, batchSize: 32, samplesPerPrompt: 16}
  training: {globalBatchSize: 512, microBatchSize: %(micro_batch)d, activationCheckpointing: %(checkpointing)s}
  roles: {actor: {backend: %(backend)s}}
"""


@dataclass(frozen=True, slots=True)
class Size:
    """Of the model and of what is trained on."""

    hidden: int
    layers: int
    vocabulary: int
    rows: int
    longest: int
    """Tokens of a row, at most."""
    micro_batch: int

    def spec(self, backend: str, *, checkpointing: str = "null") -> RLJobSpec:
        """A job that trains this model."""
        fields = {
            "hidden": self.hidden,
            "inner": 3 * self.hidden,
            "layers": self.layers,
            "vocabulary": self.vocabulary,
            "micro_batch": self.micro_batch,
            "backend": backend,
            "checkpointing": checkpointing,
        }
        return parse_manifest(_MANIFEST % fields, "bench").spec

    def rows_of(self, *, even: bool) -> TrainRows:
        """Rows of one length, or of lengths from a fourteenth of the longest to the longest."""
        chance = torch.Generator().manual_seed(4)
        mean = self.longest * 15 // 28
        lengths = torch.full((self.rows,), mean)
        if not even:
            lengths = torch.linspace(self.longest // 14, self.longest, self.rows).long()
            lengths = lengths[torch.randperm(self.rows, generator=chance)]
        responses = lengths * 3 // 4
        total = int(responses.sum())

        def column(values: torch.Tensor) -> Jagged:
            return Jagged.from_lengths(values, responses)

        log_probs = torch.full((total,), -5.0)
        return rows_of(
            tokens=Jagged.from_lengths(torch.randint(0, 90, (int(lengths.sum()),), generator=chance), lengths),
            response_lengths=responses,
            loss_masks=column(torch.ones(total, dtype=torch.uint8)),
            log_probs=column(log_probs),
            rollout_log_probs=column(log_probs),
            advantages=column(torch.randn(total, generator=chance)),
            ref_log_probs=None,
        )


Pass = Callable[[TrainRows], None]


def sides(size: Size, folder: Path) -> Mapping[str, Pass]:
    """Name -> a forward and backward pass over rows, with weights that are the same for all."""
    spec = size.spec("Flat")
    tokenizer = build_tokenizer(spec.model)
    blob = folder / "weights.safetensors"
    write_blob(blob, initial_state(spec.model, tokenizer))

    def trained(spec: RLJobSpec) -> Pass:
        trainer = build_trainer(spec, tokenizer, SingleRank())
        trainer.load(Folder(blob))
        return trainer.accumulate

    return {
        "transformers, padded": _plain(size, spec, tokenizer, blob),
        "Fsdp": trained(size.spec("Fsdp", checkpointing="false")),
        "Fsdp, checkpointing": trained(size.spec("Fsdp", checkpointing="true")),
        "Flat": trained(spec),
    }


def _plain(size: Size, spec: RLJobSpec, tokenizer: Any, blob: Path) -> Pass:
    """A loop as one writes it: rows padded to the longest of their micro-batch, an attention mask, all logits."""
    from transformers import AutoModelForCausalLM

    config = model_config(described_config(spec.model, tokenizer))
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    model.load_state_dict(read_blob(blob), strict=False)
    model.tie_weights()
    objective = policy_objective(spec.algorithm, spec.rollout.sampling.max_new_tokens)

    def run(rows: TrainRows) -> None:
        for start in range(0, len(rows.response_lengths), size.micro_batch):
            chosen = list(range(start, min(start + size.micro_batch, len(rows.response_lengths))))
            tokens, lengths = rows.tokens.select(chosen), rows.tokens.select(chosen).lengths
            padded = torch.nn.utils.rnn.pad_sequence(tokens.rows(), batch_first=True)
            mask = torch.arange(padded.shape[1]) < lengths[:, None]
            logits = model(input_ids=padded, attention_mask=mask.long(), use_cache=False).logits[:, :-1].float()
            log_probs = torch.log_softmax(logits / TEMPERATURE, -1).gather(2, padded[:, 1:, None])[..., 0]
            responses = rows.response_lengths[chosen]
            place = torch.arange(log_probs.shape[1])
            is_response = (place >= (lengths - responses - 1)[:, None]) & (place < (lengths - 1)[:, None])
            columns = {
                column: values.select(chosen).values
                for column, values in rows.columns.items()
                if column.over is not Over.TOKENS
            }
            masked = MaskedRows(columns[Column.LOSS_MASKS], responses)
            weights = objective.weigh(masked).weights
            torch.autograd.backward(objective.loss(Outputs(log_probs[is_response]), columns, masked, weights).loss)

    return run


def rates(passes: Mapping[str, Pass], rows: TrainRows, rounds: int) -> dict[str, float]:
    """Tokens a CPU second of each side's best round, sides in turns; a first round warms up.

    With one thread a CPU second is one of wall time where nothing else runs, and what else runs does not count.
    """
    num_tokens = len(rows.tokens.values)
    best = dict.fromkeys(passes, 0.0)
    for turn in range(rounds + 1):
        for name, run in passes.items():
            begin = time.process_time()
            run(rows)
            rate = num_tokens / (time.process_time() - begin)
            best[name] = max(best[name], rate if turn else 0.0)
    return best
