"""A prompt's number leads back to where its user wrote it."""

import json
from pathlib import Path

import pytest

from rljob_api.spec.data import DataSpec
from rljob_api.spec.model import TokenizerConfig
from rljob_workers.data import build_prompt_source
from rljob_workers.data.rows import place_of_prompt, place_of_row
from rljob_workers.models.tokenizers import make_tokenizer


@pytest.mark.parametrize("seed", [None, 5])
def test_the_line_of_every_prompt_of_two_passes(tmp_path: Path, seed: int | None) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n" + "".join(json.dumps({"prompt": f"p{n}", "label": str(n)}) + "\n\n" for n in range(7)))
    spec = DataSpec(prompts=str(path), shuffle_seed=seed)
    source = build_prompt_source(spec, make_tokenizer(TokenizerConfig(alphabet="p0123456789")))
    for index in range(14):
        line = 2 + 2 * int(source.at(index).label)
        assert place_of_prompt(spec, index) == f"line {line} of {path}"


def test_a_row_of_several_files_is_named_by_its_file(tmp_path: Path) -> None:
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path, count in zip(paths, (3, 2), strict=True):
        path.write_text("".join(json.dumps({"prompt": f"p{n}"}) + "\n" for n in range(count)))
    spec = DataSpec.model_validate({"sources": [{"prompts": str(path)} for path in paths]})
    assert place_of_row(spec, 2) == f"line 3 of {paths[0]}"
    assert place_of_row(spec, 4) == f"line 2 of {paths[1]}"
    paths[0].unlink()
    assert place_of_row(spec, 4) == "row 5 of the data"
    tasks = DataSpec.model_validate({"reasoningGym": {"dataset": "spell_backward", "size": 10}})
    assert place_of_row(tasks, 3) == "task 3 of spell_backward"


def test_a_file_that_is_gone_leaves_the_number(tmp_path: Path) -> None:
    assert place_of_prompt(DataSpec(prompts=str(tmp_path / "gone")), 12) == f"number 12 of {tmp_path / 'gone'}"


def test_a_task_is_named_with_its_dataset() -> None:
    spec = DataSpec.model_validate({"reasoningGym": {"dataset": "spell_backward", "size": 10}, "shuffleSeed": None})
    assert place_of_prompt(spec, 23) == "task 3 of spell_backward"
