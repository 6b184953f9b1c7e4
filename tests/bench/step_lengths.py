"""Mean length of the answers in each optimizer step of a rollout, and when its rows were there.

    python -m tests.bench.step_lengths --rollouts 8 --steps 4 --slices 4 --groups 64 --samples 8 --at-once 64

The real queue on real servers; only the engine and its clock are simulated. An answer takes a second for a thousand
tokens, lengths are log-normal (half below 1500 tokens, one in twenty above 10000), `--at-once` groups are generated at
a time, and a group is put when its longest answer ends. Two lines per step: rows taken as they become ready (releases
before 0.3.0), and rows of the step alone. `complete` is when the step's last slice could be claimed, as a share of the
rollout's time.
"""

from __future__ import annotations

import argparse
import heapq
import math
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch

from rljob_api.names import Epoch, Lineage, Role, RolloutId, WeightVersion
from rljob_api.wire.identity import Incarnation, RankKey, WeightId
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.admin import QueueAdmin
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.types import Batch, GroupRows, QueueShape, Task, TaskKind, Ticket
from tests.bench.queue.servers import RedisServers, Transport

MEDIAN_TOKENS, SIGMA = 1500, 1.16
TOKENS_PER_SECOND = 1000.0


@dataclass(frozen=True)
class Step:
    """An optimizer step of one rollout."""

    mean_length: float
    ready: float
    """When its last slice could be claimed, as a share of the rollout's time."""


def main() -> None:
    arguments = _arguments()
    for name, rows_per_step in (("as they become ready", None), ("of the step alone", _step_rows(arguments))):
        servers = RedisServers(Transport.UNIX, 1, None)
        try:
            rollouts = _rollouts(servers, arguments, rows_per_step)
        finally:
            servers.close()
        for number, figures in enumerate(zip(*rollouts, strict=True)):
            length, ready = _mean([step.mean_length for step in figures]), _mean([step.ready for step in figures])
            sys.stdout.write(f"rows {name:<20}  step {number}  mean length {length:6.0f}  complete {ready:4.0%}\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = {"rollouts": 8, "steps": 4, "slices": 4, "groups": 64, "samples": 8, "at-once": 64}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    if arguments.groups * arguments.samples % (arguments.steps * arguments.slices):
        parser.error("--steps times --slices does not divide --groups times --samples")
    return arguments


def _step_rows(arguments: argparse.Namespace) -> int:
    return int(arguments.groups * arguments.samples // arguments.steps)


def _rollouts(servers: RedisServers, arguments: argparse.Namespace, rows_per_step: int | None) -> list[list[Step]]:
    """Every rollout's steps; the servers are empty."""
    shape = QueueShape(
        batch_size=arguments.groups,
        samples_per_prompt=arguments.samples,
        max_staleness=0,
        num_rollouts=arguments.rollouts,
        max_prompt_kills=2,
        max_attempts=2,
        generated_fields=("lengths",),
        tasks=(Task("train", TaskKind.TRAINING, ("lengths",), rows_per_step=rows_per_step),),
    )
    admin = QueueAdmin(servers.endpoints, shape)
    admin.open_server(0)
    admin.raise_epoch(Epoch(1), "d1", "a bench", None)
    rollout, actor = (_incarnation(role) for role in (Role.ROLLOUT, Role.ACTOR))
    for incarnation in (rollout, actor):
        admin.begin_incarnation(incarnation)
    producer, trainer = (TransferQueueClient(servers.endpoints, shape, one) for one in (rollout, actor))
    done = []
    for number in range(arguments.rollouts):
        done.append(_one_rollout(arguments, producer, trainer, number))
        trainer.commit_training("train", RolloutId(number), range(arguments.steps * arguments.slices))
        admin.publish(actor, _weight(number + 1), f"p{number + 1}")
    for client in (admin, producer, trainer):
        client.close()
    return done


def _one_rollout(
    arguments: argparse.Namespace, producer: TransferQueueClient, trainer: TransferQueueClient, number: int
) -> list[Step]:
    """The same lengths with either dealing: they depend on rollout and group alone."""
    tickets = producer.claim_tickets(_weight(number), arguments.groups, 0)
    assert isinstance(tickets, list)
    lengths = {ticket.id: _lengths(ticket, arguments.samples) for ticket in tickets}
    lanes = [0.0] * min(arguments.at_once, arguments.groups)
    ends = []
    for ticket in tickets:
        end = heapq.heappop(lanes) + max(lengths[ticket.id]) / TOKENS_PER_SECOND
        heapq.heappush(lanes, end)
        ends.append((end, ticket.id, ticket))
    ends.sort()
    slices: list[tuple[list[int], float]] = []
    for end, _, ticket in ends:
        assert all(producer.put_groups([_group(ticket, lengths[ticket.id], _weight(number))]))
        # A trainer takes the slices in order.
        while len(slices) < arguments.steps * arguments.slices:
            rows = _step_rows(arguments) // arguments.slices
            batch = trainer.claim_training("train", RolloutId(number), len(slices), rows, 0, 1, timeout=0)
            if not isinstance(batch, Batch):
                break
            slices.append((batch.columns["lengths"].values.tolist(), end / ends[-1][0]))
    steps = [slices[first : first + arguments.slices] for first in range(0, len(slices), arguments.slices)]
    return [Step(_mean([length for mine, _ in step for length in mine]), step[-1][1]) for step in steps]


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def _lengths(ticket: Ticket, samples: int) -> list[int]:
    """A prompt has a length of its own, around which its answers are."""
    random = Random(f"{ticket.rollout_id} {ticket.group}")
    prompt = random.gauss(0, SIGMA * 0.8)
    return [int(MEDIAN_TOKENS * math.exp(prompt + random.gauss(0, SIGMA * 0.6))) + 1 for _ in range(samples)]


def _group(ticket: Ticket, lengths: list[int], weight: WeightId) -> GroupRows:
    column = Jagged.scalars(torch.tensor(lengths, dtype=torch.int32))
    return GroupRows(ticket, {"lengths": column}, [weight] * len(lengths), [weight] * len(lengths))


def _weight(version: int) -> WeightId:
    return WeightId(lineage=Lineage(1), version=WeightVersion(version))


def _incarnation(role: Role) -> Incarnation:
    return Incarnation(key=RankKey(role=role, replica=0), epoch=Epoch(1), generation=0, id=secrets.token_hex(6))


if __name__ == "__main__":
    main()
