"""Groups in work at a real engine: what is slow, an answer or its score, keeps no one else from the engine."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import httpx
import pytest

from rljob_api.names import Lineage, RolloutId, Stream, WeightVersion
from rljob_api.spec.weights import Interruption
from rljob_api.wire.identity import WeightId
from rljob_workers.data.prompts import Prompt
from rljob_workers.engines.base import EngineTimeout, Event, FinishReason, SamplingParams, Shown
from rljob_workers.engines.torch_engine.torch_backend import OneByOne
from rljob_workers.engines.torch_engine.torch_client import TorchEngineClient
from rljob_workers.models.weights import Folder, Weights
from rljob_workers.rollout.admission import AdmissionLimits, PromptedTicket, tickets_to_claim
from rljob_workers.rollout.continuing import ContinuingStage
from rljob_workers.rollout.group_rows import GeneratedGroup
from rljob_workers.rollout.groups import GenerateStage, GroupsInWork
from rljob_workers.rollout.sampling import GenerateConfig
from rljob_workers.rollout.trajectory import Trajectory
from rljob_workers.telemetry.timeline import Timeline
from rljob_workers.transfer_queue.types import GroupRows, Ticket
from tests.integration.engines.contract.reference import write_versions
from tests.integration.engines.driven import running_samples, wait_until, waiting_prompts
from tests.unit.rollout.fake_engine import FakeRankEngine

WEIGHT = WeightId(lineage=Lineage(1), version=WeightVersion(0))
SLOW_TOKENS = 1000
"""The server halts before, until generation is continued."""
SLOW_PROMPT = 7
"""Its score is waited for until the test lets it go."""
WAIT_SECONDS = 240.0
CONFIG = GenerateConfig(0, 4, 1.0, 1.0, 0, 24, 1024, ())


class LastIsSlow(TorchEngineClient):
    """Of each group the last sample is long, and greedy so that it draws no end; the others have two tokens."""

    def generate(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], shown: Shown = Shown.ENDS
    ) -> AsyncGenerator[Event]:
        """In one request, as the engine would have had it."""
        both = [
            part
            for one in params
            for part in (
                replace(one, num_samples=one.num_samples - 1, max_new_tokens=2),
                replace(one, num_samples=1, max_new_tokens=SLOW_TOKENS, temperature=0.0),
            )
        ]
        return super().generate([prompt for prompt in prompts for _ in range(2)], both, shown)


class Scores:
    """The stage that follows; rows are of no interest here."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.waiting = 0
        self.groups: list[GeneratedGroup] = []

    def run(self, groups: Sequence[GeneratedGroup]) -> list[GroupRows]:
        """Blocks for the slow prompt."""
        self.groups += groups
        if any(group.ticket.prompt_index == SLOW_PROMPT for group in groups):
            self.waiting += 1
            assert self.may_end.wait(WAIT_SECONDS)
        return [GroupRows(group.ticket, {}, [], []) for group in groups]


@dataclass
class Workplace:
    """Groups in work, and what is around them."""

    work: GroupsInWork
    scores: Scores
    wake: threading.Event


@contextmanager
def opened(
    url: str,
    weights: Path,
    kind: type[TorchEngineClient],
    *,
    stall_seconds: float = 60.0,
    config: GenerateConfig = CONFIG,
    stage: type[GenerateStage] | type[ContinuingStage] = GenerateStage,
) -> Iterator[Workplace]:
    with (
        closing(FakeRankEngine(kind(url), tokens_per_ticket=4 * 24)) as engine,
        closing(Timeline(Path(os.devnull), "rollout-0.0")) as timeline,
    ):
        scores, wake = Scores(), threading.Event()
        work = GroupsInWork(
            engine,
            stage(config, engine.client),
            scores,  # type: ignore[arg-type]  # a stage without rewards
            timeline,
            wake=wake.set,
            stall_seconds=stall_seconds,
        )
        engine.call(engine.client.abort_all())
        deadline = time.monotonic() + WAIT_SECONDS
        engine.call(
            engine.client.update_weights(
                Weights(WEIGHT, Stream.POLICY, Folder(weights)), Interruption.RETRACT, deadline=deadline
            )
        )
        try:
            yield Workplace(work, scores, wake)
        finally:
            scores.may_end.set()
            work.close()
            engine.call(engine.client.abort_all())


def make_ticket(number: int) -> PromptedTicket:
    """Its prompt is a token."""
    ticket = Ticket(number, RolloutId(0), group=number, attempt=0, prompt_index=number, alone=False)
    return PromptedTicket(ticket, Prompt(number, f"p{number}", (1 + number % 9,), label=None))


