"""Turns over HTTP: gangs of two roles begin each rollout together, and leave together, through restarts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace

import pytest
import torch

from rljob_api.names import Epoch, Role, RolloutId
from rljob_api.wire.epochs import PodOrder
from rljob_api.wire.turns import Turn, TurnAnswer, TurnRequest
from rljob_workers.dcs.errors import CoordinatorRefused, IncarnationOver
from rljob_workers.dcs.membership.coordinator_http import CoordinatorClient
from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.gangs.leading import leader_of_checkpoints
from rljob_workers.trainers.data_parallel import DataParallelGroup, GroupNotComplete, RankVote, SingleRank, agree
from rljob_workers.training.turns import SharedTurns, Turns
from tests.integration.dcs.world import PATIENCE_SECONDS, World, eventually

BOTH = [Role.ACTOR, Role.CRITIC]
GO, STOP = TurnAnswer(turn=Turn.GO), TurnAnswer(turn=Turn.STOP)


@dataclass
class Trainers:
    """The first ranks of both roles."""

    world: World
    epoch: int = 1
    actor: RankSession = field(init=False)
    critic: RankSession = field(init=False)

    def __post_init__(self) -> None:
        self.actor = self.world.rank(Role.ACTOR, epoch=self.epoch)
        self.critic = self.world.rank(Role.CRITIC, epoch=self.epoch)

    def ask(self, rank: RankSession, rollout: int, *, drains: bool = False, wait: float = 0.0) -> TurnAnswer:
        """Over a connection of its own: one is a thread's."""
        request = TurnRequest(incarnation=rank.incarnation, rollout=rollout, drains=drains, roles=BOTH)
        with closing(CoordinatorClient(self.world.endpoints)) as client:
            return client.ask("POST", f"/v1/turns?wait={wait}", request, TurnAnswer, deadline=patience())


def patience() -> float:
    return time.monotonic() + PATIENCE_SECONDS


@pytest.fixture
def trainers(critic_world: World) -> Trainers:
    critic_world.begin()
    return Trainers(critic_world)


def test_what_was_decided_is_answered_by_the_next_coordinator_too(trainers: Trainers) -> None:
    world = trainers.world
    assert trainers.ask(trainers.actor, 0) == TurnAnswer(turn=Turn.WAIT, waits_for=[Role.CRITIC])
    world.restart()
    assert trainers.ask(trainers.critic, 0) == GO, "the actor had come, and need not ask again"
    world.restart()
    assert trainers.ask(trainers.actor, 0) == GO
    assert trainers.ask(trainers.actor, 1, drains=True) == STOP
    world.restart()
    assert trainers.ask(trainers.critic, 0) == GO
    assert trainers.ask(trainers.critic, 1) == STOP


def test_one_that_waits_learns_at_once_that_the_other_has_come(trainers: Trainers) -> None:
    received: list[TurnAnswer] = []
    waiting = threading.Thread(target=lambda: received.append(trainers.ask(trainers.critic, 0, wait=30)))
    waiting.start()
    eventually(lambda: trainers.ask(trainers.actor, 0) == GO, "the critic to have come")
    waiting.join(PATIENCE_SECONDS)
    assert received == [GO]


def test_who_is_not_to_ask_is_refused(trainers: Trainers) -> None:
    world = trainers.world
    second, rollout = world.rank(Role.CRITIC, 1), world.rank(Role.ROLLOUT)
    for rank in (second, rollout):
        with pytest.raises(CoordinatorRefused, match="is not rank 0 of a role that trains"):
            trainers.ask(rank, 0)
    with pytest.raises(CoordinatorRefused, match="1 has no turn yet: train_0 comes first"):
        trainers.ask(trainers.actor, 1)


def test_a_new_epoch_begins_its_turns_again_and_refuses_those_of_before(trainers: Trainers) -> None:
    world = trainers.world
    trainers.ask(trainers.actor, 0)
    assert trainers.ask(trainers.critic, 0, drains=True) == STOP
    world.raise_epoch(2)
    world.order(2)
    with pytest.raises(IncarnationOver, match="epoch 2 is open"):
        trainers.ask(trainers.critic, 0)
    later = Trainers(world, epoch=2)
    assert later.ask(later.critic, 0) == TurnAnswer(turn=Turn.WAIT, waits_for=[Role.ACTOR])
    assert later.ask(later.actor, 0) == GO


# --- the client of a gang


class Meeting:
    """Where ranks that are threads meet."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.barrier = threading.Barrier(world)
        self.values: dict[int, torch.Tensor] = {}


class Threads(DataParallelGroup):
    """Ranks that are threads of one process."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank = rank
        self.world = meeting.world
        self._meeting = meeting

    def add_up(self, values: torch.Tensor, what: str) -> None:
        values.copy_(torch.stack(self._all(values)).sum(0))

    def broadcast(self, values: torch.Tensor, source: int, what: str) -> None:
        values.copy_(self._all(values)[source])

    def _all(self, values: torch.Tensor) -> list[torch.Tensor]:
        self._meeting.values[self.rank] = values.clone()
        self._meeting.barrier.wait(PATIENCE_SECONDS)
        found = [self._meeting.values[rank] for rank in range(self.world)]
        self._meeting.barrier.wait(PATIENCE_SECONDS)
        return found

    def part(self, ranks: object) -> DataParallelGroup:
        raise NotImplementedError

    def collective(self, what: str, passes: int = 1) -> AbstractContextManager[None]:
        raise NotImplementedError(what)

    def close(self) -> None:
        pass


