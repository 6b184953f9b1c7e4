"""What a filter of samples sees, and that the loss is of those that it passes alone: in float64, against a loop."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.manifest import parse_manifest
from rljob_api.spec import RLJobSpec
from rljob_api.spec.algorithm import Truncated
from rljob_workers.algorithms.aggregation import token_mean
from rljob_workers.algorithms.objective import MaskedRows, Outputs
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.tensors.packed import RowExtra, pack_rows
from rljob_workers.training.learnt_tokens import LearntTokens, train_rows
from rljob_workers.training.sample_filter import DealtSample, SampleFilter
from rljob_workers.transfer_queue.types import Batch
from tests.objectives import clip_objective
from tests.unit.api.manifests import changed
from tests.unit.training.batches import make_batch

KEEP = LearntTokens(Truncated.KEEP, None)
LENGTHS = [2, 3, 1, 2, 4, 1]


def make_rows(advantages: list[float] | None = None) -> Batch:
    """Three groups of two; the second row of the second is truncated, the first of the third is not valid."""
    batch = make_batch(
        [4, 4, 5, 5, 6, 6],
        [1.0, 0.5, 0.0, 1.0, 0.0, 0.25],
        LENGTHS,
        rows=[8, 9, 10, 11, 12, 13],
        oldest=[3, 2, 3, 1, 3, 3],
        valid=[1, 1, 1, 1, 0, 1],
        finish_reasons=["stop", "stop", "stop", "length", "stop", "stop"],
    )
    counts = torch.tensor(LENGTHS)
    of_rows = torch.tensor(advantages or [0.5, -0.5, -1.0, 1.0, 9.0, 0.25])
    extra = [RowExtra({"reward/hits": float(row)}, {"dataset": "d", "source": f"s{row}"}) for row in range(6)]
    columns: dict[str, Jagged] = {
        Column.TOKENS: Jagged.from_rows([torch.arange(2 + length, dtype=torch.int32) for length in LENGTHS]),
        Column.ROW_ADVANTAGES: Jagged.scalars(of_rows),
        Column.ROLLOUT_LOG_PROBS: Jagged.from_lengths(torch.arange(13.0), counts),
        Column.EXTRA: pack_rows(extra),
    }
    return replace(batch, columns={**batch.columns, **columns})


def seen(batch: Batch, learnt: LearntTokens = KEEP) -> list[DealtSample]:
    found: list[DealtSample] = []

    def remembers(sample: DealtSample) -> bool:
        found.append(sample)
        return True

    SampleFilter("own:remembers", remembers, 2).passed(batch, learnt)
    return found


def test_a_filter_sees_what_is_known_when_a_sample_is_trained() -> None:
    _, second, *_ = seen(make_rows())
    assert (second.rollout, second.group, second.index, second.reward) == (3, 4, 1, 0.5)
    assert second.advantages.tolist() == [-0.5] * 3
    assert (second.staleness, second.is_truncated, second.response_length) == (1, False, 3)
    assert (second.prompt_ids.tolist(), second.response_ids.tolist()) == ([0, 1], [2, 3, 4])
    assert (second.loss_mask.tolist(), second.rollout_log_probs.tolist()) == ([1, 1, 1], [2.0, 3.0, 4.0])
    assert (second.metrics, second.dataset, second.source) == ({"reward/hits": 1.0}, "d", "s1")


def test_advantages_of_tokens_are_seen_as_they_are() -> None:
    batch = make_rows()
    of_tokens = Jagged.from_lengths(torch.arange(13.0), torch.tensor(LENGTHS))
    columns = {name: column for name, column in batch.columns.items() if name != Column.ROW_ADVANTAGES}
    first, *_ = seen(replace(batch, columns={**columns, Column.ADVANTAGES: of_tokens}))
    assert first.advantages.tolist() == [0.0, 1.0]


def test_a_filter_is_asked_of_what_nothing_else_leaves_out() -> None:
    assert [(sample.group, sample.index) for sample in seen(make_rows())] == [(4, 0), (4, 1), (5, 0), (5, 1), (6, 1)]
    of_whole = seen(make_rows(), LearntTokens(Truncated.MASK, None))
    assert [(sample.group, sample.index) for sample in of_whole] == [(4, 0), (4, 1), (5, 0), (6, 1)]


def test_a_filter_sees_of_what_is_too_old_neither_tokens_nor_rows() -> None:
    """Of train_3, learning from versions 1 on: the second row has none left, tools wrote the third's newest token."""
    spans = [[(0, 0, 2), (2, 2, 4)], [(0, 0, 3)], [(0, 0, 1), (1, 1, 2)], [(3, 0, 2)]]
    batch = make_batch([4, 4, 5, 5], [0.0] * 4, [4, 3, 3, 2], rows=[8, 9, 10, 11], oldest=[0, 0, 0, 3], spans=spans)
    masks = Jagged.from_rows([torch.tensor(row, dtype=torch.uint8) for row in ([1] * 4, [1] * 3, [1, 1, 0], [1] * 2)])
    columns: dict[str, Jagged] = {
        Column.LOSS_MASKS: masks,
        Column.ROW_ADVANTAGES: Jagged.scalars(torch.zeros(4)),
        Column.ROLLOUT_LOG_PROBS: Jagged.from_lengths(torch.zeros(12), torch.tensor([4, 3, 3, 2])),
    }
    batch, learnt = replace(batch, columns={**batch.columns, **columns}), LearntTokens(Truncated.KEEP, 2)
    found = seen(batch, learnt)
    assert [(sample.group, sample.index, sample.staleness) for sample in found] == [(4, 0, 1), (5, 0, 2), (5, 1, 0)]
    assert [sample.loss_mask.tolist() for sample in found] == [[0, 0, 1, 1], [0, 1, 0], [1, 1]]
    trained = train_rows(batch, learnt).columns[Column.LOSS_MASKS]
    assert [row.tolist() for row in trained.rows() if row.any()] == [sample.loss_mask.tolist() for sample in found]
    assert learnt.rows(batch).tolist() == [True, False, True, True]


