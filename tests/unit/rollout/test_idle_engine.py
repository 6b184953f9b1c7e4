"""An engine that dies or hangs before its rank generates: the next incarnation is waited for, and the rank lives on."""

from collections.abc import Sequence
from contextlib import closing

import pytest

from rljob_workers.engines.base import EngineAway, EngineError, EngineGone, EngineRefused, EngineTimeout
from rljob_workers.rollout import engine_access
from rljob_workers.rollout.engine_access import FAILED_SEARCHES, IdleEngine
from tests.unit.rollout.fake_engine import FakeEngine, FakeRankEngine


class FailingEngine(FakeEngine):
    """Each question for its capacity meets the next of `errors`, until there are none."""

    def __init__(self, errors: Sequence[EngineError]) -> None:
        self._errors = list(errors)

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


@pytest.mark.parametrize(
    ("errors", "ended"),
    [
        ([], 0),
        ([EngineGone("killed")], 0),
        ([EngineAway("not there yet")] * (FAILED_SEARCHES - 1), 0),
        ([EngineTimeout("hangs"), EngineGone("ended by us"), EngineTimeout("hangs again")], 2),
    ],
)
def test_the_next_incarnation_is_waited_for(errors: list[EngineError], ended: int) -> None:
    with closing(FakeRankEngine(FailingEngine(errors))) as engine:
        assert engine.find_idle() == IdleEngine(max_tokens=100, capacity=8)
        assert engine.ended == ended


@pytest.mark.parametrize("error", [EngineGone("killed"), EngineTimeout("hangs")])
def test_it_is_given_up_in_the_end(error: EngineError) -> None:
    with closing(FakeRankEngine(FailingEngine([error] * FAILED_SEARCHES))) as engine, pytest.raises(type(error)):
        engine.find_idle()


def test_what_it_refuses_is_not_asked_again() -> None:
    with closing(FakeRankEngine(FailingEngine([EngineRefused("no such thing")]))) as engine:
        with pytest.raises(EngineRefused):
            engine.find_idle()
        assert engine.ended == 1, "it outlives the rank, and would refuse the next one"


def test_a_rank_that_drains_waits_for_no_engine() -> None:
    turns = iter([True, False])
    with closing(FakeRankEngine(FailingEngine([EngineGone("killed")]), lambda: next(turns))) as engine:
        assert engine.find_idle() is None


REFUSED = EngineRefused("its logits are not finite")


def test_one_that_refuses_for_a_moment_is_asked_again() -> None:
    with closing(FakeRankEngine(FailingEngine([]))) as engine:
        for errors in ([REFUSED], [EngineTimeout("hangs")], [], [REFUSED, REFUSED]):
            engine.end_if_refusing(errors)
        assert engine.ended == 0


def test_one_that_only_ever_refuses_is_ended_with_its_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_access, "REFUSAL_SECONDS", 0.0)
    with closing(FakeRankEngine(FailingEngine([]))) as engine:
        engine.end_if_refusing([REFUSED])
        engine.answered()
        engine.end_if_refusing([REFUSED])  # the first since it has answered
        assert engine.ended == 0
        with pytest.raises(EngineRefused, match="not finite"):
            engine.end_if_refusing([EngineGone("killed"), REFUSED])
        assert engine.ended == 1
