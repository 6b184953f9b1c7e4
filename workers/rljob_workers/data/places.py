"""The place of a prompt in its user's files, for messages.

Used by the coordinator, which reads no prompt and needs no tokenizer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rljob_workers.data.mixture import Draw, Mixing
from rljob_workers.data.prompts import item_at
from rljob_workers.data.rows import open_rows

if TYPE_CHECKING:
    from rljob_api.spec.data import DataSpec


def place_of_prompt(spec: DataSpec, index: int) -> str:
    """The place of the prompt at `index` of the stream, as a text; without its line where the file cannot be read."""
    if spec.reasoning_gym is not None:
        return f"task {item_at(index, spec.reasoning_gym.size, spec.shuffle_seed)} of {spec.reasoning_gym.dataset}"
    draw = Draw(0, index)
    if spec.sources is not None:
        draw = Mixing([each.weight for each in spec.sources], spec.shuffle_seed).draw(index)
    file = spec.files[draw.source]
    try:
        rows = open_rows(file)
    except ValueError:
        return f"number {draw.index} of {file.path}"
    number = rows.number(item_at(draw.index, len(rows), spec.shuffle_seed))
    return f"{rows.unit} {number} of {file.path}"
