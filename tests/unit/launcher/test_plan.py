"""What a launcher does next, row by row; then that every order is reached, whatever ran before."""

from dataclasses import replace

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
    *ranks: RankView,
    engine: EngineView | None = None,
    engines: tuple[EngineView, ...] = (),
    terminating: bool = False,
    num_ranks: int = 1,
) -> PodView:
    engines = engines if engine is None else (engine,)
    return PodView(num_ranks, drain_seconds=600.0, ranks=ranks, engines=engines, terminating=terminating)


def alive(
    epoch: int = 3, generation: int = 0, *, asked: float | None = None, killed: bool = False, rank: int = 0
) -> RankView:
    return RankView(rank, epoch, generation, alive=True, drain_asked_at=asked, killed=killed)


def dead(epoch: int = 3, generation: int = 0, rank: int = 0) -> RankView:
    return RankView(rank, epoch, generation, alive=False)


def stopped(seconds: float) -> RankView:
    return replace(alive(), stopped_seconds=seconds)


KILLED_FOR_EPOCH_4 = [KillRank(0, "it is of epoch 3, generation 0; the order is epoch 4, generation 0")]
RUNS, IS_DEAD = EngineView(0, alive=True), EngineView(0, alive=False)
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
            make_pod(engine=IS_DEAD),
            [StartEngine(0), StartRank(0)],
            id="the engine is started beside the rank",
        ),
        pytest.param(make_order(), make_pod(alive()), [], id="what runs as ordered is left alone"),
        pytest.param(make_order(), make_pod(dead()), [], id="a rank that died waits to be told"),
        pytest.param(make_order(), make_pod(stopped(14.9)), [], id="a rank that is stopped may be continued"),
        pytest.param(
            make_order(),
            make_pod(stopped(15.0)),
            [KillRank(0, "it was stopped (SIGSTOP) for 15 s")],
            id="but not for ever",
        ),
        pytest.param(make_order(epoch=4), make_pod(stopped(0.0)), KILLED_FOR_EPOCH_4, id="an epoch waits for none"),
        pytest.param(make_order(epoch=4), make_pod(stopped(99.0)), KILLED_FOR_EPOCH_4, id="and kills it once"),
        pytest.param(DRAIN, make_pod(stopped(99.0)), [DrainRank(0)], id="one that drains has its time"),
        pytest.param(
            DONE,
            make_pod(stopped(0.0)),
            [KillRank(0, "it is stopped (SIGSTOP), and the job is done"), DrainRank(0)],
            id="of a job that is done it is killed at once",
        ),
        pytest.param(
            DONE,
            make_pod(replace(stopped(1.0), killed=True, drain_asked_at=NOW - 1)),
            [],
            id="and once",
        ),
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
            make_pod(alive(2), engine=RUNS),
            [KillRank(0, WHY_EPOCH)],
            id="the engine outlives a new epoch",
        ),
        pytest.param(
            make_order(),
            make_pod(alive(), engine=IS_DEAD),
            [StartEngine(0)],
            id="a dead engine is restarted beside its rank",
        ),
        pytest.param(
            make_order(),
            make_pod(alive(), engine=EngineView(0, alive=False, start_not_before=NOW + 1)),
            [],
            id="an engine that died young waits",
        ),
        pytest.param(
            make_order(),
            make_pod(alive(), engine=EngineView(0, alive=False, gives_up_on=(3, 0))),
            [],
            id="an engine that refuses its configuration is not asked again",
        ),
        pytest.param(
            make_order(generation=1),
            make_pod(alive(generation=1), engine=EngineView(0, alive=False, gives_up_on=(3, 0))),
            [StartEngine(0)],
            id="a later generation asks it again",
        ),
        pytest.param(
            make_order(),
            make_pod(
                alive(),
                dead(rank=1),
                num_ranks=4,
                engines=(
                    EngineView(0, alive=True),
                    EngineView(1, alive=False),
                    EngineView(2, alive=False, start_not_before=NOW + 1),
                    EngineView(3, alive=False, gives_up_on=(3, 0)),
                ),
            ),
            [StartEngine(1), StartRank(2), StartRank(3)],
            id="each engine and each rank of several goes its own way",
        ),
        pytest.param(
            make_order(4),
            make_pod(
                alive(3),
                alive(3, rank=1),
                num_ranks=2,
                engines=(EngineView(0, alive=True), EngineView(1, alive=False)),
            ),
            [
                KillRank(0, "it is of epoch 3, generation 0; the order is epoch 4, generation 0"),
                KillRank(1, "it is of epoch 3, generation 0; the order is epoch 4, generation 0"),
                StartEngine(1),
            ],
            id="all ranks leave an epoch, and the engines outlive it",
        ),
        pytest.param(
            DONE,
            make_pod(dead(), dead(rank=1), alive(rank=2), num_ranks=3, engines=(EngineView(0, alive=True),) * 3),
            [DrainRank(2)],
            id="done: engines wait for the last rank",
        ),
        pytest.param(
            DONE,
            make_pod(
                dead(),
                num_ranks=3,
                engines=(EngineView(0, alive=True), EngineView(1, alive=False), EngineView(2, alive=True)),
            ),
            [KillEngine(0), KillEngine(2)],
            id="done: then all engines that run",
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
        pytest.param(DRAIN, make_pod(dead(), engine=RUNS), [], id="a drained pod keeps launcher and engine"),
        pytest.param(DRAIN, make_pod(dead(), engine=IS_DEAD), [], id="a drained pod needs no engine"),
        pytest.param(DONE, make_pod(alive(), engine=RUNS), [DrainRank(0)], id="done: first the ranks"),
        pytest.param(
            DONE,
            make_pod(alive(asked=NOW - DONE_GRACE_SECONDS)),
            [KillRank(0, "it has not drained within 10 s")],
            id="done: a rank that stays is killed soon",
        ),
        pytest.param(DONE, make_pod(dead(), engine=RUNS), [KillEngine(0)], id="done: then the engine"),
        pytest.param(DONE, make_pod(dead(), engine=IS_DEAD), [Leave()], id="done: then the launcher"),
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
        pytest.param(
            make_order(),
            replace(make_pod(alive(asked=NOW - 2 * TERMINATION_GRACE_SECONDS), terminating=True), saves=True),
            [],
            id="SIGTERM: who saves has what the pod is given",
        ),
    ],
)
def test_plan(order: PodOrder | None, pod: PodView, expected: list[Step]) -> None:
    assert plan(order, pod, NOW) == expected


