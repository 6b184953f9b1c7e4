"""Headway: which of the tokens that an engine makes bring the job forward.

Pure. Counted by the groups in work in the engine's event loop, told by the rollout loop in its beats.

The stall clock of the job counts from the last headway, so headway must end when nothing but engines moves: tokens that
are made, thrown away and made again for ever. What counts is therefore bounded between two steps of training: a group
may be begun anew a few times (its engine died), and each time its samples may grow as long as they may be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rljob_workers.transfer_queue.types import Ticket

CREDITED_BEGINNINGS = 3
"""A long answer that is lost to a dead engine twice is no standstill; one that is begun for ever is."""

ROLLOUTS_REMEMBERED = 128
"""More rollouts than may ever be open at once (rollout.maxStaleness is at most 64)."""


class Headway:
    """Tokens that count."""

    def __init__(self, tokens_per_ticket: int) -> None:
        """`tokens_per_ticket`: those of all samples of a group, each as long as it may be."""
        self.tokens = 0
        """Of all requests until now; never goes back."""
        self._tokens_per_ticket = tokens_per_ticket
        self._beginnings: dict[tuple[int, int, int], int] = {}
        self._newest = -1

    def begin(self, tickets: Sequence[Ticket]) -> Callable[[int], None]:
        """A request for these tickets begins; the answer is told of every token that it gets."""
        left = sum(self._credit(ticket) for ticket in tickets)

        def made(num_tokens: int) -> None:
            nonlocal left
            counted = min(num_tokens, left)
            left -= counted
            self.tokens += counted

        return made

    def _credit(self, ticket: Ticket) -> int:
        name = (ticket.rollout_id, ticket.group, ticket.attempt)
        before = self._beginnings.get(name, 0)
        self._beginnings[name] = before + 1
        if ticket.rollout_id > self._newest:
            self._newest = ticket.rollout_id
            self._forget_before(ticket.rollout_id - ROLLOUTS_REMEMBERED)
        return self._tokens_per_ticket if before < CREDITED_BEGINNINGS else 0

    def _forget_before(self, rollout_id: int) -> None:
        self._beginnings = {name: count for name, count in self._beginnings.items() if name[0] >= rollout_id}
