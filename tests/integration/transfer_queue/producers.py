"""What producers do in the state machine: tickets, groups, and what becomes of tickets that are let go.

For `machine`. Every rule does one thing on the queue and on the model, and compares the answers.
"""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.admin import InWork
from rljob_workers.transfer_queue.types import GroupRows, Ticket
from tests.integration.transfer_queue.members import INDEX, SHAPE, Member, Members, picked
from tests.integration.transfer_queue.model import Group, Place


class Producers(Members):
    """The two that generate."""

    @rule(who=st.integers(0, 1), limit=st.integers(1, 4), behind=st.integers(0, 1))
    def claim_tickets(self, who: int, limit: int, behind: int) -> None:
        member, held = self.members[who], self.held_weight(self.model.published - behind)
        answer = member.queue.claim_tickets(held, limit, 0)
        tickets = answer if isinstance(answer, list) else []
        places = [(int(ticket.rollout_id), ticket.group) for ticket in tickets]
        assert places == self.model.next_places(held.version, limit), answer
        for place, ticket in zip(places, tickets, strict=True):
            self.take(place, ticket, held.version)
        member.tickets += tickets

    def take(self, place: Place, ticket: Ticket, since: int) -> None:
        known = self.model.groups.get(place)
        if known is None:
            assert ticket.prompt_index not in {group.prompt for group in self.model.groups.values()}
            known = self.model.groups[place] = Group(ticket.attempt, ticket.prompt_index, "work")
            assert ticket.attempt == 0
        assert (ticket.attempt, ticket.prompt_index) == (known.attempt, known.prompt)
        assert ticket.refused == known.refused
        known.state, known.since = "work", since
        self.places[ticket.id] = place

    @precondition(lambda self: any(member.tickets for member in self.members))
    @rule(who=st.integers(0, 1), which=st.lists(INDEX, min_size=1, max_size=3), behind=st.integers(0, 1))
    def put_groups(self, who: int, which: list[int], behind: int) -> None:
        member, version = self.members[who], max(self.model.published - behind, 0)
        tickets = picked(member.tickets, which)
        places = member.queue.put_groups([self.group(ticket, version) for ticket in tickets])
        for ticket, found in zip(tickets, places, strict=True):
            place = self.to_the_front(ticket)
            fits = place[0] - version <= SHAPE.max_staleness
            assert found == (place if fits else None)
            member.tickets.remove(ticket)
            del self.places[ticket.id]
            self.model.groups[place].state = "waiting"
            if fits:
                self.model.generate(place, version, ticket.id)

    def to_the_front(self, ticket: Ticket) -> Place:
        """The place of a ticket whose group is put; the tickets in its way have its place."""
        place = self.places[ticket.id]
        while (free := self.model.first_exchange(place)) is not None:
            self.model.exchange(place, free)
            moved = {place: free, free: place}
            self.places = {name: moved.get(where, where) for name, where in self.places.items()}
            place = free
        return place

    def group(self, ticket: Ticket, version: int) -> GroupRows:
        num = SHAPE.samples_per_prompt
        tokens = [torch.full((1 + index,), ticket.id, dtype=torch.int32) for index in range(num)]
        columns = {"tokens": Jagged.from_rows(tokens), "rewards": Jagged.scalars(torch.ones(num))}
        made_by = [self.held_weight(version)] * num
        return GroupRows(ticket, columns, made_by, made_by)

    @rule(who=st.integers(0, 1))
    def generate_all(self, who: int) -> None:
        """Several rules at once, so that random orders come far."""
        self.claim_tickets(who, 4, 0)
        self.put_groups(who, [0, 1, 2, 3], 0)

    @precondition(lambda self: any(member.tickets for member in self.members))
    @rule(
        who=st.integers(0, 1), which=INDEX, how=st.sampled_from(["return", "redraw", "refuse", "pass over", "unlisted"])
    )
    def let_go(self, who: int, which: int, how: str) -> None:
        member = self.members[who]
        for ticket in picked(member.tickets, [which]):
            place = self.places.pop(ticket.id)
            member.tickets.remove(ticket)
            since, self.model.groups[place].state = self.model.groups[place].since, "waiting"
            if how == "return":
                member.queue.return_tickets([ticket], killed=False)
            elif how == "unlisted":
                for _ in range(2):
                    self.beat(member)
            else:
                drawn = self.drawn_again(member, ticket, how)
                assert drawn.prompt_index not in {group.prompt for group in self.model.groups.values()}
                assert (drawn.rollout_id, drawn.group) == place
                assert drawn.attempt == ticket.attempt + (how != "pass over")
                refused = ticket.refused + (how == "refuse")
                self.model.groups[place] = Group(drawn.attempt, drawn.prompt_index, "work", refused=refused)
                self.take(place, drawn, since)
                member.tickets.append(drawn)

    def drawn_again(self, member: Member, ticket: Ticket, how: str) -> Ticket:
        if how == "redraw":
            return member.queue.redraw(ticket, "a rule")
        return member.queue.refuse(ticket) if how == "refuse" else member.queue.pass_over(ticket)

    def beat(self, member: Member) -> None:
        leases = [batch.lease for _, batch in member.batches if batch.lease is not None]
        self.admin.beats([InWork(member.incarnation.id, [ticket.id for ticket in member.tickets], leases)])
        self.over -= set(leases)