def test_a_beat_follows_each_call() -> None:
    did: list[str] = []
    own = SampleFilter("own:slow", lambda sample: not did.append(f"{sample.group}/{sample.index}"), 2)  # type: ignore[func-returns-value]
    own.passed(make_rows(), KEEP, lambda: did.append("beat"))
    assert did == ["4/0", "beat", "4/1", "beat", "5/0", "beat", "5/1", "beat", "6/1", "beat"]


@pytest.mark.parametrize(
    "name", ["advantages", "prompt_ids", "response_ids", "loss_mask", "rollout_log_probs"], ids=str
)
def test_a_filter_that_writes_what_is_trained_on_is_named_with_its_line(name: str) -> None:
    batch = make_rows()
    of_tokens = Jagged.from_lengths(torch.arange(13.0), torch.tensor(LENGTHS))
    columns = {**batch.columns, Column.ADVANTAGES: of_tokens}
    del columns[Column.ROW_ADVANTAGES]

    def writes(sample: DealtSample) -> bool:
        getattr(sample, name)[:] = 1
        return True

    with pytest.raises(
        ValueError, match=r"raised ValueError on sample 0 of .*test_sample_filter.py, line \d+\): assign"
    ):
        SampleFilter("own:writes", writes, 2).passed(replace(batch, columns=columns), KEEP)


