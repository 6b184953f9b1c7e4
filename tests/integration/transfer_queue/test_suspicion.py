"""Deaths of workers with prompts that kill among their work: what is found, and what is never accused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_api.names import Role
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.types import Ticket
from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.servers import Servers
from tests.integration.transfer_queue.world import make_shape
from tests.weights import weight

MakeJob = Callable[..., Job]
REPLICAS, PROMPTS = 3, 8
FOUND = 3
"""Deaths of a prompt that kills, at most."""


class Engines:
    """Replicas that die of prompts that kill, and of anything else, as they are ordered."""

    def __init__(self, job: Job, killers: frozenset[int]) -> None:
        self.job = job
        self.killers = killers
        self.replicas: list[TransferQueueClient] = [job.client(Role.ROLLOUT, number) for number in range(REPLICAS)]
        self.held: list[list[Ticket]] = [[] for _ in range(REPLICAS)]
        self.deaths: Counter[int] = Counter()
        """Prompt -> deaths that it was in work in, since it last ended well."""
        self.accused: set[int] = set()

    def go_on(self) -> bool:
        """Whether any of them had something to do."""
        had_work = False
        for number in range(REPLICAS):
            self.claim(number, 4)
            had_work |= bool(self.held[number])
            self.generate(number)
        return had_work

    def claim(self, number: int, limit: int) -> None:
        answer = self.replicas[number].claim_tickets(weight(0), limit, 0)
        for ticket in answer if isinstance(answer, list) else []:
            self.held[number].append(ticket)
            if ticket.alone:
                assert self.held[number] == [ticket], "alone is alone"
                assert self.deaths[ticket.prompt_index] >= 2, "it has died once, or never"
                self.accused.add(ticket.prompt_index)

    def die(self, number: int) -> None:
        """The death of an engine, whichever prompts it had."""
        self.deaths.update(ticket.prompt_index for ticket in self.held[number])
        self.replicas[number].return_tickets(self.held[number], killed=True)
        self.held[number] = []

    def generate(self, number: int) -> None:
        """All that it holds, if that lets it live."""
        if any(ticket.prompt_index in self.killers for ticket in self.held[number]):
            self.die(number)
            return
        if not self.held[number]:
            return
        self.replicas[number].put_groups([self.job.group(ticket) for ticket in self.held[number]])
        for ticket in self.held[number]:
            self.deaths.pop(ticket.prompt_index, None)
        self.held[number] = []


acts = st.tuples(st.sampled_from(["claim", "die", "generate"]), st.integers(0, REPLICAS - 1), st.integers(1, 4))


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    killers=st.frozensets(st.integers(0, PROMPTS - 1), min_size=1, max_size=2),
    schedule=st.lists(acts, max_size=20),
)
def test_whatever_kills_is_found_with_its_third_death_and_nothing_else_is_ever_accused(
    servers: Servers, killers: frozenset[int], schedule: list[tuple[str, int, int]]
) -> None:
    """Nothing that has fewer than two deaths; and what is innocent is set aside by three other deaths alone."""
    servers.wipe()
    job = Job(servers, make_shape(batch=PROMPTS, kills=FOUND, attempts=8))
    try:
        engines = Engines(job, killers)
        for act, number, limit in schedule:
            engines.claim(number, limit) if act == "claim" else getattr(engines, act)(number)
        while engines.go_on():  # then nothing else dies
            pass
        aside = {one.prompt_index: one.deaths for one in job.admin.set_aside()}
        assert killers <= set(aside), "a prompt that kills was not found"
        assert set(aside.values()) == {FOUND}
        assert all(engines.deaths[prompt] == FOUND for prompt in aside)
        job.prove()
    finally:
        job.close()


@pytest.mark.parametrize("replicas", [1, 4])
def test_groups_of_an_engine_that_dies_of_something_else_are_generated_together_again(
    make_job: MakeJob, replicas: int
) -> None:
    job = make_job(batch=64, kills=FOUND)
    engines = [job.client(Role.ROLLOUT, number) for number in range(replicas)]
    held = [engine.claim_tickets(weight(0), 64 // replicas, 0) for engine in engines]
    assert isinstance(held[0], list)
    engines[0].return_tickets(held[0], killed=True)
    again = engines[0].claim_tickets(weight(0), 64, 0)
    assert isinstance(again, list)
    assert {ticket.prompt_index for ticket in held[0]} <= {ticket.prompt_index for ticket in again}
    assert not any(ticket.alone for ticket in again)
