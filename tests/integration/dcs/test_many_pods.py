"""The coordinator's work for one pod costs no more among thousands of pods than among a few."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from rljob_api.names import Epoch, Lineage, Role, Stream, WeightVersion
from rljob_api.wire.epochs import DesiredState, EpochRequest, PodOrder, PodPhase
from rljob_api.wire.failures import Failure, FailureKind
from rljob_api.wire.identity import Incarnation, PodKey, RankKey, WeightId
from rljob_api.wire.launchers import LauncherHello
from rljob_api.wire.observation import EventKind
from rljob_api.wire.ranks import Beat, RankHello, RankState, Rendezvous
from rljob_workers.dcs.coordinator.coordinator import Coordinator
from rljob_workers.dcs.coordinator.records import PODS, RANKS, RankEntry
from rljob_workers.dcs.coordinator.server_gate import ON_ONE_MACHINE
from rljob_workers.transfer_queue.admin import QueueAdminTiming
from tests.growth import processor_seconds
from tests.integration.dcs.world import context_here, job
from tests.integration.transfer_queue.servers import Servers

FEW, MANY = 100, 5000
MOST = 8.0
"""For one pod among fifty times as many: what looks at each of them needs far more."""
REPEATS = 10
HELD = WeightId(lineage=Lineage(1), version=WeightVersion(0))


def pod(number: int) -> PodKey:
    return PodKey(role=Role.ROLLOUT, replica=number)


def incarnation(number: int, generation: int = 0) -> Incarnation:
    key = RankKey(role=Role.ROLLOUT, replica=number, rank=0)
    return Incarnation(key=key, epoch=Epoch(1), generation=generation, id=f"{generation:04x}{number:08x}")


def hello(number: int, its_number: int = 0) -> LauncherHello:
    return LauncherHello(pod=pod(number), pod_uid=f"uid-{number}", launcher=f"{its_number:04x}{number:08x}", pid=1)


class Crowd:
    """A coordinator in this process with so many pods of the rollout, each with a launcher and a rank."""

    def __init__(self, servers: Servers, folder: Path, number: int) -> None:
        servers.wipe()
        self.number = number
        self.incarnations = count(1)
        context = context_here(servers.endpoints, job(), lambda: 1.0, QueueAdminTiming())
        self.context, self.admin = context, context.admin
        self.coordinator = Coordinator(context, folder, ON_ONE_MACHINE)
        self.coordinator.gate.check()
        self.coordinator.raise_epoch(EpochRequest(epoch=Epoch(1), decision_id="d1", reason="a test"))
        # One place more than pods: a role that is ready emits that, which is not for one pod.
        orders = [
            PodOrder(pod=pod(one), pod_uid=f"uid-{one}", epoch=Epoch(1), generation=0, phase=PodPhase.RUN)
            for one in range(number + 1)
        ]
        self.coordinator.order(DesiredState(epoch=Epoch(1), pods=orders, replicas={"rollout": number + 1}))
        ranks = [RankHello(incarnation=incarnation(one), launcher=hello(one).launcher, pid=1) for one in range(number)]
        changes = [PODS.put(str(pod(one)), hello(one)) for one in range(number)]
        changes += [RANKS.put(str(one.incarnation.key), RankEntry(hello=one)) for one in ranks]
        events = [
            context.event(EventKind.PUBLISHED if one % 2 else EventKind.RECORDED, Epoch(1), "")
            for one in range(2 * number)
        ]
        context.store.commit(changes, events)

    def another(self) -> int:
        """A pod of the middle, with an incarnation that it had not yet."""
        return self.number // 2 + next(self.incarnations) % 20


Act = Callable[[Crowd], object]


def launcher_comes(crowd: Crowd) -> None:
    number = crowd.another()
    crowd.coordinator.launchers.register(hello(number, next(crowd.incarnations)))


def launcher_polls(crowd: Crowd) -> None:
    launcher = hello(crowd.number // 3).launcher
    crowd.coordinator.launchers.pod_of(launcher)
    crowd.coordinator.launchers.is_news(launcher, None)
    crowd.coordinator.launchers.answer(launcher, None)


def rank_comes_and_polls(crowd: Crowd) -> None:
    """Each of these is between two of another pod."""
    launcher_comes_for(crowd, crowd.number // 4, next(crowd.incarnations))
    launcher_polls(crowd)
    crowd.coordinator.ranks.first_of(Role.ROLLOUT, 1, incarnation(crowd.number // 3).id)


def launcher_comes_for(crowd: Crowd, number: int, its_number: int) -> None:
    one = hello(number, its_number)
    crowd.coordinator.launchers.register(one)
    crowd.coordinator.register_rank(
        RankHello(incarnation=incarnation(number, its_number), launcher=one.launcher, pid=1)
    )


def rank_becomes_ready(crowd: Crowd) -> None:
    beat = Beat(incarnation=incarnation(crowd.number - 1 - next(crowd.incarnations)), state=RankState.READY, holds=HELD)
    crowd.coordinator.ranks.receive_beat(beat)
    crowd.coordinator.beats([beat])


def rank_dies(crowd: Crowd) -> None:
    died = incarnation(crowd.number - 1 - next(crowd.incarnations))
    failure = Failure(
        id=died.id,
        kind=FailureKind.RANK_EXITED,
        pod=died.key.pod,
        rank=0,
        epoch=died.epoch,
        generation=died.generation,
        incarnation=died.id,
        message="It died.",
        at=1.0,
    )
    crowd.coordinator.report_failure(failure)


def gang_meets(crowd: Crowd) -> None:
    own = incarnation(crowd.number // 3)
    offered = Rendezvous(group="g", epoch=Epoch(1), generation=0, address="a:1", incarnation=own.id)
    crowd.coordinator.rendezvous.offer(offered)
    crowd.coordinator.rendezvous.come("g", own.id)


def pod_asks_for_its_replica(crowd: Crowd) -> None:
    crowd.coordinator.epochs.replica_of(f"uid-{crowd.number - 1}")


def receiver_asks_for_weights(crowd: Crowd) -> None:
    crowd.coordinator.weights.newer(Stream.POLICY, HELD)
    crowd.coordinator.weights.published()


def reader_of_events_is_up_to_date(crowd: Crowd) -> None:
    store = crowd.coordinator.store
    store.events_after(store.last_event - 1)
    store.news(store.last_event - 1, ())


def reader_of_events_waits_for_others(crowd: Crowd) -> None:
    crowd.coordinator.store.news(0, (EventKind.PUBLISHED, EventKind.RECORDED, EventKind.EPOCH_OPENED))


@pytest.fixture(scope="module")
def crowds(shared_servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Crowd]]:
    """The small one first, the large one once that is done with: they share the servers."""
    made: dict[int, Crowd] = {}

    def crowd(number: int) -> Crowd:
        if number not in made:
            for other in made.values():
                other.admin.close()
            made.clear()
            made[number] = Crowd(shared_servers, tmp_path_factory.mktemp("crowd"), number)
        return made[number]

    yield crowd
    for one in made.values():
        one.admin.close()


ACTS: dict[str, Act] = {
    act.__name__: act
    for act in (
        launcher_comes,
        launcher_polls,
        rank_comes_and_polls,
        rank_becomes_ready,
        rank_dies,
        gang_meets,
        pod_asks_for_its_replica,
        receiver_asks_for_weights,
        reader_of_events_is_up_to_date,
        reader_of_events_waits_for_others,
    )
}


def cost(crowd: Crowd, act: Act) -> float:
    """The least of some: the first fills what is derived from all pods."""
    return min(processor_seconds(lambda: act(crowd)) for _ in range(REPEATS))


def test_one_pod_costs_no_more_among_many(crowds: Callable[[int], Crowd]) -> None:
    of_few = {name: cost(crowds(FEW), act) for name, act in ACTS.items()}
    of_many = {name: cost(crowds(MANY), act) for name, act in ACTS.items()}
    ratios = {name: of_many[name] / of_few[name] for name in ACTS}
    assert max(ratios.values()) < MOST, ratios
