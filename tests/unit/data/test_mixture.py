"""Several sources: exact shares, a cursor of one number, and each source in the order that it has by itself."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rljob_api.spec.data import MIXTURE_BLOCK, DataSpec, block_counts
from rljob_api.spec.model import TokenizerConfig
from rljob_workers.data import build_prompt_source
from rljob_workers.data.mixture import Mixing
from rljob_workers.data.rows import place_of_prompt
from rljob_workers.models.tokenizers import make_tokenizer

TOKENIZER = make_tokenizer(TokenizerConfig(alphabet="abc0123456789"))
WEIGHTS = st.lists(st.floats(0.01, 10).map(lambda weight: round(weight, 3)), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("weights", "counts"),
    [
        pytest.param([2, 1], [2, 1], id="even in three"),
        pytest.param([0.7, 0.3], [7, 3], id="tenths, exactly"),
        pytest.param([1, 1, 1], [1, 1, 1], id="alike"),
        pytest.param([5], [1], id="one"),
        # 1/1234 and 1233/1234 of 1000 are 0.81 and 999.19: whole parts 0 and 999, and the first has the larger rest.
        pytest.param([1, 1233], [1, 999], id="by remainders"),
    ],
)
def test_counts_of_a_block(weights: list[float], counts: list[int]) -> None:
    assert block_counts(weights) == counts


@given(WEIGHTS)
def test_a_block_is_divided_by_the_weights(weights: list[float]) -> None:
    counts = block_counts(weights)
    assert sum(counts) <= MIXTURE_BLOCK
    for weight, count in zip(weights, counts, strict=True):
        assert abs(count / sum(counts) - weight / sum(weights)) < 1 / MIXTURE_BLOCK


@given(WEIGHTS, st.none() | st.integers(0, 9), st.integers(0, 2500))
def test_each_source_is_drawn_in_turn_and_a_cursor_resumes_all(
    weights: list[float], seed: int | None, start: int
) -> None:
    mixing, counts = Mixing(weights, seed), block_counts(weights)
    size = sum(counts)
    met = [0] * len(weights)
    draws = [mixing.draw(index) for index in range(2 * size)]
    for draw in draws:
        assert draw.index == met[draw.source], "none is left out, none comes twice"
        met[draw.source] += 1
    assert met == [2 * count for count in counts]
    resumed = Mixing(weights, seed)
    assert [resumed.draw(index) for index in range(start, start + 9)] == [
        mixing.draw(index) for index in range(start, start + 9)
    ]


def test_a_seed_shuffles_each_block_again_and_none_spreads() -> None:
    spread = [Mixing([2, 1], None).draw(index).source for index in range(6)]
    assert spread == [0, 1, 0, 0, 1, 0]
    shuffled = [Mixing([7, 3], 1).draw(index).source for index in range(40)]
    blocks = {tuple(shuffled[start : start + 10]) for start in range(0, 40, 10)}
    assert len(blocks) > 1
    assert shuffled != [Mixing([7, 3], 2).draw(index).source for index in range(40)]


def written(folder: Path, name: str, count: int) -> str:
    path = folder / f"{name}.jsonl"
    path.write_text(
        "".join(json.dumps({"q": f"{name}{n}", "prompt": f"{name}{n}", "a": str(n)}) + "\n" for n in range(count))
    )
    return str(path)


def test_prompts_of_two_files(tmp_path: Path) -> None:
    """With keys of their own, and in the order that each file has alone."""
    one, other = written(tmp_path, "a", 5), written(tmp_path, "b", 3)
    spec = DataSpec.model_validate(
        {
            "sources": [{"prompts": one, "weight": 3, "promptKey": "q", "labelKey": "a"}, {"prompts": other}],
            "labelKey": None,
        }
    )
    source = build_prompt_source(spec, TOKENIZER)
    assert len(source) == 8
    drawn = [source.at(index) for index in range(40)]
    assert [prompt.index for prompt in drawn] == list(range(40))
    assert [sum(prompt.dataset == name for prompt in drawn) for name in "ab"] == [30, 10]
    for name, path, key in (("a", one, "q"), ("b", other, "prompt")):
        alone = build_prompt_source(DataSpec(prompts=path, prompt_key=key, label_key=None), TOKENIZER)
        texts = [prompt.text for prompt in drawn if prompt.dataset == name]
        assert texts == [alone.at(index).text for index in range(len(texts))]
    assert {prompt.label for prompt in drawn if prompt.dataset == "b"} == {None}
    first_of_b = next(islice((prompt for prompt in drawn if prompt.dataset == "b"), 1))
    assert place_of_prompt(spec, first_of_b.index) == f"line {int(first_of_b.text[1:]) + 1} of {other}"


def test_a_source_that_is_too_rare_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"the weight 1 of b is less than a thousandth of all\. Raise it"):
        DataSpec.model_validate({"sources": [{"prompts": "a", "weight": 1000}, {"prompts": "b"}]})
