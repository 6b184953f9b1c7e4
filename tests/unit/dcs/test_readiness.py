from __future__ import annotations

import pytest

from rljob_api.names import Epoch, Role
from rljob_api.wire.epochs import DesiredState, PodOrder
from rljob_api.wire.identity import Incarnation, PodKey, RankKey
from rljob_workers.dcs.coordinator.rank_incarnations import RankStanding, readiness_mark

EPOCH = Epoch(3)


def desired(*generations: int, replicas: int | None = None) -> DesiredState:
    pods = [
        PodOrder(pod=PodKey(role=Role.ROLLOUT, replica=replica), epoch=EPOCH, generation=generation)
        for replica, generation in enumerate(generations)
    ]
    return DesiredState(epoch=EPOCH, pods=pods, replicas={"rollout": replicas or len(generations)})


def standing(replica: int, rank: int = 0, *, epoch: int = 3, generation: int = 0, ready: bool = True) -> RankStanding:
    key = RankKey(role=Role.ROLLOUT, replica=replica, rank=rank)
    incarnation = f"{replica:06x}{rank:06x}"
    return RankStanding(Incarnation(key=key, epoch=Epoch(epoch), generation=generation, id=incarnation), ready)


def mark(orders: DesiredState, ranks_per_pod: dict[str, int], *standings: RankStanding) -> str | None:
    ranks = {str(one.incarnation.key): one for one in standings}
    return readiness_mark(Role.ROLLOUT, orders, ranks_per_pod, ranks)


ONE_EACH = {"rollout-0": 1, "rollout-1": 1}


@pytest.mark.parametrize(
    ("orders", "ranks_per_pod", "standings"),
    [
        pytest.param(desired(0, 0), ONE_EACH, [standing(0)], id="a rank is missing"),
        pytest.param(desired(0, 0), ONE_EACH, [standing(0), standing(1, ready=False)], id="a rank is not Ready"),
        pytest.param(desired(0, 0), ONE_EACH, [standing(0), standing(1, epoch=2)], id="a rank is of an older epoch"),
        pytest.param(desired(0, 1), ONE_EACH, [standing(0), standing(1)], id="a rank is of an older generation"),
        pytest.param(desired(0, 0), {"rollout-0": 1}, [standing(0), standing(1)], id="a pod is not registered"),
        pytest.param(desired(0), {"rollout-0": 2}, [standing(0)], id="the second rank of a pod is missing"),
        pytest.param(desired(0, replicas=2), ONE_EACH, [standing(0)], id="fewer orders than replicas"),
        pytest.param(desired(), {}, [], id="a role without pods"),
    ],
)
def test_a_role_is_not_ready_while(
    orders: DesiredState, ranks_per_pod: dict[str, int], standings: list[RankStanding]
) -> None:
    assert mark(orders, ranks_per_pod, *standings) is None


def test_a_role_is_ready_with_all_its_ranks() -> None:
    assert mark(desired(0, 0), ONE_EACH, standing(1), standing(0)) == "3:000000000000,000001000000"


def test_other_incarnations_make_another_mark() -> None:
    before = mark(desired(0, 0), ONE_EACH, standing(0), standing(1))
    assert mark(desired(0, 0), {**ONE_EACH, "rollout-0": 2}, standing(0), standing(0, 1), standing(1)) != before
