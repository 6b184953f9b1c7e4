"""Parquet and the folders of datasets.save_to_disk: the same prompts as the same rows of JSONL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from rljob_api.spec.data import ChatTemplateSpec, DataSpec
from rljob_api.spec.model import TokenizerConfig, TokenizerKind
from rljob_workers.data import Prompt, build_prompt_source
from rljob_workers.data.rows import place_of_prompt
from rljob_workers.models.tokenizers import CHAT_TEMPLATE, make_tokenizer

TOKENIZER = make_tokenizer(TokenizerConfig(kind=TokenizerKind.BYTE))
TOKENIZER.chat_template = CHAT_TEMPLATE

ROWS: list[dict[str, Any]] = [
    {"prompt": f"p{n}", "label": str(n), "level": n, "tags": ["a", "b"][: n % 3], "meta": {"kind": "x"}}
    for n in range(7)
]


def as_jsonl(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def as_parquet(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "prompts.parquet"
    parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
    return path


def as_parts(folder: Path, rows: list[dict[str, Any]]) -> Path:
    for number, part in enumerate((rows[:4], rows[4:])):
        parquet.write_table(pa.Table.from_pylist(part), folder / f"train-0000{number}-of-00002.parquet")
    return folder / "train-*.parquet"


def as_saved(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """As datasets 5.2 writes it: streams of record batches, and a state that names them."""
    saved = folder / "saved"
    saved.mkdir()
    names = [f"data-0000{number}-of-00002.arrow" for number in range(2)]
    for name, part in zip(names, (rows[:4], rows[4:]), strict=True):
        table = pa.Table.from_pylist(part)
        with pa.OSFile(str(saved / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table, max_chunksize=2)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "f", "_split": "train"}
    (saved / "state.json").write_text(json.dumps(state))
    return saved


def prompts(path: Path, count: int, **fields: Any) -> list[Prompt]:
    source = build_prompt_source(DataSpec(prompts=str(path), **fields), TOKENIZER)
    return [source.at(index) for index in range(count)]


def contents(prompt: Prompt) -> tuple[Any, ...]:
    return prompt.index, prompt.text, prompt.token_ids, prompt.label, prompt.messages, prompt.row


@pytest.mark.parametrize("write", [as_parquet, as_parts, as_saved])
@pytest.mark.parametrize("seed", [None, 3])
def test_prompts_are_those_of_the_same_rows_in_jsonl(tmp_path: Path, write: Any, seed: int | None) -> None:
    expected = prompts(as_jsonl(tmp_path, ROWS), 21, shuffle_seed=seed)
    found = prompts(write(tmp_path, ROWS), 21, shuffle_seed=seed)
    assert list(map(contents, found)) == list(map(contents, expected))
    assert found[0].row.keys() == {"level", "tags", "meta"}


def test_messages_of_columns_have_the_keys_that_were_given(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "hi", "name": None}, {"role": "assistant", "content": "ho", "name": "a"}]
    (found,) = prompts(as_parquet(tmp_path, [{"prompt": chat}]), 1)
    assert found.messages == ({"role": "user", "content": "hi"}, chat[1])


WITH_TOOLS = """
{%- for tool in tools or [] %}[{{ tool | tojson }}]{% endfor %}
{%- for message in messages %}{{ message.content }}{% endfor %}"""


def schema(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


ADD = schema("add", {"x": {"type": "number"}})
ASK = schema("ask", {"city": {"type": "string", "enum": ["Rome", "Oslo"]}})
OFTEN = schema("job", {"z": {"type": "number"}})


def rows_with(*tools: Any) -> list[dict[str, Any]]:
    return [{"prompt": [{"role": "user", "content": f"q{place}"}], "tools": each} for place, each in enumerate(tools)]


def rendered(path: Path, count: int, template: Path) -> list[str]:
    """The text that the model gets of each row, by transformers' own template."""
    template.write_text(WITH_TOOLS)
    given = {"file": str(template), "tools": [OFTEN]}
    found = prompts(path, count, chat_template=ChatTemplateSpec.model_validate(given), shuffle_seed=None)
    return [TOKENIZER.decode(prompt.token_ids) for prompt in found]


@pytest.mark.parametrize("write", [as_jsonl, as_parquet])
def test_a_template_gets_the_tools_of_the_row(write: Any, tmp_path: Path) -> None:
    def with_tools(*tools: Any) -> str:
        return "".join(f"[{json.dumps(tool)}]" for tool in tools)

    rows = rows_with([ADD], [ASK, ADD], None, [])
    assert rendered(write(tmp_path, rows), 4, tmp_path / "t.jinja") == [
        f"{with_tools(ADD)}q0",
        f"{with_tools(ASK, ADD)}q1",
        f"{with_tools(OFTEN)}q2",
        "q3",
    ]


@pytest.mark.parametrize("write", [as_jsonl, as_parquet])
def test_tools_may_be_json_in_a_text(write: Any, tmp_path: Path) -> None:
    with_null = schema("seek", {"x": {"default": None}})
    found = rendered(write(tmp_path, rows_with(json.dumps([with_null]))), 1, tmp_path / "t.jinja")
    assert found == [f"[{json.dumps(with_null)}]q0"]


@pytest.mark.parametrize("tools", ["add", 5, ["add"], {"name": "add"}, [{}], "[1]", ""])
def test_a_column_of_that_name_which_has_no_schemas_is_refused(tools: Any, tmp_path: Path) -> None:
    path = as_jsonl(tmp_path, rows_with([ADD], tools))
    expected = f"^data: the tools of {path} line 2 are neither a list of schemas of functions nor such a list as JSON"
    with pytest.raises(ValueError, match=expected):
        prompts(path, 2, shuffle_seed=None)


def test_a_prompt_without_a_template_has_the_column_for_its_functions(tmp_path: Path) -> None:
    (found,) = prompts(as_jsonl(tmp_path, [{"prompt": "q", "tools": "add"}]), 1)
    assert (found.token_ids, found.row) == (tuple(b"q"), {"tools": "add"})


def test_places_are_rows_counted_from_one(tmp_path: Path) -> None:
    spec = DataSpec(prompts=str(as_parquet(tmp_path, ROWS)), shuffle_seed=None)
    assert place_of_prompt(spec, 9) == f"row 3 of {spec.prompts}"


def _splits(folder: Path) -> Path:
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    return folder


def _other_columns(folder: Path) -> Path:
    as_parts(folder, ROWS)
    parquet.write_table(pa.table({"text": ["a"]}), folder / "train-2.parquet")
    return folder / "train-*.parquet"


def _broken(folder: Path) -> Path:
    (folder / "broken.parquet").write_bytes(b"PAR1 and no more")
    return folder / "broken.parquet"


def _empty(folder: Path) -> Path:
    parquet.write_table(pa.table({"prompt": pa.array([], pa.string())}), folder / "e.parquet")
    return folder / "e.parquet"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        pytest.param(
            _splits, r"has the splits train, test\. Give the folder of one of them\.", id="a dict of datasets"
        ),
        pytest.param(lambda folder: folder, r"is a folder without state\.json", id="another folder"),
        pytest.param(lambda folder: folder / "no-*.parquet", r"no file matches .*no-\*\.parquet", id="no match"),
        pytest.param(_other_columns, r"train-2\.parquet has other columns than .*train-00000", id="other columns"),
        pytest.param(_broken, r"broken\.parquet cannot be read \(Parquet", id="broken"),
        pytest.param(_empty, r"has no rows", id="empty"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, make: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=rf"^data\.prompts: .*{sentence}"):
        prompts(make(tmp_path), 1)
