"""Where prompts come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, tokenised."""

    index: int
    """Position in the stream of the cursor."""
    text: str
    token_ids: tuple[int, ...]
    label: Any


class PromptSource(ABC):
    """A deterministic endless stream of prompts: `at(i)` is a function of the spec and i alone; any thread may ask."""

    @abstractmethod
    def __len__(self) -> int:
        """Prompts in one pass."""

    @abstractmethod
    def at(self, index: int) -> Prompt:
        """The prompt at position `index` >= 0; each pass over the data has an order of its own."""