def test_what_does_not_pass_is_masked_and_stays_in_its_place() -> None:
    batch = make_rows()
    passed = SampleFilter("own:strong", lambda sample: abs(sample.advantages[0]) >= 0.5, 2).passed(batch, KEEP)
    assert passed.tolist() == [True, True, True, True, False, False]
    masks = [row.tolist() for row in KEEP.masks(batch, passed).rows()]
    assert masks == [[1, 1], [1, 1, 1], [1], [1, 1], [0] * 4, [0]]
    assert train_rows(batch, KEEP, None, passed).numbers.tolist() == [8, 9, 10, 11, 12, 13]


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=6, max_size=6), st.integers(0, 1000))
def test_the_loss_is_the_mean_over_the_tokens_of_what_passes(passes: list[bool], seed: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    values = torch.randn(3, sum(LENGTHS), generator=chance, dtype=torch.float64)
    new, old, advantages = 0.3 * values[0] - 1, 0.3 * values[1] - 1, torch.randn(6, generator=chance).tolist()
    batch = make_rows(advantages)
    found = SampleFilter("own:lots", lambda sample: passes[2 * (sample.group - 4) + sample.index], 2).passed(
        batch, KEEP
    )
    rows = train_rows(batch, KEEP, Jagged.from_lengths(old, torch.tensor(LENGTHS)), found)
    columns = {name: column.values for name, column in rows.columns.items()}
    columns[Column.ADVANTAGES] = columns[Column.ADVANTAGES].double()
    objective = clip_objective(token_mean, kl=0.0, cap=None)
    masked = MaskedRows(columns[Column.LOSS_MASKS], columns[Column.RESPONSE_LENGTHS])
    weights = objective.weigh(masked)
    sums = objective.loss(Outputs(log_probs=new), columns, masked, weights.weights)

    total, count, place = 0.0, 0, 0
    for row, length in enumerate(LENGTHS):
        for token in range(place, place + length):
            if not passes[row] or row == 4:
                continue
            advantage = float(torch.tensor(advantages[row], dtype=torch.float32))
            ratio = math.exp(float(new[token] - old[token]))
            total -= min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage)
            count += 1
        place += length
    assert float(sums.loss) == pytest.approx(total, rel=1e-12, abs=1e-12)
    assert weights.normaliser == count


FILTERS = """
def raises(sample):
    return 1 / 0

def number(sample):
    return 1.0

def none():
    return True

async def waits(sample):
    return True
"""


def spec_of(folder: Path, name: str) -> RLJobSpec:
    (folder / f"cut_{name}.py").write_text(FILTERS)
    changes = {"spec.algorithm.sampleFilter": f"cut_{name}:{name}", "spec.algorithm.path": str(folder)}
    return parse_manifest(yaml.safe_dump(changed(changes)), "job.yaml").spec


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        pytest.param(
            "raises",
            r"raised ZeroDivisionError on sample 8 of group 4 of train_3 \(.*/cut_raises.py, line 3\): division",
            id="one that raises",
        ),
        pytest.param(
            "number",
            r"returned 1.0 for sample 8 of group 4 of train_3. Return True for a sample to train on, and False for one"
            r" to leave out.$",
            id="one that gives no truth value",
        ),
    ],
)
def test_a_filter_that_does_not_work_is_named_with_the_sample(tmp_path: Path, name: str, sentence: str) -> None:
    found = SampleFilter.load(f"cut_{name}:{name}", spec_of(tmp_path, name))
    batch = make_rows()
    with pytest.raises(ValueError, match=f"^algorithm.sampleFilter: cut_{name}:{name} {sentence}"):
        found.passed(batch, KEEP)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        pytest.param("gone", "was not found: module cut_gone .* has no 'gone'", id="no such function"),
        pytest.param("none", r"cannot be called with one argument \(sample\)", id="too few arguments"),
        pytest.param("waits", "is async, and a filter is called. Write it as `def trains_on", id="an async function"),
    ],
)
def test_a_filter_that_cannot_be_called_is_refused_at_the_start(tmp_path: Path, name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^algorithm.sampleFilter: cut_{name}:{name} {sentence}"):
        SampleFilter.load(f"cut_{name}:{name}", spec_of(tmp_path, name))


PAGE = Path(__file__).parents[3] / "docs/algorithms.md"


def test_the_example_of_the_page_leaves_out_what_is_old_and_wrong_or_impossible() -> None:
    (code,) = re.findall(r"```python\n(import numpy.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)  # the page's own
    batch = make_rows()
    likely = Jagged.from_lengths(-torch.arange(13.0), torch.tensor(LENGTHS))
    versions = zip([1, 2, 1, 3, 3, 3], LENGTHS, strict=True)
    spans = Jagged.scalars(torch.tensor([(1, version, 0, length) for version, length in versions]))
    columns = {**batch.columns, Column.ROLLOUT_LOG_PROBS: likely, Column.VERSION_SPANS: spans}
    passed = SampleFilter("page:trains_on", names["trains_on"], 2).passed(replace(batch, columns=columns), KEEP)
    assert passed.tolist() == [True, True, False, True, False, False]
