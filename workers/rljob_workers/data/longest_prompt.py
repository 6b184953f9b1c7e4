"""How many tokens the longest prompt of a job has, its system prompt and template included.

Asked by the command line for the plan of a job:

    python -m rljob_workers.data.longest_prompt
    stdin     {"spec": the job's spec with absolute paths}
    stdout    {"tokens": of the longest, "counted": prompts that were tokenised, "prompts": all}

Of many prompts those with the longest texts are tokenised. Imports transformers, and no torch by itself.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from heapq import nlargest

from rljob_api.row_files.conversations import TOOLS, read_prompt, whole_text
from rljob_api.rule import WITHOUT_RULES
from rljob_api.spec import RLJobSpec
from rljob_workers.data import build_prompt_source
from rljob_workers.data.rows import open_rows, prompt_of

MOST_COUNTED = 256
"""Tokenised in a second or so; the prompt with the most tokens is among the longest texts."""


@dataclass(frozen=True, slots=True)
class LongestPrompt:
    """The one with the most tokens."""

    tokens: int
    counted: int
    """Prompts that were tokenised."""
    prompts: int
    """All of the job's."""


def longest_prompt(spec: RLJobSpec) -> LongestPrompt:
    """Longest prompt of a job's files. ValueError, a sentence, for a prompt or tokenizer that cannot be used."""
    from rljob_workers.models.tokenizers import build_tokenizer

    source = build_prompt_source(spec.data, build_tokenizer(spec.model))
    lengths = _text_lengths(spec)
    rows = nlargest(MOST_COUNTED, range(len(lengths)), key=lambda row: lengths[row])
    tokens = max(len(source.of_row(row, 0).token_ids) for row in rows)
    return LongestPrompt(tokens, len(rows), len(lengths))


def _text_lengths(spec: RLJobSpec) -> list[int]:
    """Characters of each row's prompt, calls and schemas of tools included, in the order of the rows of all files."""
    lengths: list[int] = []
    for file in spec.data.files:
        rows = open_rows(file)
        for index in range(len(rows)):
            entry = rows.row(index)
            prompt = read_prompt(prompt_of(entry, file.prompt_key, f"row {index + 1}"))
            lengths.append(len(whole_text(prompt)) + len(str(entry.get(TOOLS, ""))))
    return lengths


if __name__ == "__main__":
    # Rules between fields are held by who asks.
    found = longest_prompt(RLJobSpec.model_validate(json.load(sys.stdin)["spec"], context=WITHOUT_RULES))
    json.dump({"tokens": found.tokens, "counted": found.counted, "prompts": found.prompts}, sys.stdout)
