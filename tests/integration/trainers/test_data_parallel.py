"""Two ranks are one: same weights as a single rank on the union. A rank that is missing or gone is named."""

from __future__ import annotations

import ast
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rljob_workers.models.blob import read_blob, write_blob
from rljob_workers.models.building import initial_state
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.models.weights import Folder
from rljob_workers.trainers import build_trainer
from rljob_workers.trainers.data_parallel import SingleRank, host_store
from tests.integration.preloaded.client import Forked, fork_program
from tests.integration.trainers.ranks import STEPS
from tests.near import assert_moved_alike
from tests.unit.trainers.rows import make_rows, make_spec

PATIENCE_SECONDS = 300.0
"""Never measured: on a busy machine the imports of a rank alone take a good part of a minute."""


class Ranks:
    """Processes of one group; those that a test leaves are killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[Forked] = []

    def start(self, rank: int, *, world: int, timeout_seconds: float, steps: int = STEPS) -> Forked:
        arguments = [str(self.folder), str(rank), str(world), str(timeout_seconds), str(steps)]
        with self._errors(len(self.processes)).open("wb") as errors:
            process = fork_program("tests.integration.trainers.ranks", arguments, output=errors)
        self.processes.append(process)
        return process

    def end(self, process: Forked) -> tuple[int, str]:
        """Its exit code and what it wrote, once it has ended."""
        code = process.wait(PATIENCE_SECONDS)
        return code, self._errors(self.processes.index(process)).read_text()

    def _errors(self, number: int) -> Path:
        return self.folder / f"errors{number}.txt"


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    spec = make_spec()
    write_blob(tmp_path / "v0.safetensors", initial_state(spec.model, build_tokenizer(spec.model)))
    started = Ranks(tmp_path)
    yield started
    for process in started.processes:
        process.kill()
        process.wait()


def test_two_ranks_train_what_one_rank_trains_on_the_union(ranks: Ranks) -> None:
    for process in [ranks.start(rank, world=2, timeout_seconds=60) for rank in (0, 1)]:
        code, errors = ranks.end(process)
        assert code == 0, errors
    spec = make_spec()
    alone = build_trainer(spec, build_tokenizer(spec.model), SingleRank())
    alone.load(Folder(ranks.folder / "v0.safetensors"))
    before = alone.stage_weights()
    expected = []
    for step in range(STEPS):
        alone.accumulate(make_rows(step))
        expected.append(alone.optimizer_step())
    first, second = (read_blob(ranks.folder / f"rank{rank}.safetensors") for rank in (0, 1))
    assert second == {}, "rank 0 exports all"
    for name, weight in alone.stage_weights().items():
        assert_moved_alike(first[name], weight, before[name], 1e-2, name)
    probes = [read_blob(ranks.folder / f"rank{rank}.log_probs.safetensors")["log_probs"] for rank in (0, 1)]
    assert torch.equal(*probes), "both ranks hold the same weights"
    seen = [ast.literal_eval((ranks.folder / f"rank{rank}.txt").read_text()) for rank in (0, 1)]
    assert seen[0] == seen[1]
    for (loss, grad_norm, metrics), result in zip(seen[0], expected, strict=True):
        assert loss == pytest.approx(result.loss, abs=1e-5)
        assert grad_norm == pytest.approx(result.grad_norm, rel=1e-4)
        assert dict(metrics) == pytest.approx(dict(result.metrics), abs=1e-5)


def test_a_rank_that_never_comes_is_a_named_error(ranks: Ranks) -> None:
    process = ranks.start(0, world=2, timeout_seconds=5)
    code, errors = ranks.end(process)
    assert code == 3
    assert "GroupNotComplete: data-parallel group: rank 0 of 2 waited 5 s at 127.0.0.1:" in errors


def test_a_rank_that_leaves_breaks_the_others_sum_by_name(ranks: Ranks) -> None:
    staying = ranks.start(0, world=2, timeout_seconds=60)
    leaving = ranks.start(1, world=2, timeout_seconds=60, steps=1)
    ranks.end(leaving)
    code, errors = ranks.end(staying)
    assert code == 3
    assert "GroupBroken: data-parallel group: rank 0 of 2 could not add up the gradients of optimizer step 2" in errors
    assert "It waited for rank 1, last seen in the gradients of optimizer step 1." in errors


def test_the_rendezvous_is_reached_on_its_own_address_only() -> None:
    """127.0.0.2 is another address of this machine: it answers where a server listens on every interface."""
    hosted = host_store("127.0.0.1", timeout_seconds=10)
    port = int(hosted.address.rpartition(":")[2])
    socket.create_connection(("127.0.0.1", port), 5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), 5)
