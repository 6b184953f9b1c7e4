"""From a prompt as the user wrote it to text and token ids. For the prompt sources only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rljob_api.spec import DataSpec

ChatMessages = Sequence[Mapping[str, str]]


class EncodePrompt(Protocol):
    """Tokenises a text, or chat messages in the tokenizer's template with the generation prompt."""

    def __call__(self, prompt: str | ChatMessages, /) -> Sequence[int]:
        """ValueError where the tokenizer cannot."""
        ...


class PromptEncoder:
    """Knows whether strings are wrapped as a user's message."""

    def __init__(self, spec: DataSpec, encode_prompt: EncodePrompt) -> None:
        self._wraps = spec.apply_chat_template
        self._encode_prompt = encode_prompt

    def encode(self, prompt: Any, where: str) -> tuple[str, tuple[int, ...]]:  # noqa: ANN401 - judged here
        """Text (as rewards and logs see it, without the template) and token ids; `where` is for errors."""
        if isinstance(prompt, str):
            text: str = prompt
            messages: str | ChatMessages = [{"role": "user", "content": prompt}] if self._wraps else prompt
        elif _is_chat(prompt):
            text, messages = "\n".join(message["content"] for message in prompt), prompt
        else:
            raise ValueError(
                f"data.promptKey: the prompt of {where} is neither a string nor a list of chat messages"
                ' ({"role": ..., "content": ...}, both strings). Write one of them.'
            )
        try:
            token_ids = tuple(self._encode_prompt(messages))
        except ValueError as error:
            raise ValueError(f"{error} ({where})") from error
        if not token_ids:
            raise ValueError(f"data.promptKey: the prompt of {where} has no tokens. Remove the line or write a prompt.")
        return text, token_ids


def _is_chat(prompt: object) -> bool:
    if not isinstance(prompt, list) or not prompt:
        return False
    return all(
        isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))
        for message in prompt
    )
