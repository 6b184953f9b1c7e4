"""A set of an evaluation has each of its prompts, and each leaves room for an answer."""

import json
from pathlib import Path

import pytest

from rljob_api.spec.data import DataSpec
from rljob_api.spec.model import TokenizerConfig
from rljob_workers.data import build_prompt_source
from rljob_workers.data.room import need_room
from rljob_workers.models.tokenizers import make_tokenizer

TOKENIZER = make_tokenizer(TokenizerConfig(alphabet="a"))


@pytest.mark.parametrize(
    ("lengths", "wrong"),
    [
        pytest.param([1, 7], None, id="one position is left"),
        pytest.param(
            [8, 7, 9],
            "evaluation.sets[0].data: 2 of 3 prompts have more than 7 tokens, and so leave no room for an answer in the"
            " model's 8 positions; the longest, line 3 of FILE, has 9. Leave them out: no sample of a set is passed"
            " over.",
            id="two fill them",
        ),
    ],
)
def test_each_prompt_leaves_a_position(lengths: list[int], wrong: str | None, tmp_path: Path) -> None:
    file = tmp_path / "set.jsonl"
    file.write_text("".join(json.dumps({"prompt": "a" * length}) + "\n" for length in lengths))
    data = DataSpec(prompts=str(file), label_key=None)
    source = build_prompt_source(data, TOKENIZER)
    if wrong is None:
        need_room(data, source, "evaluation.sets[0].data", 8)
        return
    with pytest.raises(ValueError, match="no room") as raised:
        need_room(data, source, "evaluation.sets[0].data", 8)
    assert str(raised.value).replace(str(file), "FILE") == wrong
