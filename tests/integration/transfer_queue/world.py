"""A pretended job on the real queue: replicas, forward roles, a trainer and a coordinator in one process.

Nothing is computed: a token is the number of the weight that made it, a log-prob likewise, an advantage is a sum over
the rewards and log-probs of its group. So the trainer can check by the bytes whether they are what was promised.
`World.act` does one random thing; `History` says what was broken.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import torch

from rljob_api.names import Epoch, Lineage, Role, RolloutId, WeightVersion
from rljob_api.spec.rollout import GroupOrder
from rljob_api.spec.training import ClaimPolicy
from rljob_api.wire.checkpoints import CheckpointRecord
from rljob_api.wire.epochs import RestorePoint
from rljob_api.wire.identity import Incarnation, RankKey, WeightId
from rljob_api.wire.observation import ServerState
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.admin import InWork, QueueAdmin, QueueAdminTiming
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.errors import Fenced, Incomplete, LeaseLost, TicketLost
from rljob_workers.transfer_queue.pass_rates import UNSCORED, GroupScore
from rljob_workers.transfer_queue.types import (
    Batch,
    GroupPlace,
    GroupRows,
    GroupSoFar,
    QueueShape,
    Task,
    TaskKind,
    Ticket,
)
from tests.integration.transfer_queue.control_keys import Control
from tests.integration.transfer_queue.lessons import Lessons
from tests.integration.transfer_queue.proof import breaches
from tests.integration.transfer_queue.servers import Servers

TOKENS_PER_SAMPLE = 2
LOG_PROB_FACTOR = 4096.0
GENERATED = ("tokens", "rewards")
LOG_PROBS = Task("actor_log_probs", TaskKind.FORWARD, ("tokens",), ("log_probs",))
REFERENCE = Task("ref_log_probs", TaskKind.FORWARD, ("tokens",), ("ref_log_probs",))
ADVANTAGES = Task("advantages", TaskKind.FORWARD, ("rewards", "log_probs"), ("advantages",), ClaimPolicy.GROUP)
TRAIN = Task("actor_train", TaskKind.TRAINING, ("tokens", "rewards", "log_probs", "ref_log_probs", "advantages"))
CRITIC = Task("critic_train", TaskKind.TRAINING, ("tokens", "rewards", "advantages"), publishes=False)


def make_shape(*, staleness: int = 1, rollouts: int = 6, batch: int = 2, samples: int = 2, **other: int) -> QueueShape:
    """`critic=1`: with a second training task."""
    training = (TRAIN, CRITIC) if other.get("critic") else (TRAIN,)
    return QueueShape(
        batch_size=batch,
        samples_per_prompt=samples,
        max_staleness=staleness,
        num_rollouts=rollouts,
        max_prompt_kills=other.get("kills", 2),
        max_attempts=other.get("attempts", 50),
        generated_fields=GENERATED,
        tasks=(
            LOG_PROBS,
            REFERENCE,
            ADVANTAGES,
            *(replace(task, rows_per_step=other.get("step_rows")) for task in training),
        ),
        has_partials=True,
    )


def make_incarnation(role: Role, epoch: int, replica: int = 0) -> Incarnation:
    return Incarnation(
        key=RankKey(role=role, replica=replica), epoch=Epoch(epoch), generation=0, id=secrets.token_hex(6)
    )


SAVED_SHARE = 0.3
"""Of the turns in which samples grow."""
PASS_REWARD = 500
REFUSED = GroupScore(2, 1, 700.0)


def _so_far(ticket: Ticket, samples: list[list[tuple[WeightId, int]]]) -> GroupSoFar:
    made = [[weight for weight, _ in tokens] for tokens in samples if tokens]
    data = [[(weight.lineage, weight.version, number) for weight, number in tokens] for tokens in samples]
    return GroupSoFar(
        ticket,
        json.dumps(data).encode(),
        [min(row, key=lambda weight: weight.version) for row in made],
        [max(row, key=lambda weight: weight.version) for row in made],
    )


@dataclass
class History:
    """What was trained, and every breach of the contract."""

    broken: list[str] = field(default_factory=list)
    trained: list[tuple[int, str, int, int]] = field(default_factory=list)
    """(epoch, task, rollout, row)"""
    faults: Counter[str] = field(default_factory=Counter)

    def surviving(self) -> Counter[tuple[str, int, int]]:
        """A later epoch's record of step s voids earlier epochs' records of steps >= s."""
        first: dict[tuple[int, str], int] = {}
        for epoch, task, rollout, _ in self.trained:
            first[epoch, task] = min(first.get((epoch, task), rollout), rollout)
        return Counter(
            (task, rollout, row)
            for epoch, task, rollout, row in self.trained
            if not any(same == task and later > epoch and start <= rollout for (later, same), start in first.items())
        )


@dataclass
class Replica:
    incarnation: Incarnation
    queue: TransferQueueClient
    held: WeightId
    weight: int
    work: dict[int, tuple[Ticket, list[list[tuple[WeightId, int]]]]] = field(default_factory=dict)
    """Ticket id -> ticket and, per sample, (weight, its number) of every token."""
    in_vain: dict[int, Ticket] = field(default_factory=dict)
    """What it works on, and others got meanwhile."""


@dataclass
class Forward:
    """actor_fwd, reference or advantages: claims, and puts some time later."""

    incarnation: Incarnation
    queue: TransferQueueClient
    task: Task
    held: WeightId
    weight: int
    batch: Batch | None = None


@dataclass
class Trainer:
    incarnation: Incarnation
    ranks: list[TransferQueueClient]
    task: Task
    rollout: int
    batch_index: int = 0
    got: dict[int, Batch] = field(default_factory=dict)


class World:
    """One job from its first epoch to its last published rollout."""

    def __init__(self, servers: Servers, shape: QueueShape, random: Random, *, every_steps: int = 1) -> None:
        self.servers = servers
        self.shape = shape
        self.random = random
        self._saves = Random(random.getrandbits(32))
        """Of its own: who saves decides on nothing else."""
        self._lessons = Lessons(Random(random.getrandbits(32)), shape.batch_size)
        self._lessons_of: dict[int, Lessons] = {}
        """By version, as the table of its checkpoint has them."""
        self.history = History()
        self._every_steps = every_steps
        self._numbers = 0
        self.chain: dict[int, int] = {0: 0}
        """Version -> number of its weight, in the history that counts now."""
        self._saved: dict[int, dict[int, int]] = {0: {0: 0}}
        self._tables: dict[int, bytes] = {}
        self._record: CheckpointRecord | None = None
        self._due: list[int] = []
        self._rewards: dict[tuple[int, int], float] = {}
        """Sum of the rewards of each group that was last put."""
        self._steps: dict[tuple[str, int, int], int] = {}
        """Optimizer step of each row by task, whichever epoch trained it."""
        self._early: set[int] = set()
        """Prompts of this epoch that were refused with tokens of the newest weights: their rollout was not open yet."""
        self._late: set[int] = set()
        """Those that were refused with none but older tokens."""
        self.epoch = 0
        self.lineage = 0
        self.published = 0
        self.recorded = 0
        self.zombies: list[Replica] = []
        self.admin = self._new_admin()
        assert self.admin.open_server(0) is ServerState.OPEN
        self.replicas: list[Replica] = []
        self.forwards: list[Forward] = []
        self.trainers: list[Trainer] = []
        self.restart("first start")
        self.sync()

    def sync(self) -> None:
        """A control Redis that loses its tail knows what it knows now."""
        self._length = self.servers.sync_control()
        self._then = (self.recorded, self.epoch, self.published, self._lessons.at_this_moment())

    @property
    def finished(self) -> bool:
        return self.published == self.shape.num_rollouts and not self._due

    def close(self) -> None:
        self.admin.close()
        for client in self._clients():
            client.close()
        for zombie in self.zombies:
            zombie.queue.close()

    def proof(self) -> list[str]:
        """What is broken, after a sweep."""
        self.admin.sweeper.sweep()
        broken = self._lessons.differing(self.replicas[0].queue)
        return [*self.admin.check(), *breaches(self.servers, self.shape), *broken]

    def act(self) -> None:
        """One random piece of work of one random actor."""
        choice = self.random.random()
        if choice < 0.45:
            self._replica_acts(self.random.choice(self.replicas))
        elif choice < 0.75:
            self._forward_acts(self.random.choice(self.forwards))
        elif choice < 0.95:
            self._trainer_acts()
        else:
            self._coordinator_acts()

    # --- faults --------------------------------------------------------------------------------------------------

    def restart(self, reason: str, *, lost: bool = False) -> RestorePoint:
        """A global restart: the next epoch, everybody new."""
        self.history.faults["restart"] += 1
        self.epoch += 1
        record = self._record if lost else None
        tickets = self._tables.get(self.recorded) if lost else None
        decision = f"d{self.epoch}"
        point = self.admin.raise_epoch(Epoch(self.epoch), decision, reason, record, tickets=tickets)
        if point != self.admin.raise_epoch(Epoch(self.epoch), decision, reason, record, tickets=tickets):
            self.history.broken.append("the same decision got two answers")
        if point.version != self.recorded:
            self.history.broken.append(f"restored {point.version}, recorded was {self.recorded}")
        self.lineage, self.published = point.lineage, point.version
        self.chain = dict(self._saved[point.version])
        self._due.clear()
        self._early.clear()
        self._late.clear()
        self._everybody_new()
        return point

    def kill_replica(self, index: int) -> None:
        """SIGKILL: its tickets come back, its prompts are suspects; the dead may still try to speak."""
        self.history.faults["kill"] += 1
        dead = self.replicas[index]
        self.admin.suspect(dead.incarnation.id)
        self._count_set_aside()
        self.admin.end_incarnation(dead.incarnation.id)
        self.zombies.append(dead)
        self.replicas[index] = self._new_replica(index)

    def take_back(self, index: int) -> None:
        """A replica that does nothing, for all that is known: others get its tickets, and it goes on with them."""
        self.history.faults["taken"] += 1
        replica = self.replicas[index]
        taken = {name: ticket for name, (ticket, _) in replica.work.items() if not ticket.alone}
        if self.admin.take_back(replica.incarnation.id) > len(taken):
            self.history.broken.append("more was taken back than was held")
        replica.in_vain |= taken
        replica.work = {name: work for name, work in replica.work.items() if name not in taken}

    def kill_forward(self, index: int) -> None:
        self.history.faults["kill"] += 1
        dead = self.forwards[index]
        dead.queue.close()
        self.forwards[index] = self._new_forward(dead.task, dead.incarnation.key.role)

    def lose_unit(self, index: int) -> None:
        """A storage unit comes back empty; what only a restart can mend is restarted."""
        self.history.faults["unit"] += 1
        self.servers.empty_unit(index)
        if self.admin.upkeep.probe() != [index]:
            self.history.broken.append("the probe did not find the empty unit")
        loss = self.admin.upkeep.declare_lost(index)
        if loss.needs_global_restart:
            self.restart("rows in training were lost")

    def restart_control(self) -> None:
        """SIGKILL of the control Redis with everything on disk."""
        self.history.faults["control"] += 1
        self.servers.sync_control()
        self.servers.restart_control()
        if self.admin.open_server(self._seen_seq()) is not ServerState.OPEN:
            self.history.broken.append("nothing was lost, but the server was not opened")

    def lose_tail(self) -> None:
        """The append-only file ends where the last `sync` left it: what came after is lost."""
        self.history.faults["tail"] += 1
        before = self._server_seq()
        self.servers.restart_control(self._length)
        expected = ServerState.LOST if self._server_seq() < before else ServerState.OPEN
        if self.admin.open_server(self._seen_seq()) is not expected:
            self.history.broken.append(f"a server that was {expected} was not noticed")
        elif expected is ServerState.LOST:
            recorded, epoch, published, self._lessons = self._then
            record = self._record
            if record and recorded < self.recorded and (epoch < record.epoch or published < self.recorded):
                self._lessons = self._lessons_of[self.recorded]  # the table of the checkpoint takes its place
            self._lessons = self._lessons.at_this_moment()
            self.restart("the control state lost its tail", lost=True)

    # --- work ----------------------------------------------------------------------------------------------------

    def _replica_acts(self, replica: Replica) -> None:
        choice = self.random.random()
        if choice < 0.15:
            replica.held, replica.weight = self._current()
        elif choice < 0.35:
            limit = self.random.randint(1, 3)
            answer = replica.queue.claim_tickets(replica.held, limit, 0)
            if isinstance(answer, list):
                self._check_tickets(replica, answer)
                for ticket in answer:
                    replica.work[ticket.id] = (ticket, [[] for _ in range(self.shape.samples_per_prompt)])
                self._choose(replica, answer)
                self._go_on(replica, answer)
        elif choice < 0.75:
            for _, samples in replica.work.values():
                for tokens in samples:
                    if len(tokens) < TOKENS_PER_SAMPLE and self.random.random() < 0.7:
                        tokens.append((replica.held, replica.weight))
            # Jobs that save carry what they swap: a ticket's version bounds no token that was saved before it.
            saves = self.shape.order is GroupOrder.BOUND or self.shape.carries
            if saves and self._saves.random() < SAVED_SHARE:
                self._save(replica)
        elif choice < 0.95:
            self._put_finished(replica)
        elif replica.in_vain:
            self._put_in_vain(replica)
        elif replica.work:
            self._let_go(replica)

    def _choose(self, replica: Replica, tickets: list[Ticket]) -> None:
        if self.shape.has_curriculum:
            self.history.broken += self._lessons.choose(replica.queue, tickets)

    def _count_set_aside(self) -> None:
        aside = self.admin.set_aside()
        for one in aside:
            self._lessons.count(one.prompt_index)
        if aside:
            self.admin.forget_set_aside(len(aside))

    def _go_on(self, replica: Replica, tickets: list[Ticket]) -> None:
        """Behind what was saved of them; the trainer judges every token by its weight."""
        for number, data in replica.queue.partials.read(tickets).items():
            self.history.faults["carried"] += 1
            samples = json.loads(data)
            replica.work[number][1][:] = [
                [(WeightId(lineage=lineage, version=version), made) for lineage, version, made in tokens]
                for tokens in samples
            ]

    def _save(self, replica: Replica) -> None:
        """What there is of all groups; what others have got meanwhile is not taken."""
        replica.queue.partials.save([_so_far(*work) for work in replica.work.values() if any(work[1])])
        lost = [_so_far(ticket, [[(replica.held, replica.weight)]]) for ticket in replica.in_vain.values()]
        if any(replica.queue.partials.save(lost)):
            self.history.broken.append("what was taken back was saved by who had it")

    def _let_go(self, replica: Replica) -> None:
        ticket = replica.work.pop(self.random.choice(list(replica.work)))[0]
        choice = self.random.random()
        if choice < 0.4:
            replica.queue.return_tickets([ticket], killed=self.random.random() < 0.3)
            self._count_set_aside()
        elif choice < 0.7:
            self.admin.beats([InWork(replica.incarnation.id, [*replica.work, *replica.in_vain], [])])
            self.admin.beats([InWork(replica.incarnation.id, [*replica.work, *replica.in_vain], [])])
        else:
            is_attempt, is_refused = choice < 0.9, 0.8 <= choice < 0.9
            self._lessons.count(ticket.prompt_index, REFUSED if is_refused else UNSCORED)
            try:
                if is_refused:
                    drawn = replica.queue.refuse(ticket, REFUSED)
                elif is_attempt:
                    drawn = replica.queue.redraw(ticket, "a reward failed")
                else:
                    drawn = replica.queue.pass_over(ticket)
            except TicketLost:  # the next prompt is a suspect, which is for a replica that has nothing else
                if not replica.work and not replica.in_vain:
                    self.history.broken.append(f"{ticket} came back from a replica that has nothing else")
                return
            draw = (ticket.attempt + is_attempt, ticket.refused + is_refused)
            has_moved = (drawn.rollout_id, drawn.group) != (ticket.rollout_id, ticket.group)
            may_move = self.shape.order is GroupOrder.SWAP and drawn.rollout_id > ticket.rollout_id
            if (drawn.attempt, drawn.refused) != draw or (has_moved and not may_move):
                self.history.broken.append(f"{ticket} was redrawn as {drawn}")
            replica.work[drawn.id] = (drawn, [[] for _ in range(self.shape.samples_per_prompt)])
            self._choose(replica, [drawn])

    def _check_tickets(self, replica: Replica, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            last_open = self.published + self.shape.max_staleness
            is_free = self.shape.carries and ticket.prompt_index not in self._early
            rollout = min(ticket.rollout_id, last_open) if is_free else ticket.rollout_id
            if rollout - replica.held.version > self.shape.max_staleness:
                self.history.broken.append(f"{ticket} for a replica that holds {replica.held}")
            if ticket.alone and (replica.work or replica.in_vain or len(tickets) > 1):
                self.history.broken.append(f"{ticket} is not alone")
        if tickets and any(ticket.alone for ticket, _ in replica.work.values()):
            self.history.broken.append("a ticket was given beside one that is to be alone")

    def _put_finished(self, replica: Replica) -> None:
        done = [
            (ticket, samples)
            for ticket, samples in replica.work.values()
            if all(len(tokens) == TOKENS_PER_SAMPLE for tokens in samples)
        ]
        if not done:
            return
        groups = [self._group(ticket, samples) for ticket, samples in done]
        places = replica.queue.put_groups(groups)
        for (ticket, samples), group, place in zip(done, groups, places, strict=True):
            del replica.work[ticket.id]
            versions = [weight.version for tokens in samples for weight, _ in tokens]
            if place is not None:
                self._check_newest(ticket, place, max(versions))
                self._lessons.count(ticket.prompt_index, group.score)
                self._rewards[place] = float(group.columns["rewards"].values.sum())
                self.history.faults["swap"] += place.rollout_id < ticket.rollout_id
                self.history.faults["later"] += place.rollout_id > ticket.rollout_id
            elif self._must_fit(ticket, min(versions)):
                self.history.broken.append(f"{ticket} was refused without a reason")
            else:
                (self._late if max(versions) < self.published else self._early).add(ticket.prompt_index)
            if self.shape.order is GroupOrder.BOUND and place not in (None, (ticket.rollout_id, ticket.group)):
                self.history.broken.append(f"{ticket} went to {place}")

    def _must_fit(self, ticket: Ticket, oldest: int) -> bool:
        """Whether no place that the ticket may have is too late for its tokens."""
        if self.shape.carries:  # it may be for a rollout that is not open yet, or its tokens may all be old
            return oldest == self.published and self._may_take_an_open_place()
        return ticket.rollout_id - oldest <= self.shape.max_staleness

    def _may_take_an_open_place(self) -> bool:
        """Whether an open rollout has a group in work, or one that waits and is no suspect."""
        last = min(self.published + self.shape.max_staleness, self.shape.num_rollouts - 1)
        with self.servers.control.admin() as admin:
            control = Control(admin, self.shape)
            suspects = {int(prompt) for prompt, deaths in control.hash("q:kills").items() if int(deaths) >= 2}
            records = [record for r in range(self.published, last + 1) for record in control.groups(r).values()]
        return any(state == b"i" or (state == b"w" and prompt not in suspects) for state, _, prompt, *_ in records)

    def _check_newest(self, ticket: Ticket, place: GroupPlace, newest: int) -> None:
        """Whether there is a token to learn from; else it was refused before, and its rollout is open."""
        first = place.rollout_id - self.shape.max_staleness
        if newest < first and (first > self.published or ticket.prompt_index not in self._late):
            self.history.broken.append(f"{ticket} went to {place} with no token of version {first} or newer")

    def _put_in_vain(self, replica: Replica) -> None:
        _, ticket = replica.in_vain.popitem()
        tokens = [(replica.held, replica.weight)] * TOKENS_PER_SAMPLE
        group = self._group(ticket, [tokens for _ in range(self.shape.samples_per_prompt)])
        if replica.queue.put_groups([group]) != [None]:
            self.history.broken.append(f"{ticket} was taken back, and its group was taken")

    def _group(self, ticket: Ticket, samples: list[list[tuple[WeightId, int]]]) -> GroupRows:
        numbers = [torch.tensor([number for _, number in tokens], dtype=torch.int32) for tokens in samples]
        rewards = torch.tensor([self.random.randint(0, 1000) for _ in samples], dtype=torch.float32)
        weights = [[weight for weight, _ in tokens] for tokens in samples]
        return GroupRows(
            ticket,
            {"tokens": Jagged.from_rows(numbers), "rewards": Jagged.scalars(rewards)},
            [min(row, key=lambda weight: weight.version) for row in weights],
            [max(row, key=lambda weight: weight.version) for row in weights],
            score=GroupScore.of(rewards.tolist(), PASS_REWARD),
        )

    def _forward_acts(self, forward: Forward) -> None:
        if forward.batch is None:
            self._forward_claims(forward)
        elif self.random.random() < 0.1:
            forward.queue.release(forward.batch)
            forward.batch = None
        else:
            self._forward_puts(forward, forward.batch)
            forward.batch = None

    def _forward_claims(self, forward: Forward) -> None:
        if forward.task is LOG_PROBS:
            forward.held, forward.weight = self._current()
            partitions = range(forward.held.version, min(forward.held.version + 1, self.shape.num_rollouts))
        else:
            partitions = range(self.shape.num_rollouts)
        answer = forward.queue.claim(forward.task.name, partitions, self.random.randint(1, 5), timeout=0)
        forward.batch = answer if isinstance(answer, Batch) else None

    def _forward_puts(self, forward: Forward, batch: Batch) -> None:
        weight = forward.held if forward.task is LOG_PROBS else None
        if forward.task is ADVANTAGES:
            log_probs = torch.stack([row[0] for row in batch.columns["log_probs"].rows()])
            scores = batch.columns["rewards"].values + LOG_PROB_FACTOR * log_probs
            sums = scores.view(-1, self.shape.samples_per_prompt).sum(1)
            column = Jagged.scalars(sums.repeat_interleave(self.shape.samples_per_prompt))
        else:
            tokens = batch.columns["tokens"]
            number = forward.weight if forward.task is LOG_PROBS else 0
            column = Jagged.from_lengths(torch.full(tokens.values.shape, float(number)), tokens.lengths)
        try:
            forward.queue.put(batch, {forward.task.writes[0]: column}, weight=weight)
        except LeaseLost:
            self.history.faults["lease lost"] += 1

    def _trainer_acts(self) -> None:
        trainer, num_batches = self.random.choice(self.trainers), 2
        if trainer.rollout < self.shape.num_rollouts and trainer.batch_index < num_batches:
            self._trainer_claims(trainer, self.shape.rows_per_partition // num_batches)
            if len(trainer.got) == len(trainer.ranks):
                self._train_batch(trainer)
        elif trainer.rollout < self.shape.num_rollouts and trainer.task.publishes:
            self._publish(trainer)
        elif trainer.rollout < self.shape.num_rollouts:
            trainer.rollout, trainer.batch_index = trainer.rollout + 1, 0
        elif self._due:
            self._checkpoint()
        if self._due and self.random.random() < 0.3:
            self._checkpoint()

    def _trainer_claims(self, trainer: Trainer, num_rows: int) -> None:
        rank = self.random.randrange(len(trainer.ranks))
        answer = trainer.ranks[rank].claim_training(
            trainer.task.name,
            RolloutId(trainer.rollout),
            trainer.batch_index,
            num_rows,
            rank,
            len(trainer.ranks),
            timeout=0,
        )
        if isinstance(answer, Batch):
            earlier = trainer.got.get(rank)
            if earlier is not None and list(earlier.rows) != list(answer.rows):
                self.history.broken.append("the same question got other rows")
            trainer.got[rank] = answer

    def _train_batch(self, trainer: Trainer) -> None:
        for batch in trainer.got.values():
            for place, row in enumerate(batch.rows.tolist()):
                self._check_row(batch, place, trainer.rollout)
                self._check_step(trainer, row)
                self.history.trained.append((self.epoch, trainer.task.name, trainer.rollout, row))
        trainer.ranks[0].commit_training(trainer.task.name, RolloutId(trainer.rollout), [trainer.batch_index])
        trainer.got.clear()
        trainer.batch_index += 1

    def _check_step(self, trainer: Trainer, row: int) -> None:
        step = self._steps.setdefault((trainer.task.name, trainer.rollout, row), trainer.batch_index)
        if self.shape.steps and step != trainer.batch_index:
            self.history.broken.append(f"row {row} of train_{trainer.rollout} went from step {step} to another")

    def _check_row(self, batch: Batch, place: int, rollout: int) -> None:
        versions = {number: version for version, number in self.chain.items()}
        numbers = batch.columns["tokens"].row(place).tolist()
        where = f"epoch {self.epoch} train_{rollout} row {batch.rows[place]}"
        if any(number not in versions for number in numbers):
            self.history.broken.append(f"{where}: tokens of a lost history")
            return
        oldest = min(versions[number] for number in numbers)
        if rollout - oldest > self.shape.max_staleness and not self.shape.carries:
            self.history.broken.append(f"{where}: staleness {rollout - oldest}")
        if oldest != batch.oldest_versions[place]:
            self.history.broken.append(
                f"{where}: oldest version {oldest}, the queue says {batch.oldest_versions[place]}"
            )
        self._check_advantage(batch, place, where)
        if "log_probs" not in batch.columns:  # a critic reads neither
            return
        log_probs = batch.columns["log_probs"].row(place).tolist()
        if log_probs != [float(self.chain[rollout])] * len(numbers):
            self.history.broken.append(f"{where}: log-probs {log_probs}, version {rollout} is {self.chain[rollout]}")
        if any(batch.columns["ref_log_probs"].row(place).tolist()):
            self.history.broken.append(f"{where}: reference log-probs of another version")

    def _check_advantage(self, batch: Batch, place: int, where: str) -> None:
        num = self.shape.samples_per_prompt
        total = (
            self._rewards[batch.rollout_id, int(batch.groups[place])]
            + LOG_PROB_FACTOR * num * self.chain[batch.rollout_id]
        )
        if float(batch.columns["advantages"].row(place)) != total:
            self.history.broken.append(f"{where}: the advantage is of other rewards or log-probs")

    def _publish(self, trainer: Trainer) -> None:
        self._numbers += 1
        version = WeightVersion(trainer.rollout + 1)
        weight = WeightId(lineage=Lineage(self.lineage), version=version)
        call = f"p{self.epoch}-{version}"
        for _ in range(2):
            self.admin.publish(trainer.incarnation, weight, call)
        self.published = version
        self.chain = {known: number for known, number in self.chain.items() if known < version}
        self.chain[version] = self._numbers
        if version % self._every_steps == 0 or version == self.shape.num_rollouts:
            self._due.append(version)
            self._saved[version] = dict(self.chain)
            self._tables[version] = trainer.ranks[0].ticket_table()
            self._lessons_of[version] = self._lessons.at_this_moment()
        trainer.rollout, trainer.batch_index = trainer.rollout + 1, 0

    def _checkpoint(self) -> None:
        version = self._due[0]
        weight = WeightId(lineage=Lineage(self.lineage), version=WeightVersion(version))
        arguments = (self.trainers[0].incarnation, weight, f"{version}-e{self.epoch}", {"a": "b"})
        # A trainer that has committed the last batch of a rollout, and goes on next, is behind by its own count alone.
        behind = [one for one in self.trainers if one.rollout + one.batch_index // 2 < version]
        try:
            self._record = self.admin.record(*arguments, f"r{self.epoch}-{version}")
        except Incomplete:
            if not behind:
                self.history.broken.append(f"version {version} was not recorded, though all trainers are beyond it")
            return
        if behind:
            self.history.broken.append(f"version {version} was recorded, and {behind[0].task.name} is behind it")
        self._due.pop(0)
        self.recorded = version

    def _coordinator_acts(self) -> None:
        choice = self.random.random()
        if choice < 0.5:
            for replica in self.replicas:
                self.admin.beats([InWork(replica.incarnation.id, [*replica.work, *replica.in_vain], [])])
            for forward in self.forwards:
                leases = [forward.batch.lease] if forward.batch and forward.batch.lease else []
                self.admin.beats([InWork(forward.incarnation.id, [], leases)])
        elif choice < 0.8:
            self.admin.sweeper.sweep()
        elif self.zombies:
            self._zombie_speaks(self.random.choice(self.zombies))

    def _zombie_speaks(self, zombie: Replica) -> None:
        try:
            if zombie.work:
                ticket, samples = next(iter(zombie.work.values()))
                tokens = [(zombie.held, zombie.weight)] * TOKENS_PER_SAMPLE
                zombie.queue.put_groups([self._group(ticket, [tokens for _ in samples])])
            else:
                zombie.queue.claim_tickets(zombie.held, 1, 0)
        except Fenced:
            return
        self.history.broken.append("a zombie was heard")

    # --- who there is --------------------------------------------------------------------------------------------

    def _current(self) -> tuple[WeightId, int]:
        weight = WeightId(lineage=Lineage(self.lineage), version=WeightVersion(self.published))
        return weight, self.chain[self.published]

    def _new_admin(self) -> QueueAdmin:
        return QueueAdmin(self.servers.endpoints, self.shape, timing=QueueAdminTiming(unlisted_seconds=0))

    def _client(self, incarnation: Incarnation) -> TransferQueueClient:
        self.admin.begin_incarnation(incarnation)
        client = TransferQueueClient(self.servers.endpoints, self.shape, incarnation)
        repeat_some_calls(client, self.random, self.history)
        return client

    def _new_replica(self, index: int) -> Replica:
        incarnation = make_incarnation(Role.ROLLOUT, self.epoch, index)
        return Replica(incarnation, self._client(incarnation), *self._current())

    def _new_forward(self, task: Task, role: Role) -> Forward:
        incarnation = make_incarnation(role, self.epoch)
        return Forward(incarnation, self._client(incarnation), task, *self._current())

    def _everybody_new(self) -> None:
        for client in (*self._clients(), *(zombie.queue for zombie in self.zombies)):
            client.close()
        self.zombies = self.replicas[:1]
        self.replicas = [self._new_replica(index) for index in range(2)]
        roles = ((LOG_PROBS, Role.ACTOR_FWD), (REFERENCE, Role.REFERENCE), (ADVANTAGES, Role.ADVANTAGES))
        self.forwards = [self._new_forward(task, role) for task, role in roles]
        self.trainers = [self._new_trainer(place, task) for place, task in enumerate(self.shape.training_tasks)]

    def _new_trainer(self, place: int, task: Task) -> Trainer:
        """Its two ranks; no role of a critic's own is needed for that."""
        incarnations = [make_incarnation(Role.ACTOR, self.epoch, 2 * place + rank) for rank in range(2)]
        clients = [self._client(incarnation) for incarnation in incarnations]
        return Trainer(incarnations[0], clients, task, self.published)

    def _clients(self) -> list[TransferQueueClient]:
        replicas, forwards = ([actor.queue for actor in self.replicas], [actor.queue for actor in self.forwards])
        return [*replicas, *forwards, *(rank for trainer in self.trainers for rank in trainer.ranks)]

    def _server_seq(self) -> int:
        with self.servers.control.admin() as admin:
            return int(admin.hget("q:meta", "seq") or 0)

    def _seen_seq(self) -> int:
        return max(client.calls.seen_seq for client in self._clients())


def repeat_some_calls(client: TransferQueueClient, random: Random, history: History) -> None:
    """As if the reply of every fifth call had been lost: the call comes again and must get the first answer."""
    change = client.calls._control.change

    def twice(*args: Any, **kwargs: Any) -> list[Any]:
        first = change(*args, **kwargs)
        if random.random() < 0.2:
            again = change(*args, **kwargs)
            if again[1:] != first[1:]:
                history.broken.append(f"{args[0]} came twice and got {again[1:]!r} after {first[1:]!r}")
        return first

    client.calls._control.change = twice  # type: ignore[method-assign]


def describe(world: World) -> str:
    """For the message of a failed schedule."""
    return json.dumps({"epoch": world.epoch, "published": world.published, "faults": world.history.faults})
