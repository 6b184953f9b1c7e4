"""Where a user finds a prompt that the job knows by its number.

For whoever has to name one (the coordinator); reads no prompt and needs no tokenizer.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rljob_workers.data.jsonl import open_lines
from rljob_workers.data.order import item_at

if TYPE_CHECKING:
    from rljob_api.spec import DataSpec


def place_of(spec: DataSpec, index: int) -> str:
    """The place of the prompt at `index` of the stream, in words; without its line where the file cannot be read."""
    if spec.reasoning_gym is not None:
        return f"task {item_at(index, spec.reasoning_gym.size, spec.shuffle_seed)} of {spec.reasoning_gym.dataset}"
    assert spec.prompts is not None
    try:
        lines = open_lines(Path(spec.prompts))
    except ValueError:
        return f"number {index} of {spec.prompts}"
    return f"line {lines.number(item_at(index, len(lines), spec.shuffle_seed))} of {spec.prompts}"
