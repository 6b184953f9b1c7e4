"""What the engine says of its tokens is what the trainer says of them: same weights, same tokens, float32."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from rljob_api.names import Lineage, WeightVersion
from rljob_api.wire.identity import WeightId
from rljob_workers.algorithms.objective import Output
from rljob_workers.engines.base import SamplingParams
from rljob_workers.models.building import build_config
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.models.weights import Folder
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.flat_model import FlatScoring
from rljob_workers.trainers.micro_batches import MicroBatchLimits
from rljob_workers.trainers.model_trainer import ModelForward
from tests.integration.engines.driven import DrivenEngine
from tests.integration.engines.engine_process import talkative_model
from tests.near import assert_log_probs_near

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 1, 2, 3]]
SAMPLES = 8


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_engine_and_trainer_state_the_same(engine: DrivenEngine, first_weights: Path, temperature: float) -> None:
    deadline = time.monotonic() + 240
    engine.update_weights(first_weights, WeightId(lineage=Lineage(1), version=WeightVersion(0)), deadline=deadline)
    params = SamplingParams(temperature, 1.0, 0, 40, (), SAMPLES, 7)
    drawn = engine.generate(PROMPTS, [params] * len(PROMPTS), deadline=deadline)
    samples = [(prompt, sample) for prompt, samples in zip(PROMPTS, drawn, strict=True) for sample in samples]
    tokens = Jagged.from_rows([torch.tensor([*prompt, *sample.output_ids]) for prompt, sample in samples])
    lengths = torch.tensor([len(sample.output_ids) for _, sample in samples])
    spec = talkative_model()
    model = FlatScoring(build_config(spec, build_tokenizer(spec)), dtype=torch.float32)
    trainer = ModelForward(model, MicroBatchLimits(len(samples)))
    trainer.load(Folder(first_weights))
    of_trainer = trainer.score(tokens, lengths, Output.LOG_PROBS, temperature).values
    of_engine = torch.tensor([value for _, sample in samples for value in sample.log_probs])
    assert_log_probs_near(of_engine, of_trainer)
