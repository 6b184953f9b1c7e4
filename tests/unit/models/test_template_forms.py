"""Contents and arguments of tool calls reach a template in the form that it reads, from JSONL and Parquet alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from rljob_api.spec.data import DataSpec
from rljob_api.spec.model import TokenizerConfig, TokenizerKind
from rljob_workers.data import build_prompt_source
from rljob_workers.models.tokenizers import make_tokenizer


def template(content: str = "{{ m.content }}", arguments: str = "{{ f.arguments | tojson }}") -> str:
    """Each message by its role's first letter, its content, and its calls."""
    calls = "{% for c in m.tool_calls or [] %}{% set f = c.function or c %}[{{ f.name }} " + arguments + "]{% endfor %}"
    return "{% for m in messages %}{{ m.role[0] }}:" + content + calls + ";{% endfor %}"


ENCODES = template()
AS_IT_IS = template(arguments="{{ '' + f.arguments }}")
PRINTS = template(arguments="{{ f.arguments }}")
EITHER = template(arguments="{{ f.arguments if f.arguments is string else f.arguments | tojson }}")
BY_NAME = template(arguments="{% for k, v in f.arguments.items() %}{{ k }}={{ v }}{% endfor %}")
PARTS = template("{% for p in m.content %}{{ p.text }}{% endfor %}")
PARTS_TOO = template(
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}"
)
STRICT = template("{{ m.content if m.content is string else raise_exception('no text') }}")


