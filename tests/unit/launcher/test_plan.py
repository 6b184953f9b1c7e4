"""What a launcher does next, row by row; then that every order is reached, whatever ran before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.names import Epoch, Role
from rljob_api.wire.epochs import PodOrder, PodPhase
from rljob_api.wire.identity import PodKey
from rljob_workers.launcher.plan import (
    DONE_GRACE_SECONDS,
    TERMINATION_GRACE_SECONDS,
    DrainRank,
    EngineView,
    KillEngine,
    KillRank,
    Leave,
    PodView,
    RankView,
    StartEngine,
    StartRank,
    Step,
    plan,
)

NOW = 1000.0


def make_order(epoch: int = 3, generation: int = 0, phase: PodPhase = PodPhase.RUN) -> PodOrder:
    pod = PodKey(role=Role.ROLLOUT, replica=0)
    return PodOrder(pod=pod, epoch=Epoch(epoch), generation=generation, phase=phase)


def make_pod(
    *ranks: RankView, engine: EngineView | None = None, terminating: bool = False, num_ranks: int = 1
) -> PodView:
    return PodView(num_ranks, drain_seconds=600.0, ranks=ranks, engine=engine, terminating=terminating)


def alive(
    epoch: int = 3, generation: int = 0, *, asked: float | None = None, killed: bool = False, rank: int = 0
) -> RankView:
    return RankView(rank, epoch, generation, alive=True, drain_asked_at=asked, killed=killed)


def dead(epoch: int = 3, generation: int = 0, rank: int = 0) -> RankView:
    return RankView(rank, epoch, generation, alive=False)


DRAIN = make_order(phase=PodPhase.DRAIN)
DONE = make_order(phase=PodPhase.DONE)
WHY_EPOCH = "it is of epoch 2, generation 0; the order is epoch 3, generation 0"
WHY_GENERATION = "it is of epoch 3, generation 0; the order is epoch 3, generation 1"


@pytest.mark.parametrize(
    ("order", "pod", "expected"),
    [
        pytest.param(None, make_pod(), [], id="without an order nothing is started"),
        pytest.param(None, make_pod(alive()), [], id="without an order nothing is ended"),
        pytest.param(make_order(), make_pod(), [StartRank(0)], id="an empty pod starts its rank"),
        pytest.param(
            make_order(), make_pod(num_ranks=2), [StartRank(0), StartRank(1)], id="an empty pod starts all its ranks"
        ),
        pytest.param(
            make_order(),
            make_pod(engine=EngineView(alive=False)),
            [StartEngine(), StartRank(0)],
            id="the engine is started beside the rank",
        ),
        pytest.param(make_order(), make_pod(alive()), [], id="what runs as ordered is left alone"),
        pytest.param(make_order(), make_pod(dead()), [], id="a rank that died waits to be told"),
        pytest.param(
            make_order(),
            make_pod(alive(2)),
            [KillRank(0, WHY_EPOCH)],
            id="a rank of an older epoch is killed before the new one starts",
        ),
        pytest.param(make_order(), make_pod(alive(2, killed=True)), [], id="a killed rank is killed once"),
        pytest.param(make_order(), make_pod(dead(2)), [StartRank(0)], id="a dead rank is started in a later epoch"),
        pytest.param(
            make_order(generation=1),
            make_pod(dead()),
            [StartRank(0)],
            id="a dead rank is started in a later generation",
        ),
        pytest.param(
            make_order(generation=1),
            make_pod(alive()),
            [KillRank(0, WHY_GENERATION)],
            id="a hanging rank is killed for a later generation",
        ),
        pytest.param(
            make_order(4),
            make_pod(alive(3), dead(3, rank=1), num_ranks=2),
            [KillRank(0, "it is of epoch 3, generation 0; the order is epoch 4, generation 0"), StartRank(1)],
            id="each rank goes its own way into the new epoch",
        ),
        pytest.param(make_order(2), make_pod(alive(3)), [], id="an order of the past kills nothing"),
        pytest.param(make_order(2), make_pod(dead(3)), [], id="an order of the past starts nothing"),
        pytest.param(
            make_order(),
            make_pod(alive(2), engine=EngineView(alive=True)),
            [KillRank(0, WHY_EPOCH)],
            id="the engine outlives a new epoch",
        ),
        pytest.param(
            make_order(),
            make_pod(alive(), engine=EngineView(alive=False)),
            [StartEngine()],
            id="a dead engine is restarted beside its rank",
        ),
        pytest.param(
            make_order(),
            make_pod(alive(), engine=EngineView(alive=False, start_not_before=NOW + 1)),
            [],
            id="an engine that died young waits",
        ),
        pytest.param(
            make_order(),
            make_pod(alive(), engine=EngineView(alive=False, gives_up_on=(3, 0))),
            [],
            id="an engine that refuses its configuration is not asked again",
        ),
        pytest.param(
            make_order(generation=1),
            make_pod(alive(generation=1), engine=EngineView(alive=False, gives_up_on=(3, 0))),
            [StartEngine()],
            id="a later generation asks it again",
        ),
        pytest.param(DRAIN, make_pod(alive()), [DrainRank(0)], id="draining asks the rank"),
        pytest.param(DRAIN, make_pod(alive(asked=NOW - 599)), [], id="a draining rank is given its time"),
        pytest.param(
            DRAIN,
            make_pod(alive(asked=NOW - 600)),
            [KillRank(0, "it has not drained within 600 s")],
            id="a rank that does not drain is killed",
        ),
        pytest.param(DRAIN, make_pod(), [], id="a drained pod starts nothing"),
        pytest.param(DRAIN, make_pod(dead(2)), [], id="a drained pod starts nothing in a new epoch either"),
        pytest.param(
            DRAIN, make_pod(alive(2)), [KillRank(0, WHY_EPOCH)], id="what is of an older epoch has nothing to drain"
        ),
        pytest.param(
            DRAIN, make_pod(dead(), engine=EngineView(alive=True)), [], id="a drained pod keeps launcher and engine"
        ),
        pytest.param(DRAIN, make_pod(dead(), engine=EngineView(alive=False)), [], id="a drained pod needs no engine"),
        pytest.param(
            DONE, make_pod(alive(), engine=EngineView(alive=True)), [DrainRank(0)], id="done: first the ranks"
        ),
        pytest.param(
            DONE,
            make_pod(alive(asked=NOW - DONE_GRACE_SECONDS)),
            [KillRank(0, "it has not drained within 10 s")],
            id="done: a rank that stays is killed soon",
        ),
        pytest.param(DONE, make_pod(dead(), engine=EngineView(alive=True)), [KillEngine()], id="done: then the engine"),
        pytest.param(DONE, make_pod(dead(), engine=EngineView(alive=False)), [Leave()], id="done: then the launcher"),
        pytest.param(DONE, make_pod(), [Leave()], id="done: a pod that never ran leaves"),
        pytest.param(
            make_order(), make_pod(alive(), terminating=True), [DrainRank(0)], id="SIGTERM outweighs the order to run"
        ),
        pytest.param(None, make_pod(terminating=True), [Leave()], id="SIGTERM needs no order"),
        pytest.param(
            make_order(),
            make_pod(alive(asked=NOW - TERMINATION_GRACE_SECONDS), terminating=True),
            [KillRank(0, "it has not drained within 25 s")],
            id="SIGTERM: the time to drain is bounded",
        ),
    ],
)
def test_plan(order: PodOrder | None, pod: PodView, expected: list[Step]) -> None:
    assert plan(order, pod, NOW) == expected


def apply(step: Step, pod: PodView, order: PodOrder, now: float) -> PodView:
    """What the world looks like after `step` and the exits it causes; a drained rank leaves at once."""
    ranks = {view.rank: view for view in pod.ranks}
    engine = pod.engine
    match step:
        case StartRank(rank):
            ranks[rank] = RankView(rank, order.epoch, order.generation, alive=True)
        case DrainRank(rank) | KillRank(rank, _):
            ranks[rank] = RankView(rank, ranks[rank].epoch, ranks[rank].generation, alive=False)
        case StartEngine():
            engine = EngineView(alive=True)
        case KillEngine():
            engine = EngineView(alive=False)
    return PodView(pod.num_ranks, pod.drain_seconds, tuple(ranks[rank] for rank in sorted(ranks)), engine)


def lives() -> st.SearchStrategy[dict[int, RankView]]:
    views = st.builds(
        RankView,
        rank=st.just(0),
        epoch=st.integers(1, 4),
        generation=st.integers(0, 2),
        alive=st.booleans(),
    )
    return st.dictionaries(st.integers(0, 2), views)


@given(
    before=lives(),
    engine=st.none() | st.builds(EngineView, alive=st.booleans()),
    order=st.builds(
        make_order, epoch=st.integers(3, 4), generation=st.integers(0, 2), phase=st.sampled_from(list(PodPhase))
    ),
)
def test_every_order_is_reached_and_then_nothing_is_left_to_do(
    before: dict[int, RankView], engine: EngineView | None, order: PodOrder
) -> None:
    wanted = (order.epoch, order.generation)
    ranks = tuple(
        RankView(rank, view.epoch, view.generation, view.alive)
        for rank, view in sorted(before.items())
        if (view.epoch, view.generation) <= wanted
    )
    pod = PodView(3, 600.0, ranks, engine)
    died_under_this_order = {view.rank for view in ranks if not view.alive and (view.epoch, view.generation) == wanted}
    for _ in range(4):
        for step in plan(order, pod, NOW):
            pod = apply(step, pod, order, NOW)
    running = {view.rank for view in pod.ranks if view.alive}
    if order.phase is PodPhase.RUN:
        assert running == {0, 1, 2} - died_under_this_order
        assert all((view.epoch, view.generation) == wanted for view in pod.ranks)
        assert pod.engine is None or pod.engine.alive
    else:
        assert not running
    left = plan(order, pod, NOW)
    assert left == ([Leave()] if order.phase is PodPhase.DONE else [])
