"""The time of a main loop, and what of it was lost."""

from rljob_workers.dcs.membership.counters import COUNTERS, LOOP_SECONDS, STARVED_SECONDS, WITHHELD_SECONDS
from rljob_workers.rank_loop import LostTime


def test_each_stretch_counts_with_its_share() -> None:
    counters: dict[str, float] = {}
    times = iter([100.0, 101.0, 105.0, 107.0])
    lost = LostTime(counters, STARVED_SECONDS, lambda: next(times))
    assert counters == {LOOP_SECONDS: 0.0, STARVED_SECONDS: 0.0}
    lost.count(0.0)
    lost.count(1.0)
    lost.count(0.25)
    assert counters == {LOOP_SECONDS: 7.0, STARVED_SECONDS: 4.5}


def test_what_it_counts_is_sent() -> None:
    assert {LOOP_SECONDS, STARVED_SECONDS, WITHHELD_SECONDS} <= COUNTERS.keys()
