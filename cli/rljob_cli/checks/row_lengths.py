"""How long the rows of a job are, for the plan of its memory: prompt and response of the longest.

A prompt's tokens are counted by the job's tokenizer, in a process of its own, template and system prompt included. They
are known without one where each character or byte is a token, and estimated where the tokenizer is not here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api.spec.model import TokenizerKind
from rljob_cli.checks.prompts import CHARACTERS_PER_TOKEN, conversation_text, prompts_of

if TYPE_CHECKING:
    from rljob_api.spec import RLJobSpec

PROCEDURAL_TOKENS = 512


_LONGEST_SECONDS = 300
"""For the process that counts, imports included, on a machine that has much else to do."""


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
    """Lengths of a job whose prompts were checked before. `max_positions`: of the model, which no row exceeds."""
    response = spec.rollout.sampling.max_new_tokens
    prompt, source = _longest_prompt(spec)
    limit = spec.rollout.max_prompt_tokens
    if limit is not None and prompt > limit:
        prompt, source = limit, "rollout.maxPromptTokens"
    if max_positions is not None and prompt + response > max_positions:
        prompt, source = max(1, max_positions - response), f"what the model's {max_positions} positions leave"
    return RowLengths(prompt, response, source)


def _longest_prompt(spec: RLJobSpec) -> tuple[int, str]:
    """Its tokens, and how they are known."""
    data, model = spec.data, spec.model
    if not data.files:
        return PROCEDURAL_TOKENS, "assumed for tasks of reasoningGym"
    prompts = [prompt for file in data.files for prompt in prompts_of(file)]
    has_template = data.apply_chat_template or not all(isinstance(prompt, str) for prompt in prompts)
    texts = [(data.system_prompt or "") + conversation_text(prompt) for prompt in prompts]
    if model.config is not None and model.tokenizer_path is None and not has_template:
        by_bytes = model.config.tokenizer.kind is TokenizerKind.BYTE
        return max(len(text.encode()) if by_bytes else len(text) for text in texts), "the longest prompt"
    tokens = -(-max(len(text) for text in texts) // CHARACTERS_PER_TOKEN)
    without = " without its template" if has_template else ""
    estimated = f"a token for {CHARACTERS_PER_TOKEN} characters of the longest prompt{without}"
    return _counted(spec) or (tokens, estimated)


def _counted(spec: RLJobSpec) -> tuple[int, str] | None:
    """Tokens by the tokenizer; None where it is not here or cannot be used, for which there is a finding."""
    folder = spec.model.tokenizer_path or spec.model.path
    if (folder is not None and not Path(folder).is_dir()) or find_spec("transformers") is None:
        return None
    command = [sys.executable, "-m", "rljob_workers.data.longest_prompt"]
    asked = json.dumps({"spec": spec.model_dump(mode="json")}).encode()
    try:
        done = subprocess.run(command, input=asked, capture_output=True, timeout=_LONGEST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        return None
    found = json.loads(done.stdout)
    some = "" if found["counted"] == found["prompts"] else f" of the {found['counted']} longest texts"
    return found["tokens"], f"the longest prompt{some}, by the tokenizer"
