"""When a job came forward, as the coordinator receives it."""

from rljob_api.names import Epoch, Role
from rljob_api.wire.identity import Incarnation, RankKey
from rljob_api.wire.ranks import Beat, RankState
from rljob_workers.dcs.coordinator.demand import Advance
from tests.clock import Clock


def make_beat(id_: str, progress: int) -> Beat:
    key = RankKey(role=Role.ROLLOUT, replica=0, rank=0)
    incarnation = Incarnation(key=key, epoch=Epoch(1), generation=0, id=id_ * 12)
    return Beat(incarnation=incarnation, state=RankState.READY, progress=progress)


def test_only_growth_is_progress() -> None:
    clock = Clock(50.0)
    advance = Advance(clock)
    for beat, wait, age in (
        (make_beat("a", 0), 10, 10.0),  # counted from the coordinator's start
        (make_beat("a", 7), 5, 5.0),
        (make_beat("a", 7), 5, 10.0),
        (make_beat("b", 0), 5, 15.0),
        (make_beat("b", 3), 5, 5.0),
        (make_beat("a", 6), 5, 10.0),
    ):
        advance.receive(beat)
        clock.now += wait
        assert advance.age_seconds() == age


def test_what_a_incarnation_did_counts_after_its_end() -> None:
    clock = Clock(50.0)
    advance = Advance(clock)
    clock.now += 100
    advance.receive(make_beat("a", 7))
    advance.forget("a" * 12)
    clock.now += 3
    assert advance.age_seconds() == 3


def test_an_epoch_begins_with_incarnations_that_have_reported_nothing() -> None:
    clock = Clock(50.0)
    advance = Advance(clock)
    advance.receive(make_beat("a", 7))
    clock.now += 10
    advance.epoch_opened()
    assert advance.age_seconds() == 10.0
    advance.receive(make_beat("a", 1))
    assert advance.age_seconds() == 0.0
