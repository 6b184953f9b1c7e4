"""Prompts: an endless deterministic stream of them, its order, and how a prompt becomes text and token ids.

The contract of every source, and what sources share. The order of a pass is computed and never stored: a Feistel
network over the smallest even number of bits that holds the indices, walked until it lands among them (Black and
Rogaway 2002, "Ciphers with arbitrary finite domains"), so that it is a function of (seed, pass, size) alone. Imports
neither torch nor a tokenizer.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import xxhash

from rljob_api.row_files.conversations import Message, Tool, read_prompt, read_tools, spoken_text

if TYPE_CHECKING:
    from rljob_api.spec.data import DataSpec


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, tokenised."""

    index: int
    """Position in the stream of the cursor."""
    text: str
    token_ids: tuple[int, ...]
    label: Any
    messages: tuple[Message, ...] = ()
    """The chat, each with role and content; empty for a prompt that is no chat."""
    row: Mapping[str, Any] = field(default_factory=dict)
    """The other data columns of its line."""
    dataset: str = ""
    """Name of the data set that it is of."""
    source: str = ""
    """Where in the data set it comes from: the value under sourceKey, else the data set's name."""


class PromptSource(ABC):
    """A deterministic endless stream of prompts: `at(i)` is a function of the spec and i alone; any thread may ask."""

    @abstractmethod
    def __len__(self) -> int:
        """Prompts in one pass."""

    @abstractmethod
    def at(self, index: int, /) -> Prompt:
        """The prompt at position `index` >= 0; each pass over the data has an order of its own."""


class RowSource(PromptSource):
    """One whose prompts can be asked for by row, too."""

    @abstractmethod
    def of_row(self, row: int, index: int) -> Prompt:
        """The prompt of row `row` of the data (0 <= row < len), for position `index`."""


class DrawnPrompts(Protocol):
    """Prompts by their draws."""

    def at(self, index: int, /) -> Prompt:
        """The prompt at position `index` >= 0."""
        ...


class EncodePrompt(Protocol):
    """Tokenises a text, or chat messages in the tokenizer's template with the generation prompt."""

    def __call__(self, prompt: str | Sequence[Message], tools: Sequence[Tool] | None, /) -> Sequence[int]:
        """`tools` None: those of the job. ValueError where the tokenizer cannot."""
        ...


class EncodedPrompt(NamedTuple):
    """A prompt as rewards and logs see it, and as an engine does."""

    text: str
    """Without the template."""
    token_ids: tuple[int, ...]
    messages: tuple[Message, ...]
    """Empty for a prompt that is no chat."""


class PromptEncoder:
    """Knows whether strings are wrapped as a user's message, and what the system says before."""

    def __init__(self, spec: DataSpec, encode_prompt: EncodePrompt) -> None:
        self._wraps = spec.apply_chat_template
        self._system = spec.system_prompt
        self._encode_prompt = encode_prompt

    def encode(self, prompt: Any, where: str, tools: Any = None) -> EncodedPrompt:  # noqa: ANN401 - judged here
        """`where` is for errors; `tools` are the row's, which a conversation's template gets."""
        try:
            read = read_prompt(prompt)
        except ValueError as error:
            raise ValueError(f"data.promptKey: the prompt of {where} {error}") from error
        text = spoken_text(read)
        if isinstance(read, str):
            read = ({"role": "user", "content": read},) if self._wraps else ()
        messages = self._after_system(read, where)
        own = _tools_of(tools, where) if messages else None
        try:
            token_ids = tuple(self._encode_prompt(list(messages) or text, own))
        except ValueError as error:
            raise ValueError(f"{error} ({where})") from error
        if not token_ids:
            raise ValueError(f"data.promptKey: the prompt of {where} has no tokens. Remove the line or write a prompt.")
        return EncodedPrompt(text, token_ids, messages)

    def _after_system(self, messages: tuple[Message, ...], where: str) -> tuple[Message, ...]:
        if self._system is None or (messages and messages[0]["role"] == "system"):
            return messages
        if not messages:
            raise ValueError(
                f"data.systemPrompt: the prompt of {where} is a text and no chat, in which a system could say"
                " something. Set data.applyChatTemplate, or remove systemPrompt."
            )
        return ({"role": "system", "content": self._system}, *messages)


def _tools_of(given: Any, where: str) -> tuple[Tool, ...] | None:  # noqa: ANN401 - judged here
    try:
        return read_tools(given)
    except ValueError as error:
        raise ValueError(f"data: the tools of {where} {error}") from error


_NUM_ROUNDS = 6
"""Four suffice for a random-looking permutation of a large domain; small domains want more."""


_KEY = struct.Struct("<QQBQ")


def item_at(index: int, size: int, seed: int | None) -> int:
    """Which of `size` items comes at position `index` of the endless stream; every pass has an order of its own.

    Without a seed every pass is in the order of the data.
    """
    pass_number, position = divmod(index, size)
    return position if seed is None else shuffled_position(position, size, seed=seed, pass_number=pass_number)


def shuffled_position(position: int, size: int, *, seed: int, pass_number: int) -> int:
    """Which of `size` items comes at `position` (0 <= position < size) in this pass."""
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half_bits) - 1
    value = position
    while True:
        left, right = value >> half_bits, value & mask
        for number in range(_NUM_ROUNDS):
            left, right = right, left ^ (_round(seed, pass_number, number, right) & mask)
        value = left << half_bits | right
        if value < size:  # the walk is a cycle through `position`, so that it always comes back among the items
            return value


def _round(seed: int, pass_number: int, number: int, half: int) -> int:
    return xxhash.xxh3_64_intdigest(_KEY.pack(seed & (1 << 64) - 1, pass_number, number, half))
