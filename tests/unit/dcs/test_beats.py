"""Beats that come while others are carried out are the next ones, all together; each gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from rljob_api.names import Epoch, Role
from rljob_api.spec.restart import RestartPolicySpec
from rljob_api.wire.identity import Incarnation, RankKey
from rljob_api.wire.ranks import Beat, BeatAnswer, RankState
from rljob_workers.dcs.coordinator.context import Refused, fenced, not_open
from rljob_workers.dcs.coordinator.rank_incarnations import Judged, beat_interval_seconds
from rljob_workers.dcs.coordinator.serial_executor import Beats

T = TypeVar("T")
FINE = BeatAnswer(drain=False, published=None, role_ranks=1)


def beat(replica: int) -> Beat:
    key = RankKey(role=Role.ACTOR, replica=replica)
    incarnation = Incarnation(key=key, epoch=Epoch(1), generation=0, id=f"{replica:012x}")
    return Beat(incarnation=incarnation, state=RankState.READY)


class HeldThread:
    """Work goes on when the test lets it."""

    def __init__(self) -> None:
        self.free = asyncio.Event()

    async def do(self, work: Callable[[], T]) -> T:
        await self.free.wait()
        return work()


class Carried:
    """What was carried out, in its turns; replica 3's incarnation is over."""

    def __init__(self) -> None:
        self.turns: list[list[int]] = []

    def __call__(self, beats: Sequence[Beat]) -> list[Judged]:
        self.turns.append([one.incarnation.key.replica for one in beats])
        return [fenced("over") if one.incarnation.key.replica == 3 else FINE for one in beats]


async def begin(beats: Beats, *replicas: int) -> list[asyncio.Task[BeatAnswer]]:
    tasks = [asyncio.create_task(beats.answer(beat(replica))) for replica in replicas]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


def test_those_that_come_meanwhile_are_carried_out_together() -> None:
    async def steps() -> None:
        thread, carried = HeldThread(), Carried()
        beats = Beats(thread, carried)
        first = await begin(beats, 0)
        later = await begin(beats, 1, 2, 3)
        thread.free.set()
        answers = await asyncio.gather(*first, *later, return_exceptions=True)
        assert carried.turns == [[0], [1, 2, 3]]
        assert answers[:3] == [FINE, FINE, FINE]
        assert isinstance(answers[3], Refused)
        assert answers[3].refusal.message == "over"
        assert await beats.answer(beat(4)) == FINE
        assert carried.turns[2:] == [[4]]

    asyncio.run(steps())


def test_what_could_not_be_carried_out_is_reported_to_all_who_asked_and_to_none_after_them() -> None:
    async def steps() -> None:
        thread, carried = HeldThread(), Carried()
        refusals = [not_open("away")]

        def carry_out(some: Sequence[Beat]) -> Sequence[Judged]:
            if refusals:
                raise refusals.pop()
            return carried(some)

        beats = Beats(thread, carry_out)
        tasks = await begin(beats, 0)
        thread.free.set()
        with pytest.raises(Refused, match="away"):
            await tasks[0]
        assert await beats.answer(beat(1)) == FINE

    asyncio.run(steps())


def test_a_request_that_is_given_up_keeps_no_other_from_its_answer() -> None:
    async def steps() -> None:
        thread, carried = HeldThread(), Carried()
        beats = Beats(thread, carried)
        given_up, waiting = await begin(beats, 0, 1)
        given_up.cancel()
        thread.free.set()
        assert await waiting == FINE

    asyncio.run(steps())


@pytest.mark.parametrize(
    ("timeout", "interval"),
    [
        pytest.param(1, 0.5, id="never faster than twice a second"),
        pytest.param(3, 0.5, id="the shortest time-out that allows five lost beats"),
        pytest.param(12, 2.0, id="a sixth of the time-out"),
        pytest.param(30, 5.0, id="the default"),
        pytest.param(86400, 5.0, id="never slower, since status is as old as a beat"),
    ],
)
def test_how_often_ranks_beat(timeout: int, interval: float) -> None:
    policy = RestartPolicySpec(heartbeat_timeout_seconds=timeout, stall_timeout_seconds=timeout + 1)
    assert beat_interval_seconds(policy) == interval
