"""How long the rows of a job can become, in tokens, without a tokenizer's library: for what is said of memory.

Exact where the tokenizer has a token for each character or byte. Else a prompt is taken to have a token for every
three characters, which text in most languages stays below; for procedural tasks a length is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_api.spec import RLJobSpec
from rljob_api.spec.data import DataSpec
from rljob_api.spec.model import ModelSpec, TokenizerKind
from rljob_cli.json_text import parsed

CHARACTERS_PER_TOKEN = 3
"""Text has rarely more characters for a token than this, and mostly not fewer."""
PROCEDURAL_TOKENS = 512


@dataclass(frozen=True, slots=True)
class RowLengths:
    """The longest row."""

    prompt: int
    response: int
    prompt_source: str
    """How the prompt's length is known, as part of a sentence."""

    @property
    def row(self) -> int:
        """Prompt and response together."""
        return self.prompt + self.response


def row_lengths(spec: RLJobSpec, max_positions: int | None) -> RowLengths:
    """Of a job whose prompts were checked before. `max_positions`: of the model, which no row exceeds."""
    response = spec.rollout.sampling.max_new_tokens
    prompt, source = _longest_prompt(spec.data, spec.model)
    limit = spec.rollout.max_prompt_tokens
    if limit is not None and prompt > limit:
        prompt, source = limit, "rollout.maxPromptTokens"
    if max_positions is not None and prompt + response > max_positions:
        prompt, source = max(1, max_positions - response), f"what the model's {max_positions} positions leave"
    return RowLengths(prompt, response, source)


def _longest_prompt(data: DataSpec, model: ModelSpec) -> tuple[int, str]:
    if data.prompts is None:
        return PROCEDURAL_TOKENS, "assumed for tasks of reasoningGym"
    with Path(data.prompts).open("rb") as lines:
        texts = [said_text(parsed(line)[data.prompt_key]) for line in lines if line.strip()]
    if model.config is None or model.tokenizer_path is not None:
        longest = max(len(text) for text in texts)
        return -(
            -longest // CHARACTERS_PER_TOKEN
        ), f"a token for {CHARACTERS_PER_TOKEN} characters of the longest prompt"
    by_bytes = model.config.tokenizer.kind is TokenizerKind.BYTE
    return max(len(text.encode()) if by_bytes else len(text) for text in texts), "the longest prompt"


def said_text(prompt: Any) -> str:  # noqa: ANN401 - JSON
    """Of a conversation everything that is said in it; its template adds some tokens."""
    if isinstance(prompt, list):
        return "".join(f"{turn['role']}{turn['content']}" for turn in prompt)
    return str(prompt)
