"""Whose work others get, and when."""

from __future__ import annotations

import pytest

from rljob_api.names import Epoch, Lineage, Role, WeightVersion
from rljob_api.wire.identity import Incarnation, RankKey, WeightId
from rljob_api.wire.ranks import Beat, Busy, RankState
from rljob_workers.dcs.coordinator.background_care import Replica, replica_of, to_take_back

WEIGHTS = WeightId(lineage=Lineage(1), version=WeightVersion(3))
BUSY, IDLE = Replica("busy", 0.2, is_idle=False), Replica("idle", 0.2, is_idle=True)
STILL = Replica("still", 1.5, is_idle=False)


@pytest.mark.parametrize(
    ("replicas", "taken"),
    [
        pytest.param([IDLE, STILL], ["still"], id="one waits for the other"),
        pytest.param([BUSY, STILL], [], id="the others have work"),
        pytest.param([IDLE, BUSY], [], id="all do something"),
        pytest.param([STILL], [], id="nobody else is there"),
        pytest.param([Replica("gone", 9.0, is_idle=True), STILL], [], id="who would be idle says nothing either"),
        pytest.param([IDLE, STILL, Replica("too", 1.1, is_idle=False)], ["still", "too"], id="two do nothing"),
        pytest.param([], [], id="nobody is there"),
    ],
)
def test_who_does_nothing_while_another_has_nothing_to_do(replicas: list[Replica], taken: list[str]) -> None:
    assert to_take_back(replicas, 1.0) == taken


def beat(state: RankState = RankState.READY, **changes: object) -> Beat:
    key = RankKey(role=Role.ROLLOUT, replica=0, rank=0)
    incarnation = Incarnation(key=key, epoch=Epoch(1), generation=0, id="a" * 12)
    return Beat.model_validate({"life": incarnation, "state": state, "holds": WEIGHTS, **changes})


@pytest.mark.parametrize(
    ("reported", "age", "still", "is_idle"),
    [
        pytest.param(beat(), 0.5, 0.5, True, id="it has nothing"),
        pytest.param(beat(tickets=[7]), 0.5, 0.5, False, id="it works"),
        pytest.param(beat(tickets=[7], still_seconds=4), 0.5, 4.5, False, id="its engine makes no token"),
        pytest.param(beat(busy=Busy(what="loads", seconds=10)), 4, 0, True, id="it said that it would be silent"),
        pytest.param(beat(busy=Busy(what="loads", seconds=10)), 12, 2, True, id="and was for longer"),
        pytest.param(beat(RankState.STARTING), 0, 0, False, id="it starts"),
        pytest.param(beat(holds=None), 0, 0, False, id="its engine has no weights"),
    ],
)
def test_what_a_beat_states_of_its_rank(reported: Beat, age: float, still: float, is_idle: bool) -> None:
    assert replica_of(reported, age) == Replica("a" * 12, still, is_idle=is_idle)
