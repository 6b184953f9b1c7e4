"""An engine that dies or hangs before its rank generates: the next life is waited for, and the rank lives on."""

from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

from rljob_workers.engines.base import EngineAway, EngineError, EngineGone, EngineRefused, EngineTimeout
from rljob_workers.rollout.engine_access import LIVES, EventLoopThread, IdleEngine, find_idle_engine
from tests.unit.rollout.fake_engine import FakeEngine


class FailingEngine(FakeEngine):
    """Each question for its capacity meets the next of `errors`, until there are none."""

    def __init__(self, errors: Sequence[EngineError]) -> None:
        self._errors = list(errors)
        self.ended = 0

    async def max_tokens(self) -> int:
        return 100

    async def capacity(self) -> int:
        if self._errors:
            raise self._errors.pop(0)
        return 8

    async def abort_all(self) -> None:
        return

    async def close(self) -> None:
        return

    def end(self, why: str) -> None:
        """As its launcher would."""
        assert why
        self.ended += 1


@pytest.fixture
def events() -> Iterator[EventLoopThread]:
    with closing(EventLoopThread("engine")) as thread:
        yield thread


@pytest.mark.parametrize(
    ("errors", "ended"),
    [
        ([], 0),
        ([EngineGone("killed")], 0),
        ([EngineAway("not there yet")] * (LIVES - 1), 0),
        ([EngineTimeout("hangs"), EngineGone("ended by us"), EngineTimeout("hangs again")], 2),
    ],
)
def test_the_next_life_is_waited_for(events: EventLoopThread, errors: list[EngineError], ended: int) -> None:
    engine = FailingEngine(errors)
    assert find_idle_engine(engine, events, lambda: True, engine.end) == IdleEngine(max_tokens=100, capacity=8)
    assert engine.ended == ended


@pytest.mark.parametrize("error", [EngineGone("killed"), EngineTimeout("hangs")])
def test_it_is_given_up_in_the_end(events: EventLoopThread, error: EngineError) -> None:
    engine = FailingEngine([error] * LIVES)
    with pytest.raises(type(error)):
        find_idle_engine(engine, events, lambda: True, engine.end)


def test_what_it_refuses_is_not_asked_again(events: EventLoopThread) -> None:
    engine = FailingEngine([EngineRefused("no such thing")])
    with pytest.raises(EngineRefused):
        find_idle_engine(engine, events, lambda: True, engine.end)
    assert engine.ended == 1, "it outlives the rank, and would refuse the next one"


def test_nobody_waits_any_more(events: EventLoopThread) -> None:
    engine = FailingEngine([EngineGone("killed")])
    turns = iter([True, False])
    assert find_idle_engine(engine, events, lambda: next(turns), engine.end) is None
