"""What a job names and this machine lacks: a sentence for each."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet

from rljob_api.manifest import parse_manifest, resolve_paths
from rljob_api.model_files.families import EXIT_NOT_PROVEN, FamilyProof, NotProven, keep_proof
from rljob_cli.checks.findings import Level
from rljob_cli.checks.manifests import examine, preflight
from rljob_workers.data.jsonl import JsonlRows
from tests.unit.api.manifests import changed

ROOT = Path(__file__).parents[3]


def _problems(folder: Path, changes: dict[str, Any], prompts: str | None = None) -> list[str]:
    if prompts is not None:
        (folder / "prompts.jsonl").write_text(prompts)
    job = parse_manifest(yaml.safe_dump(changed(changes)), "job.yaml")
    return [
        problem.replace(f"{folder}/", "").replace(str(folder), ".")
        for problem in preflight(resolve_paths(job, folder)).problems
    ]


GOOD_LINE = '{"prompt": "12=", "label": "21"}\n'

PROMPTS = [
    pytest.param(
        None,
        "cannot be read (No such file or directory). Give the path of a JSONL or Parquet file.",
        id="no file",
    ),
    pytest.param("\n \n", "holds no prompts. Give a file with a JSON object per line.", id="an empty file"),
    pytest.param("[1]\n", "line 1: is not a JSON object. Give a JSON object per line.", id="a line that is a list"),
    pytest.param(
        GOOD_LINE + '{"question": "1="}\n',
        "line 2: has no key 'prompt'. Add it or set data.promptKey.",
        id="a line without a prompt",
    ),
    pytest.param(
        '{"prompt": "12="}\n',
        "line 1: has no key 'label', which the reward compares with. Add it or set data.labelKey.",
        id="a line without a label",
    ),
    pytest.param(
        GOOD_LINE + '\n{"prompt": "34=", "label": null}\n',
        "line 3: the label under 'label' is null, and the reward compares with it. Write a label, or remove the row.",
        id="a label that is null",
    ),
    pytest.param(
        GOOD_LINE + '{"prompt": "", "label": "1"}\n',
        "line 2: 'prompt' is empty. Write a prompt, or remove it.",
        id="an empty prompt",
    ),
    pytest.param(
        '{"prompt": 5, "label": 1}\n',
        "line 1: 'prompt' is neither text nor a list of chat messages. Give one of them.",
        id="a number for a prompt",
    ),
    pytest.param(
        '{"prompt": [{"content": "1"}], "label": 1}\n',
        "line 1: 'prompt' is no list of chat messages. Give each a role and content.",
        id="messages without a role",
    ),
    pytest.param(
        '{"prompt": [{"role": "user", "content": 1}], "label": 1}\n',
        "line 1: 'prompt' has a content of type int in message 1 (user). Give a text, or a list of parts of text.",
        id="messages whose content is no text",
    ),
    pytest.param(
        GOOD_LINE + '{"prompt": "34=", "label": 1, "level": NaN}\n{"prompt": "12"\n',
        "line 3: is not JSON (Expecting ',' delimiter: line 1 column 16 (char 15)). Give a JSON object per line.",
        id="what Python takes for JSON is taken",
    ),
    pytest.param(
        '{"prompt": "1+2=", "label": 1}\n',
        "line 1: the character '+' is not in the alphabet. Add it to model.config.tokenizer.alphabet.",
        id="a character that the tokenizer lacks",
    ),
]


@pytest.mark.parametrize(("prompts", "sentence"), PROMPTS)
def test_prompts_that_cannot_be_used_are_named_by_line(tmp_path: Path, prompts: str | None, sentence: str) -> None:
    assert _problems(tmp_path, {}, prompts) == [f"spec.data.prompts: prompts.jsonl {sentence}"]


def test_a_null_label_of_a_table_and_of_a_set_is_named_by_its_row(tmp_path: Path) -> None:
    rows = [{"prompt": "1=", "label": "1"}, {"prompt": "2=", "label": None}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    data = {"prompts": "rows.parquet"}
    sets = {"everySteps": 1, "sets": [{"name": "dev", "data": data}]}
    wrong = "rows.parquet row 2: the label under 'label' is null, and the reward compares with it. Write a label, or"
    assert _problems(tmp_path, {"spec.data": data, "spec.evaluation": sets}) == [
        f"spec.data.prompts: {wrong} remove the row.",
        f"spec.evaluation.sets[0].data.prompts: {wrong} remove the row.",
    ]


@pytest.mark.parametrize(
    "reward", [{"format": {"pattern": ".*"}}, {"custom": {"function": "json:dumps"}}], ids=["format", "custom"]
)
def test_a_reward_that_compares_with_no_label_takes_any(reward: dict[str, Any], tmp_path: Path) -> None:
    labels: list[Any] = [None, [], {"a": 1}, ""]
    lines = "".join(json.dumps({"prompt": "1=", "label": label}) + "\n" for label in labels)
    assert _problems(tmp_path, {"spec.rollout.reward": reward}, lines) == []


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_rows_in_another_encoding_are_named_once(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text(GOOD_LINE * 9, encoding=encoding)
    assert _problems(tmp_path, {}) == [
        "spec.data.prompts: prompts.jsonl is UTF-16 or UTF-32. Give it as UTF-8: iconv -f UTF-16 -t UTF-8"
        " prompts.jsonl."
    ]


def test_a_mark_at_the_beginning_of_rows_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text(GOOD_LINE * 2, encoding="utf-8-sig")
    assert _problems(tmp_path, {}) == []
    rows = JsonlRows(tmp_path / "prompts.jsonl", "data.prompts")
    assert [rows.row(index)["prompt"] for index in range(2)] == ["12=", "12="]


def test_broken_json_is_named_by_line(tmp_path: Path) -> None:
    (problem,) = _problems(tmp_path, {}, GOOD_LINE + '{"prompt": \n')
    assert problem.startswith("spec.data.prompts: prompts.jsonl line 2: is not JSON (")
    assert problem.endswith("Give a JSON object per line.")


def test_a_file_with_the_wrong_key_everywhere_is_not_listed_to_its_end(tmp_path: Path) -> None:
    problems = _problems(tmp_path, {"spec.data.promptKey": "text"}, GOOD_LINE * 1000)
    assert len(problems) == 6
    assert problems[-1] == "spec.data.prompts: prompts.jsonl has 995 more such lines."


def test_fewer_prompts_than_a_rollout_needs_are_fine(tmp_path: Path) -> None:
    assert _problems(tmp_path, {}, GOOD_LINE) == []


def test_a_checkpoint_must_be_there(tmp_path: Path) -> None:
    model = {"spec.model": {"path": "model"}}
    assert _problems(tmp_path, model, GOOD_LINE) == [
        "spec.model.path: model is not a folder. Give the folder of a Hugging Face checkpoint."
    ]
    (tmp_path / "model").mkdir()
    assert _problems(tmp_path, model, GOOD_LINE) == [
        "spec.model.path: model has no config.json. Give a checkpoint with its config.",
        "spec.model.path: model has no model.safetensors or model.safetensors.index.json. Give a checkpoint with "
        "safetensors weights.",
        "spec.model.path: model has no tokenizer. Give model.tokenizerPath.",
    ]
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / "model" / name).write_text('{"model_type": "llama"}')
    assert _problems(tmp_path, model, GOOD_LINE) == []


FAMILIES = [
    pytest.param({}, "has model_type None, which is no name of a family", id="no type"),
    pytest.param(
        {"model_type": "llama", "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        "has the rotary embedding 'dynamic', whose angles depend on the longest row of a batch",
        id="angles by the longest row",
    ),
    pytest.param(
        {"model_type": "gemma3_text", "use_bidirectional_attention": True},
        "has use_bidirectional_attention, but a policy",
        id="a model that looks ahead",
    ),
]


@pytest.mark.parametrize(("described", "beginning"), FAMILIES)
def test_a_family_that_would_not_come_out_right_is_refused_before_anything_starts(
    tmp_path: Path, described: dict[str, Any], beginning: str
) -> None:
    (tmp_path / "model").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / "model" / name).write_text(json.dumps(described))
    served = {"spec.model": {"path": "model"}, "spec.roles.rollout": {"engine": {"kind": "SGLang"}}}
    (problem,) = _problems(tmp_path, served, GOOD_LINE)
    assert problem.startswith(f"spec.model.path: its config.json {beginning}")


def test_a_family_that_is_not_in_the_table_is_tried_on_a_twin_by_a_process_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "model").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / "model" / name).write_text(json.dumps({"model_type": "bloom", "hidden_size": 64, "n_head": 4}))
    packed = {"spec.model": {"path": "model"}, "spec.roles.rollout": {"engine": {"kind": "SGLang"}}}
    (problem,) = _problems(tmp_path, packed, GOOD_LINE)
    assert problem.startswith("spec.model.path: its config.json has model_type 'bloom', whose packed rows are not comp")
    assert problem.endswith("Set training.packing to false, which computes its rows padded instead, and right.")
    monkeypatch.setattr(sys, "executable", "/there is no other process")
    assert _problems(tmp_path, packed, GOOD_LINE) == [problem]
    assert _problems(tmp_path, {**packed, "spec.training.packing": False}, GOOD_LINE) == []


def test_a_head_that_cannot_be_widened_is_refused_where_its_logits_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    described = {"model_type": "opt"}
    keep_proof(described, FamilyProof(packed=None, padded=None, head="its head is not one matrix"))
    (tmp_path / "model").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / "model" / name).write_text(json.dumps(described))
    served = {"spec.model": {"path": "model", "dtype": "bfloat16"}, "spec.roles.rollout.engine.kind": "SGLang"}
    assert _problems(tmp_path, served, GOOD_LINE) == []
    (problem,) = _problems(tmp_path, {**served, "spec.model.headDtype": "float32"}, GOOD_LINE)
    assert problem.startswith("spec.model.headDtype: float32 logits of a model whose config.json has model_type 'opt'")


@pytest.mark.parametrize("code", [EXIT_NOT_PROVEN, 137])
def test_a_twin_that_could_not_be_made_now_is_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "model").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / "model" / name).write_text(json.dumps({"model_type": "opt"}))
    served = {"spec.model": {"path": "model"}, "spec.roles.rollout.engine.kind": "SGLang"}
    message = NotProven.now({"model_type": "opt"}, "[Errno 28] No space") if code == EXIT_NOT_PROVEN else "Killed"
    (tmp_path / "python").write_text(f'#!/bin/sh\necho "{message}" >&2\nexit {code}\n')
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    job = parse_manifest(yaml.safe_dump(changed({**served, "spec.data.prompts": "/dev/null"})), "job.yaml")
    (found,) = preflight(resolve_paths(job, tmp_path)).of(Level.UNCHECKED)
    assert re.search(r"^spec\.model\.path: .*'opt' is computed right could not be shown now: .*Try again", found)
    assert not list((tmp_path / "cache").rglob("*.json"))


def test_a_tokenizer_must_be_there(tmp_path: Path) -> None:
    assert _problems(tmp_path, {"spec.model.tokenizerPath": "words"}, GOOD_LINE) == [
        "spec.model.tokenizerPath: words is not a folder. Give the folder of a tokenizer."
    ]


REWARDS = [
    pytest.param(
        {"function": "scores:points", "path": "rewards"},
        "path: rewards is not a folder. Give the folder that holds the module.",
        id="a folder that is not there",
    ),
    pytest.param(
        {"function": "scores:points"},
        "function: module scores is not among the installed packages. Correct the name or give path, its folder.",
        id="a module that is nowhere",
    ),
    pytest.param(
        {"function": "reward.deep:points", "path": "."},
        "function: module reward.deep is neither in . nor among the installed packages. Correct the name or give path, "
        "its folder.",
        id="a module inside a module",
    ),
    pytest.param(
        {"function": "reward:pionts", "path": "."},
        "function: reward.py has no pionts. Define it there or correct the name.",
        id="a function that is not there",
    ),
    pytest.param(
        {"function": "reward:BEST", "path": "."},
        "function: BEST in reward.py is not a function. Define it as one or correct the name.",
        id="what cannot be called",
    ),
    pytest.param(
        {"function": "torn:points", "path": "."},
        "function: torn.py is not Python ('(' was never closed (torn.py, line 1)). Correct it.",
        id="a module that cannot be parsed",
    ),
]


@pytest.fixture
def rewards(tmp_path: Path) -> Path:
    (tmp_path / "reward.py").write_text(
        "import no_such_library\n\nBEST = 1.0\n\ndef points(answers):\n    return [0.0 for _ in answers]\n"
    )
    (tmp_path / "torn.py").write_text("def points(answers:\n")
    return tmp_path


@pytest.mark.parametrize(("custom", "sentence"), REWARDS)
def test_a_reward_that_is_not_there_is_named(rewards: Path, custom: dict[str, Any], sentence: str) -> None:
    assert _problems(rewards, {"spec.rollout.reward": {"custom": custom}}, GOOD_LINE) == [
        f"spec.rollout.reward.custom.{sentence}"
    ]


def test_a_filter_that_is_not_there_is_named(rewards: Path) -> None:
    sampling = {"filter": "reward:mixed", "path": "."}
    assert _problems(rewards, {"spec.rollout.dynamicSampling": sampling}, GOOD_LINE) == [
        "spec.rollout.dynamicSampling.filter: reward.py has no mixed. Define it there or correct the name."
    ]
    sampling = {"filter": "filters:mixed", "path": "filters"}
    assert _problems(rewards, {"spec.rollout.dynamicSampling": sampling}, GOOD_LINE) == [
        "spec.rollout.dynamicSampling.path: filters is not a folder. Give the folder that holds the module."
    ]


def test_a_curriculum_that_is_not_there_is_named(rewards: Path) -> None:
    curriculum = {"function": "reward:lots", "path": "."}
    assert _problems(rewards, {"spec.rollout.curriculum": curriculum}, GOOD_LINE) == [
        "spec.rollout.curriculum.function: reward.py has no lots. Define it there or correct the name."
    ]


def test_a_filter_of_samples_that_is_not_there_is_named(rewards: Path) -> None:
    changes = {"spec.algorithm.sampleFilter": "reward:best", "spec.algorithm.path": "."}
    assert _problems(rewards, changes, GOOD_LINE) == [
        "spec.algorithm.sampleFilter: reward.py has no best. Define it there or correct the name."
    ]


FOUND = [
    ("def points(a): ...", "points"),
    ("async def points(a): ...", "points"),
    ("class Points(list): ...", "Points"),
    ("class Points:\n    def __iter__(self): ...", "Points"),
    ("points = len", "points"),
    ("points: object = len", "points"),
    ("from math import fsum as points", "points"),
    ("try:\n    import torch\nexcept ImportError:\n    def points(a): ...", "points"),
    ("if True:\n    def points(a): ...", "points"),
    ("from somewhere import *", "points"),
]


@pytest.mark.parametrize(("source", "name"), FOUND)
def test_a_reward_is_found_however_it_is_bound(tmp_path: Path, source: str, name: str) -> None:
    (tmp_path / "found.py").write_text(source)
    custom = {"function": f"found:{name}", "path": "."}
    assert _problems(tmp_path, {"spec.rollout.reward": {"custom": custom}}, GOOD_LINE) == []


def test_a_reward_is_found_without_being_run(rewards: Path) -> None:
    custom = {"function": "reward:points", "path": "."}  # its module imports what is not installed here
    assert _problems(rewards, {"spec.rollout.reward": {"custom": custom}}, '{"prompt": "12="}\n') == []


GYM = [
    pytest.param(
        {"dataset": "letter_countin"},
        "dataset: letter_countin is no dataset of reasoning_gym. Did you mean letter_counting?",
        id="a misspelt dataset",
    ),
    pytest.param(
        {"dataset": "letter_counting", "parameters": {"min_words": -1}},
        'parameters: {"min_words": -1} do not fit the dataset letter_counting: min_words must be positive. '
        "Correct them.",
        id="a parameter out of bounds",
    ),
    pytest.param(
        {"dataset": "letter_counting", "parameters": {"words": 3}},
        'parameters: {"words": 3} do not fit the dataset letter_counting: LetterCountingConfig.__init__() got an '
        "unexpected keyword argument 'words'. Correct them.",
        id="a parameter that is not known",
    ),
]


@pytest.mark.parametrize(("gym", "sentence"), GYM)
def test_a_dataset_that_reasoning_gym_refuses_is_named(tmp_path: Path, gym: dict[str, Any], sentence: str) -> None:
    changes = {"spec.data": {"reasoningGym": gym}}
    assert _problems(tmp_path, changes) == [f"spec.data.reasoningGym.{sentence}"]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("*.yaml")), ids=lambda path: path.name)
def test_every_example_names_only_what_is_there(path: Path) -> None:
    job = resolve_paths(parse_manifest(path.read_text(), path.name), path.parent)
    problems = list(preflight(job).problems)
    if path.name.startswith("qwen3-"):  # its model is fetched by the user who runs it; see test_gpu_examples
        problems = [problem for problem in problems if not problem.startswith("spec.model.path: ")]
    assert problems == []


def test_names_of_the_hub_that_are_not_here_are_named_once_with_what_downloads_them(tmp_path: Path) -> None:
    changes = {"spec.model": {"path": "hf:nobody/nothing"}, "spec.data.prompts": "hf:nobody/rows/train.jsonl"}
    job = resolve_paths(parse_manifest(yaml.safe_dump(changed(changes)), "job.yaml"), tmp_path)
    assert [text.split(" is not")[0] for text in preflight(job).problems] == [
        "spec.model.path: hf:nobody/nothing",
        "spec.data.prompts: hf:nobody/rows/train.jsonl",
    ]
    assert [text.split("download it: ")[1] for text in preflight(job).problems] == [
        "hf download nobody/nothing.",
        "hf download nobody/rows --repo-type dataset.",
    ]


@pytest.mark.parametrize("is_table", [False, True], ids=["JSONL", "Parquet"])
def test_messages_count_lines_and_rows_alike(is_table: bool, tmp_path: Path) -> None:
    rows = [{"prompt": text, "label": "1"} for text in ("1=", "2=", "1=")]
    name, unit = ("rows.parquet", "row") if is_table else ("rows.jsonl", "line")
    if is_table:
        parquet.write_table(pa.Table.from_pylist(rows), tmp_path / name)
    else:
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(changed({"spec.data": {"prompts": name}})))
    (warned,) = examine(tmp_path / "job.yaml").findings.of(Level.WARNING)
    assert f"({unit} 3 has that of {unit} 1)" in warned


def test_tools_of_a_row_that_a_template_cannot_get_are_named(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "1="}]
    rows = [{"prompt": chat, "label": "1", "tools": [{"name": "a"}]}, {"prompt": chat, "label": "1", "tools": "a"}]
    prompts = "".join(json.dumps(row) + "\n" for row in rows)
    assert _problems(tmp_path, {}, prompts) == [
        "spec.data.prompts: prompts.jsonl line 2: the tools are neither a list of schemas of functions nor such a list"
        " as JSON. Correct them, or give the column another name, so that the chat template does not get it."
    ]
