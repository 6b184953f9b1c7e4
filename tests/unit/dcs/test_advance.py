"""When a job came forward, as the coordinator receives it."""

from rljob_api.names import Epoch, Role
from rljob_api.wire.identity import Incarnation, RankKey
from rljob_api.wire.launchers import EngineProcess, EngineState
from rljob_api.wire.ranks import Beat, Busy, RankState
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


def test_the_end_of_what_a_rank_announced_gives_the_job_its_time_again() -> None:
    clock = Clock(50.0)
    advance = Advance(clock)
    busy = make_beat("a", 0).model_copy(update={"busy": Busy(what="waiting for its engine", seconds=300)})
    for beat, age in ((busy, 10.0), (busy, 20.0), (make_beat("a", 0), 10.0), (make_beat("a", 0), 20.0)):
        advance.receive(beat)
        clock.now += 10
        assert advance.age_seconds() == age


def test_an_incarnation_of_an_engine_that_is_up_counts_once() -> None:
    clock = Clock(50.0)
    advance = Advance(clock)
    for incarnation, state, age in (
        ("1", EngineState.STARTING, 10.0),
        ("1", EngineState.RUNNING, 10.0),
        ("1", EngineState.RUNNING, 20.0),
        ("1", EngineState.RESTARTING, 30.0),
        ("2", EngineState.STARTING, 40.0),
        ("2", EngineState.RUNNING, 10.0),
    ):
        advance.receive_engines([EngineProcess(pid=1, incarnation=incarnation, url="http://engine", state=state)])
        clock.now += 10
        assert advance.age_seconds() == age
