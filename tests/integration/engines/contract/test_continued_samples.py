"""Samples that are interrupted go on: every token is one that was drawn, with the log-prob of its span's weights."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace

import pytest
import torch

from rljob_api.names import RolloutId
from rljob_workers.data.prompts import Prompt
from rljob_workers.engines.base import Engine, EngineGone, FinishReason, Sample
from rljob_workers.rollout.admission import PromptedTicket
from rljob_workers.rollout.carried import pack_group, unpack_group
from rljob_workers.rollout.continuing import ContinuingStage
from rljob_workers.rollout.engine_access import EngineProgress
from rljob_workers.rollout.engine_calls import EngineCalls
from rljob_workers.rollout.group_rows import GeneratedGroup
from rljob_workers.rollout.sampling import GenerateConfig
from rljob_workers.rollout.trajectory import Trajectory
from rljob_workers.transfer_queue.types import Ticket
from tests.integration.engines.contract.calls import PROMPT, load, soon, until, version
from tests.integration.engines.contract.contenders import Contender
from tests.integration.engines.contract.reference import Weights
from tests.near import assert_log_probs_near

pytestmark = pytest.mark.anyio

LONG = 1000
"""Tokens: more than are made until an update has come, unless the machine is busy."""
BEHIND = 24
"""Tokens that may follow the longest beginning."""
TICKET = Ticket(id=1, rollout_id=RolloutId(0), group=0, attempt=0, prompt_index=0, alone=False)


class Group:
    """A group that is generated beside the test."""

    def __init__(self, engine: Engine, num_samples: int, carried: tuple[Sample, ...] = ()) -> None:
        longest = max((len(one.output_ids) + BEHIND for one in carried), default=LONG)
        config = GenerateConfig(
            job_seed=1,
            samples_per_prompt=num_samples,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            max_new_tokens=longest,
            max_tokens=longest + len(PROMPT),
            stop_token_ids=(),
        )
        self._stage = ContinuingStage(config, engine)
        progress = EngineProgress(time.monotonic, num_samples * LONG)
        calls = EngineCalls(progress, [TICKET], stall_seconds=240, moved=lambda _: None)
        ticket = PromptedTicket(TICKET, Prompt(0, "", tuple(PROMPT), None), carried)
        self.task: asyncio.Task[list[GeneratedGroup]] = asyncio.create_task(self._stage.run([ticket], calls))

    def now(self) -> list[Sample]:
        """What there is of its samples."""
        if TICKET.id not in self._stage.in_work:
            return []
        return [sample.now() for sample in self._stage.in_work[TICKET.id].samples]

    async def drew(self, number: int) -> bool:
        """When three samples that go on have tokens of a version; False where all ended before."""
        deadline = soon()
        while sum(one.goes_on and version(number) in _weights(one) for one in self.now()) < 3:
            if self.task.done():
                self.task.result()
                return False
            assert time.monotonic() < deadline, f"no tokens of version {number} came"
            await asyncio.sleep(0.02)
        return True

    async def samples(self) -> list[Trajectory]:
        """When they have ended."""
        async with asyncio.timeout(240):
            [group] = await self.task
        return [sample for sample in group.samples if isinstance(sample, Trajectory)]

    async def given_up(self) -> tuple[Sample, ...]:
        """As a caller that leaves; what there is of it."""
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
        return self._carried()

    async def lost(self) -> tuple[Sample, ...]:
        """When it has failed by the death of its engine."""
        async with asyncio.timeout(240):
            with pytest.raises(EngineGone):
                await self.task
        return self._carried()

    def _carried(self) -> tuple[Sample, ...]:
        """By way of its bytes."""
        group = self.now()
        return unpack_group(pack_group(group, 5), len(group), 5)


def _weights(sample: Sample) -> list[object]:
    return [span.weight for span in sample.spans]


def require_true(carried: tuple[Sample, ...], whole: list[Trajectory], versions: list[Weights]) -> None:
    """Each sample begins with what was carried of it, and is throughout what its spans' weights say."""
    longest = max(len(one.output_ids) + BEHIND for one in carried)
    for begun, sample in zip(carried, whole, strict=True):
        count = len(begun.output_ids)
        assert list(sample.response_ids[:count]) == list(begun.output_ids)
        assert list(sample.log_probs[:count]) == list(begun.log_probs)
        if not begun.goes_on:
            assert (len(sample.response_ids), sample.finish) == (count, begun.finish_reason)
        edges = [0, *(span.end for span in sample.version_spans)]
        assert [span.start for span in sample.version_spans] == edges[:-1]
        assert edges[-1] == len(sample.response_ids) <= longest
        assert sample.finish is FinishReason.STOP or len(sample.response_ids) in (longest, LONG)
    spanning = [sample for begun, sample in zip(carried, whole, strict=True) if begun.goes_on]
    for sample in [one for one in spanning if len(one.version_spans) == 3][:3]:
        parts = [
            versions[span.weight.version].log_probs(PROMPT, sample.response_ids)[span.start : span.end]
            for span in sample.version_spans
        ]
        assert_log_probs_near(torch.tensor(sample.log_probs), torch.cat(parts))


async def interrupted(server: Contender, engine: Engine, versions: list[Weights]) -> Group:
    """Samples of which version 1 drew the beginning and version 2 goes on; others where the update came too late."""
    deadline = soon()
    while time.monotonic() < deadline:
        await load(engine, versions[1].folder, 1)
        group = Group(engine, server.crowd)
        if await group.drew(1):
            await load(engine, versions[2].folder, 2)
            if await group.drew(2):
                return group
    raise AssertionError("all samples had ended before the update to version 2")


async def test_samples_that_were_given_up_go_on_under_the_weights_that_are_held_then(
    server: Contender, engine: Engine, versions: list[Weights]
) -> None:
    carried = await (await interrupted(server, engine, versions)).given_up()
    await until(lambda: server.num_samples() == 0, "the end of the samples")
    await load(engine, versions[0].folder, 0)
    whole = await Group(engine, server.crowd, carried).samples()
    assert any([span.weight.version for span in sample.version_spans] == [1, 2, 0] for sample in whole)
    require_true(carried, whole, versions)
    with pytest.raises(AssertionError):  # it can tell versions apart
        require_true(carried, [replace(one, log_probs=[v - 0.01 for v in one.log_probs]) for one in whole], versions)


@pytest.mark.long
async def test_samples_of_a_killed_engine_go_on_at_the_next(
    server: Contender, engine: Engine, versions: list[Weights]
) -> None:
    group = await interrupted(server, engine, versions)
    await asyncio.to_thread(server.kill)
    carried = await group.lost()
    assert sum(len(one.output_ids) for one in carried) > 0
    await asyncio.to_thread(server.start)
    await load(engine, versions[0].folder, 0)
    whole = await Group(engine, server.crowd, carried).samples()
    assert any([span.weight.version for span in sample.version_spans] == [1, 2, 0] for sample in whole)
    require_true(carried, whole, versions)