def call(arguments: Any, name: str = "weather", number: int = 1) -> dict[str, Any]:
    return {"id": f"call0000{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def history(*calls: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    """A user asks, the assistant calls, tools answer, the user asks again."""
    return [
        {"role": "user", "content": "Paris?"},
        {"role": "assistant", **fields, "tool_calls": list(calls)},
        *({"role": "tool", "content": "18", "tool_call_id": one["id"]} for one in calls),
        {"role": "user", "content": "Rome?"},
    ]


def prompts(path: Path, own: str) -> list[str]:
    tokenizer = make_tokenizer(TokenizerConfig(kind=TokenizerKind.BYTE))
    tokenizer.chat_template = own
    source = build_prompt_source(DataSpec(prompts=str(path), shuffle_seed=None), tokenizer)
    return [str(tokenizer.decode(list(source.at(index).token_ids))) for index in range(len(source))]


def of_both(folder: Path, rows: list[dict[str, Any]], own: str) -> tuple[list[str], list[str]]:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    parquet.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    return prompts(folder / "rows.jsonl", own), prompts(folder / "rows.parquet", own)


CITY, ZONE = {"city": "Paris"}, {"zone": "Rome"}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": {"properties": {"city": {"type": "string"}}}}}
]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        pytest.param(
            history(call(CITY), content=None),
            history(call(ZONE), content=None),
            [
                'u:Paris?;a:[weather {"city": "Paris"}];t:18;u:Rome?;',
                'u:Paris?;a:[weather {"zone": "Rome"}];t:18;u:Rome?;',
            ],
            id="objects, content null",
        ),
        pytest.param(
            history(call(CITY)),
            history(call(ZONE), content="I ask."),
            [
                'u:Paris?;a:[weather {"city": "Paris"}];t:18;u:Rome?;',
                'u:Paris?;a:I ask.[weather {"zone": "Rome"}];t:18;u:Rome?;',
            ],
            id="content left out",
        ),
        pytest.param(
            history(call(CITY | {"zone": None}), content=None),
            history(call(ZONE), content=None),
            [
                'u:Paris?;a:[weather {"city": "Paris"}];t:18;u:Rome?;',
                'u:Paris?;a:[weather {"zone": "Rome"}];t:18;u:Rome?;',
            ],
            id="a null that was written",
        ),
        pytest.param(
            history(call(json.dumps(CITY | {"zone": None})), content=None),
            history(call(json.dumps(ZONE)), content=None),
            [
                'u:Paris?;a:[weather {"city": "Paris", "zone": null}];t:18;u:Rome?;',
                'u:Paris?;a:[weather {"zone": "Rome"}];t:18;u:Rome?;',
            ],
            id="arguments as JSON keep their nulls",
        ),
        pytest.param(
            history(call(CITY), call(ZONE, "time", 2), content=None),
            history(call(CITY), content=None),
            [
                'u:Paris?;a:[weather {"city": "Paris"}][time {"zone": "Rome"}];t:18;t:18;u:Rome?;',
                'u:Paris?;a:[weather {"city": "Paris"}];t:18;u:Rome?;',
            ],
            id="calls side by side",
        ),
        pytest.param(
            history(call({}), content=None),
            history(call(CITY), content=None),
            ["u:Paris?;a:[weather {}];t:18;u:Rome?;", 'u:Paris?;a:[weather {"city": "Paris"}];t:18;u:Rome?;'],
            id="no argument",
        ),
        pytest.param(
            [{"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]}],
            [{"role": "user", "content": [{"type": "text", "text": "c"}]}],
            ["u:a b;", "u:c;"],
            id="parts",
        ),
    ],
)
@pytest.mark.parametrize("own", [ENCODES, AS_IT_IS, PRINTS, EITHER, PARTS, PARTS_TOO, STRICT])
def test_a_history_has_the_same_tokens_from_either_file_and_by_any_template(
    first: list[Any], second: list[Any], expected: list[str], own: str, tmp_path: Path
) -> None:
    rows = [{"prompt": messages, "tools": TOOLS} for messages in (first, second)]
    assert of_both(tmp_path, rows, own) == (expected, expected)


def test_a_template_that_goes_through_arguments_gets_an_object(tmp_path: Path) -> None:
    rows = [{"prompt": history(call(arguments))} for arguments in ('{"city": "Paris"}', '{"zone": "Rome"}')]
    expected = ["u:Paris?;a:[weather city=Paris];t:18;u:Rome?;", "u:Paris?;a:[weather zone=Rome];t:18;u:Rome?;"]
    assert of_both(tmp_path, rows, BY_NAME) == (expected, expected)


def test_arguments_of_a_column_of_maps_are_objects(tmp_path: Path) -> None:
    arguments = pa.map_(pa.string(), pa.string())
    calls = pa.list_(pa.struct([("function", pa.struct([("name", pa.string()), ("arguments", arguments)]))]))
    message = pa.struct([("role", pa.string()), ("content", pa.string()), ("tool_calls", calls)])
    given = [{"function": {"name": "weather", "arguments": [("city", "Paris")]}}]
    rows = pa.array([[{"role": "assistant", "content": None, "tool_calls": given}]], pa.list_(message))
    parquet.write_table(pa.table({"prompt": rows}), tmp_path / "maps.parquet")
    assert prompts(tmp_path / "maps.parquet", ENCODES) == ['a:[weather {"city": "Paris"}];']


def test_arguments_that_are_no_json_stay_as_the_model_wrote_them(tmp_path: Path) -> None:
    rows = [{"prompt": history(call('{"city": '), content="")}]
    assert of_both(tmp_path, rows, EITHER)[0] == ['u:Paris?;a:[weather {"city": ];t:18;u:Rome?;']


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        pytest.param(template("{{ m.content + 1 }}"), "can only concatenate str", id="a wrong operation"),
        pytest.param(template("{{ m.none.name }}"), "has no attribute 'none'", id="a field that is not there"),
        pytest.param(template("{{ 1 / 0 }}"), "division by zero", id="arithmetic"),
    ],
)
def test_an_error_of_a_template_is_a_sentence(own: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=rf"^data\.chatTemplate: the template refuses the messages \(.*{reason}.* line 1"
    ):
        of_both(tmp_path, [{"prompt": [{"role": "user", "content": "a"}]}], own)
