"""The longest prompt is counted with its system prompt and template, of many prompts among the longest texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rljob_api.spec import RLJobSpec
from rljob_workers.data.longest_prompt import MOST_COUNTED, LongestPrompt, longest_prompt
from tests.unit.api.manifests import changed

TEMPLATE = (
    "{% for m in messages %}<{{ m.content }}>{% for c in m.tool_calls %}{{ c.arguments.n }}{% endfor %}{% endfor %}:"
)
BYTE = {"spec.model.config.tokenizer": {"kind": "Byte"}}
WRAPPED = BYTE | {"spec.data.applyChatTemplate": True, "spec.data.systemPrompt": "be brief"}


@pytest.mark.parametrize(
    ("prompts", "changes", "expected"),
    [
        pytest.param(["1", "é3"], BYTE, LongestPrompt(3, 2, 2), id="texts as they are"),
        pytest.param(["1", "123"], WRAPPED, LongestPrompt(len("<be brief><123>:"), 2, 2), id="wrapped"),
        pytest.param(
            [[{"role": "user", "content": "12"}, {"role": "assistant"}]],
            BYTE,
            LongestPrompt(len("<12><>:"), 1, 1),
            id="a conversation",
        ),
        pytest.param(
            [f"{n}" for n in range(10_000, 10_300)] + ["123456"],
            BYTE,
            LongestPrompt(6, MOST_COUNTED, 301),
            id="of many",
        ),
        pytest.param(
            [[{"role": "user", "content": f"{n}"}] for n in range(10_000, 10_300)]
            + [[{"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"n": 12345678}}]}]],
            BYTE,
            LongestPrompt(len("<>12345678:"), MOST_COUNTED, 301),
            id="of many, the longest with a call",
        ),
    ],
)
def test_the_longest_prompt(
    prompts: list[Any], changes: dict[str, Any], expected: LongestPrompt, tmp_path: Path
) -> None:
    (tmp_path / "t.jinja").write_text(TEMPLATE)
    (tmp_path / "all.jsonl").write_text("".join(json.dumps({"prompt": one}) + "\n" for one in prompts))
    template = {"file": str(tmp_path / "t.jinja")}
    data = {"spec.data.prompts": str(tmp_path / "all.jsonl"), "spec.data.chatTemplate": template}
    assert longest_prompt(RLJobSpec.model_validate(changed({**changes, **data})["spec"])) == expected
