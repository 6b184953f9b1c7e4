"""Attention within rows: a plain softmax of each row alone; and what transformers does where it does not know rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_workers.models.building import model_config
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.fsdp.inputs import joined_inputs
from rljob_workers.trainers.fsdp.sharded_model import ModelOptions, attend_within_rows, build_whole, score
from rljob_workers.trainers.fsdp.stored_tensors import load_folder
from tests.near import assert_near
from tests.unit.trainers.fsdp.tiny import VOCABULARY, described, make_tokens, save_model

HEADS, KEY_HEADS, WIDTH = 6, 2, 8
CPU = torch.device("cpu")
LEAK = 0.1
"""Log-probs of rows that see each other are off by more than this."""


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 4])
def test_each_row_attends_to_itself(window: int | None, softcap: float | None) -> None:
    tokens, responses = make_tokens(rows=9)
    blocks = joined_inputs(tokens, responses, CPU).row_blocks
    assert blocks is not None
    lengths = (tokens.lengths - 1).tolist()
    chance = torch.Generator().manual_seed(1)
    query, key, value = (
        torch.randn(1, heads, sum(lengths), WIDTH, generator=chance, dtype=torch.float64)
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    )
    found, _ = attend_within_rows(
        torch.nn.Module(),
        query,
        key,
        value,
        None,
        row_blocks=blocks,
        scaling=0.4,
        sliding_window=window,
        softcap=softcap,
    )
    expected, start = [], 0
    for length in lengths:
        row = slice(start, start + length)
        expected.append(_plain(query[0, :, row], key[0, :, row], value[0, :, row], window, softcap))
        start += length
    assert_near(found[0].transpose(0, 1), torch.cat(expected, 1), 1e-12)


def _plain(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int | None, softcap: float | None
) -> torch.Tensor:
    key, value = (tensor.repeat_interleave(HEADS // KEY_HEADS, 0) for tensor in (key, value))
    scores = 0.4 * query @ key.transpose(1, 2)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    place = torch.arange(query.shape[1])
    distance = place[:, None] - place
    sees = (distance >= 0) & (distance < (window or len(place)))
    return torch.softmax(scores.masked_fill(~sees, float("-inf")), -1) @ value


def test_a_row_does_not_change_with_its_neighbours(tmp_path: Path) -> None:
    """And transformers' own attention, given the same joined rows with a mask of ones, lets them see each other."""
    save_model("qwen3", tmp_path)
    own = build_whole(model_config(described("qwen3")), ModelOptions(torch.float32, torch.float32))
    load_folder(own, tmp_path)
    tokens, responses = make_tokens()
    others = Jagged(tokens.values.clone(), tokens.offsets)
    others.values[: int(tokens.offsets[-2])].add_(1).remainder_(VOCABULARY)
    last = slice(-int(responses[-1]), None)
    with torch.no_grad():
        one, other = (score(own, joined_inputs(rows, responses, CPU), 1.0)[0][last] for rows in (tokens, others))
        assert_near(one, other, 1e-6, "the last row")
        leaking = [_with_a_mask(tmp_path, rows, responses)[last] for rows in (tokens, others)]
    assert float((leaking[0] - leaking[1]).abs().max()) > LEAK


def _with_a_mask(folder: Path, tokens: Jagged, responses: torch.Tensor) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa")
    inputs = joined_inputs(tokens, responses, CPU)
    mask = torch.ones_like(inputs.token_ids)
    logits = model(input_ids=inputs.token_ids, position_ids=inputs.positions, attention_mask=mask).logits[0]
    log_probs = torch.log_softmax(logits[inputs.predicting], -1)
    return log_probs.gather(1, inputs.targets[:, None])[:, 0]