@pytest.mark.parametrize("kind", [TorchEngineClient, OneByOne])
def test_a_score_that_hangs_holds_no_place_at_the_engine(
    server_url: str, first_weights: Path, kind: type[TorchEngineClient]
) -> None:
    limits = AdmissionLimits(samples_in_flight=16, tickets_in_work=12, samples_per_ticket=4, tickets_per_request=1)
    numbers = count()
    done: set[int] = set()
    with opened(server_url, first_weights, kind) as at:
        deadline = time.monotonic() + WAIT_SECONDS
        while len(done) < 60:
            assert time.monotonic() < deadline, f"{len(done)} of 60 groups were made"
            at.wake.clear()
            done |= {ticket.id for tickets, outcome in at.work.collect() if outcome.result() for ticket in tickets}
            for _ in range(tickets_to_claim(limits, at.work.samples_in_flight, len(at.work.tickets))):
                at.work.begin([make_ticket(next(numbers))], limits.samples_per_ticket)
            at.wake.wait(1)
        wait_until(lambda: at.work.samples_in_flight == 0, "the engine to have made what it has")
        wait_until(lambda: at.work.collect() == [] and len(at.work.tickets) == 1, "all scores but the slow one")
        assert (SLOW_PROMPT in done, at.scores.waiting) == (False, 1)
        assert [ticket.id for ticket in at.work.tickets] == [SLOW_PROMPT], "in work until it has its rows"
        at.scores.may_end.set()
        wait_until(lambda: any(t.id == SLOW_PROMPT for ts, _ in at.work.collect() for t in ts), "the slow score")


@pytest.mark.parametrize("stage", [GenerateStage, ContinuingStage])
def test_more_groups_are_begun_while_one_sample_of_each_goes_on(
    server_url: str, first_weights: Path, stage: type[GenerateStage] | type[ContinuingStage]
) -> None:
    limits = AdmissionLimits(samples_in_flight=8, tickets_in_work=12, samples_per_ticket=4, tickets_per_request=2)
    with opened(server_url, first_weights, LastIsSlow, stage=stage) as at:

        def claimable() -> int:
            return tickets_to_claim(limits, at.work.samples_in_flight, len(at.work.tickets))

        at.work.begin([make_ticket(0), make_ticket(1)], limits.samples_per_ticket)
        assert claimable() == 0, "all places are taken"
        wait_until(lambda: at.work.samples_in_flight == 2, "the places of all but the slow samples")
        assert (at.work.collect(), claimable()) == ([], 2)
        at.work.begin([make_ticket(2), make_ticket(3)], limits.samples_per_ticket)
        wait_until(lambda: at.work.samples_in_flight == 4, "those of the groups that were begun beside them")
        assert (at.work.collect(), claimable(), running_samples(server_url)) == ([], 1, 4)
        httpx.post(f"{server_url}/continue_generation", json={}, timeout=60).raise_for_status()
        wait_until(lambda: at.work.samples_in_flight == 0, "the slow samples")
        done: set[int] = set()

        def have_all() -> bool:
            done.update(ticket.id for tickets, outcome in at.work.collect() if outcome.result() for ticket in tickets)
            return done == {0, 1, 2, 3}

        wait_until(have_all, "all groups")
    lengths = [
        [len(sample.response_ids) for sample in group.samples if isinstance(sample, Trajectory)]
        for group in at.scores.groups
    ]
    assert all(max(short) <= 2 and slow == SLOW_TOKENS for *short, slow in lengths)


def test_an_engine_that_stands_still_is_given_up_by_name_with_a_message(server_url: str, first_weights: Path) -> None:
    with opened(server_url, first_weights, TorchEngineClient, stall_seconds=0.2) as at:
        httpx.post(f"{server_url}/pause_generation", json={"mode": "in_place"}, timeout=60).raise_for_status()
        at.work.begin([make_ticket(0), make_ticket(3)], 4)
        wait_until(lambda: all(o.done() for o in at.work._running), "the request to be given up")
        ((tickets, outcome),) = at.work.collect()
        assert [ticket.id for ticket in tickets] == [0, 3]
        with pytest.raises(EngineTimeout, match=r"has made no token for \d+ s; it had groups 0\.0, 0\.3"):
            outcome.result()
        assert at.work.samples_in_flight == 0
        wait_until(lambda: waiting_prompts(server_url) == 0, "the server to forget the request")


@pytest.mark.parametrize("kind", [TorchEngineClient, OneByOne])
def test_the_greedy_answer_of_each_group_has_the_likeliest_tokens(
    server_url: str, tmp_path: Path, kind: type[TorchEngineClient]
) -> None:
    """By transformers, token by token; the samples of the group are others."""
    config = replace(CONFIG, temperature=1.5, top_k=40, draws_greedy=True)
    [model] = write_versions(tmp_path, 1)
    with opened(server_url, model.folder, kind, config=config) as at:
        at.work.begin([make_ticket(0), make_ticket(3)], config.samples_per_prompt + 1)
        wait_until(lambda: at.work.collect() != [], "both groups")
    assert [group.ticket.id for group in at.scores.groups] == [0, 3]
    for group in at.scores.groups:
        prompt = group.prompt.token_ids
        assert group.greedy is not None
        assert len(group.samples) == 4
        assert len(group.greedy.response_ids) == 24 or group.greedy.finish is FinishReason.STOP
        assert model.nucleus(prompt, group.greedy.response_ids, 0.0, 1).all()
        for sample in group.samples:
            assert isinstance(sample, Trajectory)
            assert not model.nucleus(prompt, sample.response_ids, 0.0, 1).all()