@contextmanager
def turns_of(world: World, session: RankSession, group: DataParallelGroup) -> Iterator[Turns]:
    with closing(CoordinatorClient(world.endpoints)) as client:
        yield SharedTurns(session, group, client, BOTH)


def test_gangs_of_two_roles_leave_with_one_version_while_the_coordinator_is_replaced(trainers: Trainers) -> None:
    """A rank of the critic other than its first is ordered to drain in the middle."""
    world = trainers.world
    second = world.rank(Role.CRITIC, 1)
    meeting = Meeting(2)
    left: dict[str, int] = {}
    trained = threading.Event()
    drains = threading.Event()

    def run(session: RankSession, group: DataParallelGroup) -> None:
        with turns_of(world, session, group) as turns:
            rollout = 0
            while True:
                vote = RankVote(has_rows=False, drains=session is second and drains.is_set(), num_micro_batches=0)
                agreed = agree(group, vote, "who drains")
                turn = turns.take(RolloutId(rollout), drains=bool(agreed.draining))
                if turn is Turn.STOP:
                    left[str(session.incarnation.key)] = rollout
                    return
                rollout += turn is Turn.GO
                if rollout > 20:
                    trained.set()

    ranks = [
        (trainers.actor, SingleRank()),
        (trainers.critic, Threads(0, meeting)),
        (second, Threads(1, meeting)),
    ]
    running = [threading.Thread(target=run, args=each) for each in ranks]
    for thread in running:
        thread.start()
    assert trained.wait(PATIENCE_SECONDS)
    world.restart()
    drains.set()
    for thread in running:
        thread.join(PATIENCE_SECONDS)
    assert len(left) == 3
    assert len(set(left.values())) == 1


def test_a_role_that_waits_states_for_whom(trainers: Trainers) -> None:
    world = trainers.world
    with turns_of(world, trainers.actor, SingleRank()) as turns:
        assert turns.take(RolloutId(0), drains=False) is Turn.WAIT

        def waiting() -> str | None:
            trainers.actor.pulse(waiting="the critic's turn at train_0")
            (pod,) = (pod for pod in world.status().pods if pod.pod.role is Role.ACTOR)
            return pod.ranks[0].waiting

        turns.take(RolloutId(0), drains=False)
        assert eventually(waiting, "the beat") == "the critic's turn at train_0"


# --- who leads


def test_ranks_of_other_roles_receive_who_leads_once_it_has_registered(critic_world: World) -> None:
    critic_world.begin()
    critic = critic_world.rank(Role.CRITIC)
    found: list[str] = []
    asking = threading.Thread(
        target=lambda: found.append(leader_of_checkpoints(critic.context, critic, SingleRank())), daemon=True
    )
    asking.start()
    eventually(lambda: _busy_of_critic(critic_world), "the critic to wait")
    assert found == []
    assert _busy_of_critic(critic_world) == "the rendezvous: it waits for actor-0.0"
    actor = critic_world.rank(Role.ACTOR)
    asking.join(PATIENCE_SECONDS)
    assert found == [actor.incarnation.id]
    critic_world.restart()
    assert leader_of_checkpoints(critic.context, critic, SingleRank()) == actor.incarnation.id
    assert leader_of_checkpoints(actor.context, actor, SingleRank()) == actor.incarnation.id


def _busy_of_critic(world: World) -> str | None:
    (pod,) = (pod for pod in world.status().pods if str(pod.pod) == "critic-0")
    busy = pod.ranks[0].busy
    return None if busy is None else busy.what


def test_a_leader_of_an_earlier_epoch_is_none(critic_world: World) -> None:
    critic_world.begin()
    critic_world.rank(Role.ACTOR)
    before = critic_world.rank(Role.CRITIC)
    critic_world.raise_epoch(2)
    critic_world.order(2)
    with pytest.raises(IncarnationOver, match="epoch 2 is open"):
        leader_of_checkpoints(before.context, before, SingleRank())
    critic = critic_world.rank(Role.CRITIC, epoch=2)
    actor = critic_world.rank(Role.ACTOR, epoch=2)
    assert leader_of_checkpoints(critic.context, critic, SingleRank()) == actor.incarnation.id


def test_a_leader_whose_pod_has_begun_and_that_does_not_come_is_named(critic_world: World) -> None:
    critic_world.begin()
    critic = critic_world.rank(Role.CRITIC)
    hello = critic_world.register(Role.ACTOR)
    order = PodOrder(pod=hello.pod, epoch=Epoch(1))
    with closing(critic_world.launcher_client()) as launcher:
        launcher.register(hello)
        critic_world.poll(launcher, order)
    spec = critic.context.job.spec
    policy = spec.restart_policy.model_copy(update={"rendezvous_timeout_seconds": 1})
    manifest = critic.context.job.model_copy(update={"spec": spec.model_copy(update={"restart_policy": policy})})
    with pytest.raises(GroupNotComplete, match=r"actor-0\.0, which leads the checkpoints, did not come in 1 s"):
        leader_of_checkpoints(replace(critic.context, job=manifest), critic, SingleRank())
