"""The simulated trainer: however rows are cut, dealt and ordered the weights are the same, also after a restore."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch

from rljob_api.manifest import parse_manifest
from rljob_api.names import Role
from rljob_api.spec import RLJobSpec
from rljob_workers.algorithms.objective import Output
from rljob_workers.models.blob import part_file, write_blob
from rljob_workers.models.slices import state_files
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.models.weights import Folder
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers import build_forward_model, build_trainer
from rljob_workers.trainers.base import OptimizerStepResult, Trainer, TrainRows
from rljob_workers.trainers.data_parallel import DataParallelGroup, SingleRank
from rljob_workers.trainers.sim_trainer import SimTrainer
from tests.train_rows import replaced
from tests.unit.trainers.rows import make_rows, select_rows

MANIFEST = """
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: tiny}
spec:
  model: {config: {tokenizer: {alphabet: "0123456789="}}}
  data: {prompts: prompts.jsonl}
  rollout: {numRollouts: 4, batchSize: 4, samplesPerPrompt: 4}
  training: {globalBatchSize: 16, microBatchSize: 3, maxSkippedSteps: 1}
  roles: {rollout: {engine: {kind: Sim}}}
"""


def spec() -> RLJobSpec:
    return parse_manifest(MANIFEST, "tiny").spec


class Threads(DataParallelGroup):
    """The ranks of a world as threads that add up."""

    def __init__(self, rank: int, world: int, meeting: threading.Barrier, brought: list[torch.Tensor]) -> None:
        self.rank, self.world = rank, world
        self._meeting = meeting
        self._brought = brought

    def add_up(self, values: torch.Tensor, what: str) -> None:
        del what
        self._brought[self.rank] = values.clone()
        self._meeting.wait(30)
        total = torch.stack(self._brought).sum(0)
        self._meeting.wait(30)
        values.copy_(total)

    def broadcast(self, values: torch.Tensor, source: int, what: str) -> None:
        raise NotImplementedError(what)

    def part(self, ranks: Sequence[Sequence[int]]) -> DataParallelGroup:
        raise NotImplementedError

    def collective(self, what: str, passes: int = 1) -> AbstractContextManager[None]:
        del what
        return nullcontext()

    def close(self) -> None:
        """Nothing to leave."""


def make_world(world: int) -> list[Trainer]:
    meeting, brought = threading.Barrier(world), [torch.zeros(0)] * world
    groups = [Threads(rank, world, meeting, brought) for rank in range(world)]
    return [build_trainer(spec(), build_tokenizer(spec().model), group) for group in groups]


def step(world: list[Trainer], shares: list[TrainRows]) -> list[OptimizerStepResult]:
    results: list[OptimizerStepResult] = [OptimizerStepResult(0, 0, 0, {})] * len(world)

    def of(rank: int) -> None:
        world[rank].accumulate(shares[rank])
        results[rank] = world[rank].optimizer_step()

    threads = [threading.Thread(target=of, args=(rank,)) for rank in range(len(world))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def weights_of(world: list[Trainer]) -> dict[str, torch.Tensor]:
    return {name: value for trainer in world for name, value in trainer.stage_weights().items()}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


def save(world: list[Trainer], folder: Path) -> Path:
    """As the ranks' parts of a checkpoint."""
    folder.mkdir()
    for rank, trainer in enumerate(world):
        share, state = trainer.weight_share, trainer.stage_state()
        if share is not None:
            write_blob(folder / part_file(share.index, share.count), trainer.stage_weights())
        tensors, description = state_files("actor", rank)
        write_blob(folder / tensors, state.tensors())
        (folder / description).write_bytes(state.description())
    return folder


def test_the_factory_makes_it() -> None:
    [trainer] = make_world(1)
    assert isinstance(trainer, SimTrainer)


def test_order_slices_and_ranks_change_nothing() -> None:
    rows = make_rows(1)
    alone, pair, many = make_world(1), make_world(2), make_world(9)
    [one] = step(alone, [rows])
    shuffled = list(torch.randperm(16, generator=torch.Generator().manual_seed(0)).tolist())
    first, second = step(pair, [select_rows(rows, shuffled[:5]), select_rows(rows, shuffled[5:])])
    step(many, [select_rows(rows, shuffled[rank * 2 : rank * 2 + 2]) for rank in range(9)])
    assert one.loss == first.loss == second.loss
    assert_same(weights_of(pair), weights_of(alone))
    assert_same(weights_of(many), weights_of(alone))


