"""Which incarnations of a pod a failure is about."""

from typing import Any

import pytest

from rljob_api.names import Epoch, Role
from rljob_api.wire.failures import Failure, FailureKind
from rljob_api.wire.identity import Incarnation, PodKey, RankKey
from rljob_workers.dcs.coordinator.rank_incarnations import concerns

POD = PodKey(role=Role.ROLLOUT, replica=0)
DEAD, OTHER = (
    Incarnation(key=RankKey(role=Role.ROLLOUT, replica=0, rank=rank), epoch=Epoch(2), generation=1, id=f"{rank:012x}")
    for rank in (1, 0)
)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"kind": FailureKind.RANK_EXITED, "incarnation": DEAD.id}, (True, False), id="a rank"),
        pytest.param({"kind": FailureKind.LAUNCHER_LOST}, (True, True), id="a launcher takes all its ranks with it"),
        pytest.param({"kind": FailureKind.ENGINE_EXITED, "engine": 1}, (False, False), id="an engine: its rank lives"),
        pytest.param({"kind": FailureKind.REPORTED}, (False, False), id="nobody died of it"),
        pytest.param({"kind": FailureKind.LAUNCHER_LOST, "epoch": 1}, (False, False), id="of another epoch"),
        pytest.param({"kind": FailureKind.LAUNCHER_LOST, "generation": 0}, (False, False), id="of another generation"),
    ],
)
def test_concerns(fields: dict[str, Any], expected: tuple[bool, bool]) -> None:
    reported = {"id": "f", "pod": POD, "epoch": 2, "generation": 1, "message": "m", "at": 0.0}
    failure = Failure.model_validate({**reported, **fields})
    assert (concerns(failure, DEAD), concerns(failure, OTHER)) == expected
