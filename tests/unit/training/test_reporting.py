"""Which samples are kept as text, and what is said of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.generations import FILE
from rljob_api.names import RolloutId
from rljob_workers.telemetry.sample_logs import GenerationLog
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.tensors.packed import RowExtra, pack_rows
from rljob_workers.training.reporting import GenerationSampler, places_to_log
from rljob_workers.transfer_queue.types import Batch
from tests.unit.training.batches import make_batch


@given(st.integers(0, 1000), st.integers(1, 64), st.integers(1, 8), st.integers(0, 100))
def test_as_many_are_retained_as_are_wanted_each_once(rollout_id: int, rows: int, slices: int, count: int) -> None:
    places = [places_to_log(rollout_id, rows, index, slices, count) for index in range(slices)]
    assert all(len(set(retained)) == len(retained) <= rows for retained in places)
    assert all(0 <= place < rows for retained in places for place in retained)
    most = -(-count // slices)
    if most <= rows:
        assert sum(map(len, places)) == count
        assert max(map(len, places)) - min(map(len, places)) <= 1


@pytest.mark.parametrize("rollout_id", [0, 1])
def test_they_come_from_all_groups_and_from_other_places_of_them(rollout_id: int) -> None:
    retained = places_to_log(rollout_id, 32, 0, 1, 4)
    assert [place // 8 for place in retained] == [0, 1, 2, 3]
    assert [place % 8 for place in retained] == [(number + rollout_id) % 8 for number in range(4)]


def decode(sequences: Sequence[Sequence[int]]) -> list[str]:
    return ["".join(chr(token) for token in sequence) for sequence in sequences]


def trained_batch() -> Batch:
    """A group of two: the prompt `ab` and the responses `xyz` and `q`."""
    spans = [[(2, 0, 1), (3, 1, 3)], [(3, 0, 1)]]
    batch = make_batch(
        [5, 5], [0.5, 0.0], [3, 1], rows=[10, 11], valid=[1, 0], finish_reasons=["length", "stop"], spans=spans
    )
    columns = {
        **batch.columns,
        Column.TOKENS: Jagged.from_rows([torch.tensor([ord(char) for char in text]) for text in ("abxyz", "abq")]),
        Column.ADVANTAGES: Jagged.from_rows([torch.full((3,), 1.5), torch.zeros(1)]),
    }
    return Batch(batch.rollout_id, batch.rows, batch.groups, batch.oldest_versions, columns)


def test_a_line_states_all_that_is_known_of_a_sample(tmp_path: Path) -> None:
    log = GenerationLog(tmp_path)
    retained = GenerationSampler(log, decode, per_rollout=2, num_slices=1, samples_per_prompt=2)
    retained.add(RolloutId(4), 1, 0, trained_batch())
    first, second = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    log.close()
    assert first == {
        "rollout": 4,
        "epoch": 1,
        "group": 5,
        "index": 0,
        "prompt": "ab",
        "response": "xyz",
        "promptTokens": 2,
        "responseTokens": 3,
        "finishReason": "length",
        "reward": 0.5,
        "valid": True,
        "advantage": 1.5,
        "versions": [
            {"lineage": 1, "version": 2, "start": 0, "end": 1},
            {"lineage": 1, "version": 3, "start": 1, "end": 3},
        ],
        "turns": [],
    }
    assert "label" not in second
    assert (second["index"], second["response"], second["valid"], second["advantage"]) == (1, "q", False, 0.0)


def test_a_line_has_label_and_parts_of_the_reward_as_its_row_carries_them(tmp_path: Path) -> None:
    batch, log = trained_batch(), GenerationLog(tmp_path)
    carried = [
        RowExtra({"reward/digit": 0.5, "reward/judge/score": 7.0, "rollout/turns": 2.0}, {"label": "xyz"}),
        RowExtra(),
    ]
    columns = {**batch.columns, Column.EXTRA: pack_rows(carried)}
    retained = GenerationSampler(log, decode, per_rollout=2, num_slices=1, samples_per_prompt=2)
    retained.add(RolloutId(4), 1, 0, replace(batch, columns=columns))
    first, second = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    log.close()
    assert (first["label"], first["rewardParts"]) == ("xyz", {"digit": 0.5, "judge/score": 7.0})
    assert not {"label", "rewardParts"} & second.keys()
