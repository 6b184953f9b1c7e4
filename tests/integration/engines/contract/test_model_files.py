"""An engine takes of its model's files the tokens that end an answer, and none of their defaults of sampling."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from rljob_api.spec.model import ModelSpec
from rljob_workers.engines.base import FinishReason
from rljob_workers.models.building import build_config, initial_state, save_folder
from rljob_workers.models.tokenizers import build_tokenizer
from tests.integration.engines.contract.calls import PROMPT, draw, load, params, soon
from tests.integration.engines.contract.contenders import Contender, SglangContender, TorchContender
from tests.integration.engines.engine_process import tiny_model
from tests.near import assert_log_probs_near

pytestmark = pytest.mark.anyio

ENDS = {9, 11, 12}
"""Two that generation_config.json names, and the tokenizer's own."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of 14 tokens whose generation_config.json names ends, and a way of sampling."""
    made = tiny_model()
    tokenizer = build_tokenizer(made)
    save_folder(tmp_path / "base", build_config(made, tokenizer), tokenizer, initial_state(made, tokenizer))
    sampling = {"do_sample": True, "temperature": 0.01, "top_k": 1, "repetition_penalty": 1.9}
    (tmp_path / "base" / "generation_config.json").write_text(json.dumps({**sampling, "eos_token_id": [11, 9]}))
    return tmp_path / "base"


async def test_answers_end_by_the_files_and_are_drawn_by_the_manifest(
    server: Contender, folder: Path, tmp_path: Path
) -> None:
    kind = type(server)
    if kind not in (TorchContender, SglangContender):
        pytest.skip("its model has no files")
    (tmp_path / "server").mkdir()
    own = kind(tmp_path / "server", ModelSpec(path=str(folder)))
    try:
        engine = own.client()
        await load(engine, folder, 1)
        samples = await draw(engine, params(48, num_samples=16))
        for sample in samples:
            *before, last = sample.output_ids
            assert not ENDS & set(before)
            assert (last in ENDS) == (sample.finish_reason is FinishReason.STOP)
        assert {sample.output_ids[-1] for sample in samples} & {9, 11}, "the test would not see an end that is ignored"
        longest = max(samples, key=lambda sample: len(sample.output_ids))
        scored = await engine.score([*PROMPT, *longest.output_ids], deadline=soon())
        assert_log_probs_near(torch.tensor(longest.log_probs), torch.tensor(scored[len(PROMPT) - 1 :]))
        await engine.close()
    finally:
        own.close()