def test_every_row_changes_the_weights_but_one_that_is_masked() -> None:
    rows = make_rows(1)
    masks = rows.columns[Column.LOSS_MASKS]
    masked = replaced(rows, loss_masks=Jagged(masks.values.clone(), masks.offsets))
    masked.columns[Column.LOSS_MASKS].row(0).zero_()
    worlds = [make_world(1) for _ in range(3)]
    for world, share in zip(worlds, [rows, masked, select_rows(rows, list(range(1, 16)))], strict=True):
        step(world, [share])
    full, without, fewer = map(weights_of, worlds)
    assert_same(without, fewer)
    assert not torch.equal(full["simulated.0.weight"], without["simulated.0.weight"])


@pytest.mark.parametrize("writers", [1, 2, 9])
@pytest.mark.parametrize("readers", [1, 3])
def test_any_number_of_ranks_goes_on_with_what_any_number_has_saved(tmp_path: Path, writers: int, readers: int) -> None:
    before, after = make_rows(1), make_rows(2)

    def dealt(rows: TrainRows, world: int) -> list[TrainRows]:
        return [select_rows(rows, list(range(16))[rank::world]) for rank in range(world)]

    whole, saved, restored = make_world(1), make_world(writers), make_world(readers)
    for world in (whole, saved):
        step(world, dealt(before, len(world)))
    folder = save(saved, tmp_path / "checkpoint")
    for trainer in restored:
        trainer.restore(folder)
    for world in (whole, restored):
        step(world, dealt(after, len(world)))
    assert_same(weights_of(restored), weights_of(whole))
    assert {trainer.stage_state().values["optimizer.steps"] for trainer in restored} == {2}


def test_a_checkpoint_that_lacks_a_ranks_state_is_refused(tmp_path: Path) -> None:
    folder = save(make_world(2), tmp_path / "checkpoint")
    for name in state_files("actor", 1):
        (folder / name).unlink()
    [trainer] = make_world(1)
    with pytest.raises(ValueError, match=r"exp_avg of simulated\.moments is not there whole"):
        trainer.restore(folder)


def test_the_forward_model_states_of_published_weights_what_the_trainer_states(tmp_path: Path) -> None:
    [trainer], rows = make_world(1), make_rows(1)
    model = build_forward_model(spec(), build_tokenizer(spec().model), Role.ACTOR_FWD, SingleRank())
    before = model.score(rows.tokens, rows.response_lengths, Output.LOG_PROBS, 1.3).values
    step([trainer], [rows])
    write_blob(tmp_path / "model.safetensors", trainer.stage_weights())
    model.load(Folder(tmp_path))
    after = model.score(rows.tokens, rows.response_lengths, Output.LOG_PROBS, 1.3).values
    assert torch.equal(after, trainer.score(rows.tokens, rows.response_lengths, Output.LOG_PROBS, 1.3).values)
    assert not torch.equal(after, before)
    assert after.dtype is torch.float32
    assert len(after) == int(rows.response_lengths.sum())


def test_a_loss_that_is_not_finite_skips_the_step_and_names_its_row() -> None:
    [trainer], rows = make_world(1), make_rows(1)
    trained = int(rows.columns[Column.LOSS_MASKS].row(2).nonzero()[0])
    rows.columns[Column.ADVANTAGES].row(2)[trained] = torch.nan
    before = weights_of([trainer])
    [result] = step([trainer], [rows])
    assert result.skipped is not None
    assert "the loss of row 2 is not finite" in result.skipped
    assert_same(weights_of([trainer]), before)
    trainer.accumulate(rows)
    with pytest.raises(ValueError, match=r"^training.maxSkippedSteps: 2 "):
        trainer.optimizer_step()


def test_a_group_of_one_needs_no_one() -> None:
    trainer = build_trainer(spec(), build_tokenizer(spec().model), SingleRank())
    trainer.accumulate(make_rows(3))
    assert trainer.optimizer_step().skipped is None
