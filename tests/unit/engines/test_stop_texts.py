"""Texts that end a sample: where, of which tokens, and beside the other ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec.model import TokenizerConfig, TokenizerKind
from rljob_workers.engines.torch_engine.requests import EndReason
from rljob_workers.engines.torch_engine.stop_texts import StopTexts
from rljob_workers.models.tokenizers import make_tokenizer
from tests.unit.engines.tiny_models import make_batch, make_group, make_model, make_scheduler, run

BYTES = make_tokenizer(TokenizerConfig(kind=TokenizerKind.BYTE))


def found(texts: list[str], sample: str) -> str | None:
    stop = StopTexts.of(texts, BYTES)
    assert stop is not None
    return stop.found([BYTES.encode(sample)])[0]


@pytest.mark.parametrize(
    ("texts", "sample", "expected"),
    [
        pytest.param(["end"], "the end", "end", id="at the end"),
        pytest.param(["end"], "the en", None, id="not whole"),
        pytest.param(["end"], "the end.", "end", id="one token before the end"),
        pytest.param(["end"], "the end of", None, id="long before, where the sample would have ended"),
        pytest.param(["nd", "end"], "the end", "nd", id="the first of those that stand there"),
        pytest.param(["é語"], "aé語", "é語", id="characters of several tokens"),
        pytest.param(["<|eos|>"], "a<|eos|>", "<|eos|>", id="a special token"),
        pytest.param(["\n\n"], "a\n\n", "\n\n", id="white space"),
    ],
)
def test_a_text_is_found_in_the_last_tokens(texts: list[str], sample: str, expected: str | None) -> None:
    assert found(texts, sample) == expected


def test_without_texts_there_is_nothing_to_look_for() -> None:
    assert StopTexts.of([], BYTES) is None


def test_a_text_in_more_tokens_than_the_tokenizer_makes_of_it_is_not_found_as_with_sglang() -> None:
    stop = StopTexts(("abcd",), 2, lambda sequences: ["".join(map(chr, tokens)) for tokens in sequences])
    assert stop.found([[97, 98, 99, 100]]) == [None]


@given(sample=st.text("ab", max_size=12), texts=st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3))
def test_the_first_token_that_makes_a_text_whole_ends_a_sample(sample: str, texts: list[str]) -> None:
    """As it is asked after each token, none that was whole before can be passed over."""
    first = next((end for end in range(1, len(sample) + 1) if found(texts, sample[:end])), None)
    assert first == next((end for end in range(1, len(sample) + 1) if sample[:end].endswith(tuple(texts))), None)


def letters(sequences: Sequence[Sequence[int]]) -> list[str]:
    return ["".join(chr(97 + token) for token in one) for one in sequences]


def test_samples_beside_others_end_where_they_would_alone() -> None:
    """A batch has some with texts, some with stop tokens and some with neither, each drawn as without."""
    model = make_model("qwen3")
    wholes = make_batch(*(make_group([1, 2, 3], num_samples=6, max_new_tokens=24, seed=9 * each) for each in range(4)))
    run(make_scheduler(model), wholes)
    texts = (letters([wholes.tokens[0, 5:8].tolist()])[0], letters([wholes.tokens[12, 9:11].tolist()])[0])
    stop, token = StopTexts(texts, 4, letters), int(wholes.tokens[12, 20])
    kinds: list[dict[str, Any]] = [
        {"stop": stop},
        {},
        {"stop": stop, "stop_token_ids": frozenset({token})},
        {"stop_token_ids": frozenset({token})},
    ]
    ended = make_batch(
        *(
            make_group([1, 2, 3], num_samples=6, max_new_tokens=24, seed=9 * place, **kind)
            for place, kind in enumerate(kinds)
        )
    )
    run(make_scheduler(model), ended)
    for row in range(ended.num_rows):
        kind, whole = kinds[row // 6], wholes.tokens[row].tolist()
        end = next((at for at in range(1, 25) if ends(kind, whole[:at])), 24)
        found = ended.tokens[row, : ended.lengths[row]].tolist()
        assert found == whole[:end]
        assert (ended.reasons[row] == EndReason.STOP) == ends(kind, found)
    assert ended.lengths[0] <= 8
    assert ended.lengths[12] <= 11
    assert set(ended.lengths[6:12].tolist()) == {24}


def ends(kind: dict[str, Any], drawn: list[int]) -> bool:
    has_text = "stop" in kind and letters([drawn])[0].endswith(kind["stop"].texts)
    return has_text or drawn[-1] in kind.get("stop_token_ids", ())
