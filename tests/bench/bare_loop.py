"""The same training in one process and one loop: our engine and trainer without queue, processes or protocol.

    python -m tests.bench.bare_loop examples/quickstart.yaml --steps 60 --threads 2

An upper bound of what the roles can reach where they share the cores. Strictly on-policy. Prints what `trl_grpo`
prints.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rljob_api.manifest import load_manifest
from rljob_api.names import Role
from rljob_api.wire.identity import WeightId
from rljob_workers.algorithms.advantages.estimator import broadcast_to_tokens
from rljob_workers.algorithms.advantages.group import group_normalised
from rljob_workers.algorithms.objective import Output
from rljob_workers.engines.torch_engine.decoder import fuse_weights, geometry_of
from rljob_workers.engines.torch_engine.requests import Batch, PromptGroup
from rljob_workers.engines.torch_engine.scheduler import Limits, Scheduler
from rljob_workers.models.blob import write_blob
from rljob_workers.models.building import build_config, initial_state, torch_dtype
from rljob_workers.models.tokenizers import build_tokenizer, decode_tokens, encode_prompt
from rljob_workers.models.weights import Folder
from rljob_workers.rewards.base import Answer
from rljob_workers.rewards.builtin import CharacterMatch, ExactMatch
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers import build_forward_model, build_trainer
from rljob_workers.trainers.base import TrainRows
from rljob_workers.trainers.data_parallel import SingleRank
from tests.train_rows import rows_of

if TYPE_CHECKING:
    from rljob_api.spec import RLJobSpec
    from rljob_workers.trainers.base import ForwardModel, Trainer


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt and the answer wanted."""

    token_ids: list[int]
    label: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    loop = Loop(load_manifest(arguments.manifest).spec, arguments.manifest.parent)
    for step in range(1, arguments.steps + 1):
        reward, tokens = loop.step(step)
        line = {
            "step": step,
            "time": time.monotonic(),
            "samples": loop.num_samples,
            "tokens": tokens,
            "reward": reward,
        }
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


class Loop:
    """Engine, trainer and reference in one process."""

    def __init__(self, spec: RLJobSpec, base: Path) -> None:
        self._spec = spec
        self._reward = ExactMatch() if spec.rollout.reward.character_match is None else CharacterMatch()
        self._tokenizer = build_tokenizer(spec.model)
        self._questions = self._read(base)
        self._chance = random.Random(spec.seed)
        config = build_config(spec.model, self._tokenizer)
        self._geometry = geometry_of(config, torch_dtype(spec.model.dtype))
        self._engine = Scheduler(self._geometry, Limits())
        self._trainer: Trainer = build_trainer(spec, self._tokenizer, SingleRank())
        self._reference: ForwardModel | None = None
        if spec.roles.reference is not None:
            self._reference = build_forward_model(spec, self._tokenizer, Role.ACTOR_FWD, SingleRank())
        with tempfile.TemporaryDirectory() as folder:
            blob = Path(folder) / "v0.safetensors"
            write_blob(blob, initial_state(spec.model, self._tokenizer))
            self._trainer.load(Folder(blob))
            if self._reference is not None:
                self._reference.load(Folder(blob))
        self.num_samples = spec.rollout.batch_size * spec.rollout.samples_per_prompt

    def step(self, step: int) -> tuple[float, int]:
        """One rollout, trained; its mean reward and how many tokens it had."""
        questions = self._chance.sample(self._questions, self._spec.rollout.batch_size)
        batch = self._generate(questions, step)
        rewards = self._rewards(questions, batch)
        rows = self._rows(questions, batch, rewards)
        for start in range(0, self.num_samples, self._spec.training.global_batch_size):
            assert start == 0, "one optimizer step a rollout"
            self._trainer.accumulate(rows)
            self._trainer.optimizer_step()
        return float(rewards.mean()), int(batch.lengths.sum())

    def _read(self, base: Path) -> list[Question]:
        assert self._spec.data.prompts is not None
        lines = [json.loads(line) for line in (base / self._spec.data.prompts).read_text().splitlines()]
        return [Question(encode_prompt(self._tokenizer, line["prompt"]), line["label"]) for line in lines]

    def _generate(self, questions: list[Question], step: int) -> Batch:
        rollout, sampling = self._spec.rollout, self._spec.rollout.sampling
        groups = [
            PromptGroup(
                rid=f"{step}-{index}",
                prompt=question.token_ids,
                num_samples=rollout.samples_per_prompt,
                seed=self._chance.getrandbits(31),
                max_new_tokens=sampling.max_new_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                stop_token_ids=frozenset({self._tokenizer.eos_token_id, *sampling.stop_token_ids}),
            )
            for index, question in enumerate(questions)
        ]
        batch = Batch(groups)
        with torch.inference_mode():
            weights = fuse_weights(self._trainer.stage_weights(), self._geometry)
            self._engine.install(weights, WeightId(lineage=0, version=step - 1))
            self._engine.submit(batch)
            while self._engine.has_work:
                self._engine.step()
        assert batch.error is None, batch.error
        return batch

    def _rewards(self, questions: list[Question], batch: Batch) -> torch.Tensor:
        samples = self._spec.rollout.samples_per_prompt
        texts = (
            decode_tokens(self._tokenizer, tokens[:length].tolist())
            for tokens, length in zip(batch.tokens, batch.lengths, strict=True)
        )
        answers = [Answer("", text, questions[row // samples].label, 0, 0) for row, text in enumerate(texts)]
        return torch.tensor(self._reward.score_groups([answers])[0])

    def _rows(self, questions: list[Question], batch: Batch, rewards: torch.Tensor) -> TrainRows:
        samples = self._spec.rollout.samples_per_prompt
        lengths = torch.from_numpy(batch.lengths.copy())
        prompts = [torch.tensor(question.token_ids, dtype=torch.int32) for question in questions]
        responses = [torch.from_numpy(row[:length]) for row, length in zip(batch.tokens, batch.lengths, strict=True)]
        tokens = Jagged.from_rows([torch.cat([prompts[row // samples], out]) for row, out in enumerate(responses)])
        rollout_log_probs = torch.cat(
            [torch.from_numpy(row[:length]) for row, length in zip(batch.log_probs, batch.lengths, strict=True)]
        )
        temperature = self._spec.rollout.sampling.temperature
        groups = rewards.view(-1, samples)
        advantages = group_normalised(groups, torch.ones_like(groups, dtype=torch.bool)).view(-1)

        def per_token(values: torch.Tensor) -> Jagged:
            return Jagged.from_lengths(values, lengths)

        return rows_of(
            tokens=tokens,
            response_lengths=lengths,
            loss_masks=per_token(torch.ones(int(lengths.sum()), dtype=torch.uint8)),
            log_probs=self._trainer.score(tokens, lengths, Output.LOG_PROBS, temperature),
            rollout_log_probs=per_token(rollout_log_probs),
            advantages=per_token(broadcast_to_tokens(advantages, lengths)),
            ref_log_probs=None
            if self._reference is None
            else self._reference.score(tokens, lengths, Output.LOG_PROBS, temperature),
        )


if __name__ == "__main__":
    main()
