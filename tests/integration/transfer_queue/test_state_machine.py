"""The queue against a model of its promises, in random orders of work and faults; a failure is shrunk.

RLJOB_MACHINE_EXAMPLES and RLJOB_MACHINE_STEPS make it longer.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from rljob_api.spec.rollout import GroupOrder
from rljob_api.spec.training import ClaimPolicy
from rljob_workers.transfer_queue.types import Task
from tests.integration.transfer_queue.lossy import LossyLine
from tests.integration.transfer_queue.members import CRITIC, PARTITION, Names
from tests.integration.transfer_queue.servers import Servers
from tests.integration.transfer_queue.struck import StruckMachine

EXAMPLES = int(os.environ.get("RLJOB_MACHINE_EXAMPLES", "10"))
STEPS = int(os.environ.get("RLJOB_MACHINE_STEPS", "60"))

OF_RETURNS = replace(CRITIC, needs=("tokens", "returns"))


@pytest.fixture
def line(servers: Servers) -> Iterator[LossyLine]:
    with tempfile.TemporaryDirectory(prefix="rlj-") as folder:
        line = LossyLine(servers.control.url, Path(folder) / "line.sock")
        yield line
        line.close()


@pytest.mark.timeout(36000)  # all the steps that one asks for
@pytest.mark.parametrize(
    ("dealing", "more", "order"),
    [
        *(pytest.param(dealing, (), GroupOrder.BOUND, id=dealing.value) for dealing in ClaimPolicy),
        pytest.param(ClaimPolicy.BALANCED, (), GroupOrder.SWAP, id="swaps"),
        pytest.param(ClaimPolicy.BALANCED, (CRITIC,), GroupOrder.SWAP, id="two-trainers-and-swaps"),
        pytest.param(ClaimPolicy.BALANCED, (CRITIC,), GroupOrder.BOUND, id="two-trainers", marks=pytest.mark.long),
        pytest.param(ClaimPolicy.FIFO, (PARTITION,), GroupOrder.BOUND, id="whole-partitions"),
        pytest.param(
            ClaimPolicy.BALANCED, (PARTITION, OF_RETURNS), GroupOrder.BOUND, id="whole-partitions-for-two-trainers"
        ),
    ],
)
def test_the_queue_does_what_the_model_states(
    servers: Servers,
    line: LossyLine,
    monkeypatch: pytest.MonkeyPatch,
    dealing: ClaimPolicy,
    more: tuple[Task, ...],
    order: GroupOrder,
) -> None:
    names = Names()
    monkeypatch.setattr(secrets, "token_hex", names)

    class Machine(StruckMachine):
        def __init__(self) -> None:
            super().__init__(servers, line, names, dealing, more, order)

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