def apply(step: Step, pod: PodView, order: PodOrder, now: float) -> PodView:
    """What the world looks like after `step` and the exits it causes; a drained rank leaves at once."""
    ranks = {view.rank: view for view in pod.ranks}
    engines = {view.index: view for view in pod.engines}
    match step:
        case StartRank(rank):
            ranks[rank] = RankView(rank, order.epoch, order.generation, alive=True)
        case DrainRank(rank) | KillRank(rank, _):
            ranks[rank] = RankView(rank, ranks[rank].epoch, ranks[rank].generation, alive=False)
        case StartEngine(index):
            engines[index] = EngineView(index, alive=True)
        case KillEngine(index):
            engines[index] = EngineView(index, alive=False)
    ranks_then = tuple(ranks[rank] for rank in sorted(ranks))
    return PodView(pod.num_ranks, pod.drain_seconds, ranks_then, tuple(engines[index] for index in sorted(engines)))


def incarnations() -> st.SearchStrategy[dict[int, RankView]]:
    views = st.builds(
        RankView,
        rank=st.just(0),
        epoch=st.integers(1, 4),
        generation=st.integers(0, 2),
        alive=st.booleans(),
    )
    return st.dictionaries(st.integers(0, 2), views)


@given(
    before=incarnations(),
    engines=st.lists(st.booleans(), max_size=3).map(
        lambda alive: tuple(EngineView(index, one) for index, one in enumerate(alive))
    ),
    order=st.builds(
        make_order, epoch=st.integers(3, 4), generation=st.integers(0, 2), phase=st.sampled_from(list(PodPhase))
    ),
)
def test_every_order_is_reached_and_then_nothing_is_left_to_do(
    before: dict[int, RankView], engines: tuple[EngineView, ...], order: PodOrder
) -> None:
    wanted = (order.epoch, order.generation)
    ranks = tuple(
        RankView(rank, view.epoch, view.generation, view.alive)
        for rank, view in sorted(before.items())
        if (view.epoch, view.generation) <= wanted
    )
    pod = PodView(3, 600.0, ranks, engines)
    died_under_this_order = {view.rank for view in ranks if not view.alive and (view.epoch, view.generation) == wanted}
    for _ in range(4):
        for step in plan(order, pod, NOW):
            pod = apply(step, pod, order, NOW)
    running = {view.rank for view in pod.ranks if view.alive}
    if order.phase is PodPhase.RUN:
        assert running == {0, 1, 2} - died_under_this_order
        assert all((view.epoch, view.generation) == wanted for view in pod.ranks)
        assert len(pod.engines) == len(engines)
        assert all(engine.alive for engine in pod.engines)
    else:
        assert not running
    left = plan(order, pod, NOW)
    assert left == ([Leave()] if order.phase is PodPhase.DONE else [])
