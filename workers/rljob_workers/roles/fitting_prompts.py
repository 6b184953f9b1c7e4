"""Prompts that are too long: passed over and counted, and another is drawn in their place.

Used by the rollout loop. Nothing is generated for such a prompt, so that it is no attempt of its group; the queue
remembers it like any other draw, also over restarts.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rljob_workers.data.prompts import Prompt, PromptSource
from rljob_workers.dcs.membership.counters import PASSED_OVER
from rljob_workers.transfer_queue.errors import TicketLost
from rljob_workers.transfer_queue.types import Ticket

_LOG = logging.getLogger(__name__)

MAX_IN_A_ROW = 1000
"""A data set with fewer than one prompt in a hundred that fits would have to be bad luck indeed to get here."""


@dataclass(frozen=True, slots=True)
class PromptLimit:
    """The longest prompt that is generated for."""

    tokens: int
    field: str
    """What of the manifest to look at."""
    cure: str

    @classmethod
    def of(cls, max_prompt_tokens: int | None, positions: int) -> PromptLimit:
        """Of a job and its engine's positions, one of which is for the response."""
        if max_prompt_tokens is not None and max_prompt_tokens < positions:
            return cls(max_prompt_tokens, "rollout.maxPromptTokens", "Raise maxPromptTokens, or use shorter prompts.")
        cure = f"The model has {positions} positions for prompt and response: use shorter prompts, or a longer model."
        return cls(positions - 1, "data.prompts", cure)


class PassingOver(Protocol):
    """What is needed of a `TransferQueueClient`."""

    def pass_over(self, ticket: Ticket, /) -> Ticket:
        """The same group with the next prompt. Raises TicketLost."""
        ...


class FittingPrompts:
    """Exchanges prompts until all fit."""

    def __init__(
        self, queue: PassingOver, source: PromptSource, limit: PromptLimit, counters: MutableMapping[str, float]
    ) -> None:
        """`counters`: where prompts that were passed over are counted."""
        self._queue = queue
        self._source = source
        self._limit = limit
        self._counters = counters
        self._in_a_row = 0

    def of(self, tickets: Sequence[Ticket]) -> list[Ticket]:
        """The tickets with prompts that fit; without those that came back meanwhile.

        Raises ValueError where nothing fits.
        """
        return [fitting for ticket in tickets if (fitting := self._exchanged(ticket)) is not None]

    def _exchanged(self, ticket: Ticket) -> Ticket | None:
        while len((prompt := self._source.at(ticket.prompt_index)).token_ids) > self._limit.tokens:
            self._count(prompt)
            try:
                ticket = self._queue.pass_over(ticket)
            except TicketLost:
                return None
        self._in_a_row = 0
        return ticket

    def _count(self, prompt: Prompt) -> None:
        limit, length = self._limit, len(prompt.token_ids)
        self._in_a_row += 1
        if self._in_a_row >= MAX_IN_A_ROW:
            raise ValueError(
                f"{limit.field}: {MAX_IN_A_ROW} prompts in a row have more than {limit.tokens} tokens, the last"
                f" {length}. {limit.cure}"
            )
        passed = int(self._counters.get(PASSED_OVER, 0)) + 1
        self._counters[PASSED_OVER] = passed
        if passed & (passed - 1) == 0:  # the first, and then ever more rarely
            _LOG.warning(
                "prompts passed over so far: %d, since they have more than %d tokens (%s); the last, prompt %d, has %d",
                passed,
                limit.tokens,
                limit.field,
                prompt.index,
                length,
            )
