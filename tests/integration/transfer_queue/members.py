"""The members of a job beside `model.Model`, under hypothesis: one control Redis on a lossy line, two units.

For `producers` and `machine`, which add the rules. After every rule each row must be in the same state on both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from rljob_api.names import Epoch, Lineage, Role, WeightVersion
from rljob_api.spec.rollout import GroupOrder
from rljob_api.spec.training import ClaimPolicy
from rljob_api.wire.identity import Endpoints, Incarnation, WeightId
from rljob_api.wire.observation import ServerState
from rljob_workers.transfer_queue.admin import QueueAdmin, QueueAdminTiming
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.types import Batch, ForwardPolicy, QueueShape, Task, TaskKind, Ticket
from tests.integration.transfer_queue.control_keys import Control
from tests.integration.transfer_queue.lossy import LossyLine
from tests.integration.transfer_queue.model import Model, Place, Row
from tests.integration.transfer_queue.proof import breaches
from tests.integration.transfer_queue.servers import Servers
from tests.integration.transfer_queue.world import make_incarnation

FIFO = Task("score", TaskKind.FORWARD, ("tokens",), ("scores",))
GROUP = Task("rank", TaskKind.FORWARD, ("rewards", "scores"), ("ranks",), ClaimPolicy.GROUP)
PARTITION = Task("whiten", TaskKind.FORWARD, ("rewards", "scores"), ("whites", "returns"), ForwardPolicy.PARTITION)
TRAIN = Task("train", TaskKind.TRAINING, ("tokens", "scores", "ranks"))
CRITIC = Task("critic", TaskKind.TRAINING, ("tokens", "ranks"), publishes=False)
SHAPE = QueueShape(
    batch_size=4,
    samples_per_prompt=2,
    max_staleness=1,
    num_rollouts=8,
    max_prompt_kills=9,
    max_attempts=1000,
    generated_fields=("tokens", "rewards"),
    tasks=(FIFO, GROUP, TRAIN),
)
INDEX = st.integers(0, 7)
T = TypeVar("T")


class Names:
    """In the place of `secrets.token_hex`: different every time, and the same in every replay of an example."""

    def begin_again(self) -> None:
        self._count = 0

    def __call__(self, num_bytes: int) -> str:
        self._count += 1
        return hashlib.sha256(b"%d" % self._count).hexdigest()[: 2 * num_bytes]


@dataclass
class Member:
    """One rank: its incarnation, its client, and what it has in work."""

    incarnation: Incarnation
    queue: TransferQueueClient
    tickets: list[Ticket]
    batches: list[tuple[Task, Batch]]


class Members(RuleBasedStateMachine):
    """Two producers, two consumers, one trainer, perhaps a critic, one coordinator."""

    def __init__(
        self,
        servers: Servers,
        line: LossyLine,
        names: Names,
        dealing: ClaimPolicy,
        more: Sequence[Task] = (),
        order: GroupOrder = GroupOrder.BOUND,
    ) -> None:
        """`more` tasks than those of `SHAPE`; all that they write is trained on."""
        super().__init__()
        self.forward = (FIFO, GROUP, *(task for task in more if task.kind is TaskKind.FORWARD))
        needs = [field for task in self.forward for field in task.writes]
        self.train = replace(TRAIN, policy=dealing, needs=("tokens", *needs))
        self.training = (self.train, *(task for task in more if task.kind is TaskKind.TRAINING))
        self.shape = replace(SHAPE, tasks=(*self.forward, *self.training), order=order)
        names.begin_again()
        self.servers, self.line = servers, line
        servers.wipe()
        line.losses = 0
        self.control_redis = servers.control.admin()
        endpoints = servers.endpoints
        self.endpoints: Endpoints = endpoints.model_copy(update={"control_redis": line.url})
        self.model = Model(self.shape)
        self.admin = QueueAdmin(self.endpoints, self.shape, timing=QueueAdminTiming(unlisted_seconds=0))
        self.epoch = self.calls = self.steps = self.struck_at = 0
        self.trained: dict[str, dict[int, list[list[Row]]]] = {task.name: {} for task in self.training}
        """Task -> batches of the partition that it trains: the rows of each rank."""
        self.over: set[str] = set()
        """Leases whose time is over, and that no claim has met yet."""
        self.places: dict[int, Place] = {}
        """Ticket -> the place that it is for now."""
        self.zombies: list[Member] = []
        self.members: list[Member] = []

    def teardown(self) -> None:
        try:
            self.line.losses = 0
            while (swept := self.admin.sweeper.sweep()).chunks or swept.orphans:
                pass
            assert self.admin.check() == []
            assert breaches(self.servers, self.shape) == []
        finally:
            self.control_redis.close()
            self.admin.close()
            for member in [*self.members, *self.zombies]:
                member.queue.close()

    # --- members -----------------------------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        assert self.admin.open_server(0) is ServerState.OPEN
        self.next_epoch()

    def next_epoch(self) -> None:
        self.epoch += 1
        self.over.clear()
        self.places.clear()
        for batches in self.trained.values():
            batches.clear()
        self.zombies += self.members
        self.model.restore()
        point = self.admin.raise_epoch(Epoch(self.epoch), f"d{self.epoch}", "a rule", None)
        assert point.version == self.model.recorded
        retained = sum(group.state == "put" for group in self.model.groups.values())
        assert point.kept_groups == retained
        roles = (Role.ROLLOUT, Role.ROLLOUT, Role.ACTOR_FWD, Role.ACTOR_FWD, Role.ACTOR)
        self.members = [self.new_member(role, place) for place, role in enumerate(roles)]

    def new_member(self, role: Role, replica: int) -> Member:
        incarnation = make_incarnation(role, self.epoch, replica)
        self.admin.begin_incarnation(incarnation)
        return Member(incarnation, TransferQueueClient(self.endpoints, self.shape, incarnation), [], [])

    @property
    def trainer(self) -> Member:
        return self.members[4]

    def held_weight(self, version: int) -> WeightId:
        return WeightId(lineage=Lineage(self.epoch), version=WeightVersion(max(version, 0)))

    # --- what must agree ---------------------------------------------------------------------------------------------

    @invariant()
    def every_row_is_where_the_model_has_it(self) -> None:
        self.steps += 1
        control = Control(self.control_redis, self.shape)
        for task in self.shape.tasks:
            found: dict[str, set[Row]] = {letter: set() for letter in ("ready", "u", "r", "c", "d")}
            for r in control.partitions:
                found["ready"] |= {(r, row) for row in control.listed(r, task)}
                for row, letter in enumerate(control.string(f"p:{r}:s:{task.name}").decode()):
                    found[letter].add((r, row))
            assert found["ready"] == self.model.ready(task), task.name
            assert found["r"] == self.model.complete(task), task.name
            assert found["c"] == set(self.model.held[task.name]), task.name
            assert found["d"] == self.model.done[task.name], task.name

    def rows_of(self, batch: Batch) -> list[Row]:
        return [(int(batch.rollout_id), row) for row in batch.rows.tolist()]


def picked(things: list[T], indices: Sequence[int]) -> list[T]:
    """The things at `indices`, counted around, each once."""
    return [things[index] for index in sorted({index % len(things) for index in indices})] if things else []
