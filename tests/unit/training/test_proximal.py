"""Proximal log-probs with and without actor_fwd: who computes them, and that training comes out the same."""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rljob_api.names import Role, RolloutId
from rljob_api.spec import RLJobSpec
from rljob_workers import pipeline
from rljob_workers.algorithms.objective import Output
from rljob_workers.models.blob import write_blob
from rljob_workers.models.building import initial_state
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.models.weights import Folder
from rljob_workers.telemetry.timeline import Timeline
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers import build_forward_model, build_trainer
from rljob_workers.trainers.base import ForwardModel, Trainer, TrainRows
from rljob_workers.trainers.data_parallel import SingleRank
from rljob_workers.training.gang_loop import GangParts
from rljob_workers.training.learnt_tokens import LearntTokens
from rljob_workers.training.loop import ActorConfig, ActorLoop, Proximal, proximal_of
from rljob_workers.training.turns import OwnTurns
from rljob_workers.transfer_queue.dataset import Slicing
from rljob_workers.transfer_queue.types import Batch, Claim, TaskKind
from tests.train_rows import replaced
from tests.unit.trainers.rows import make_rows, make_spec, select_rows

ROLLOUTS, ROWS, TEMPERATURE = 2, 16, 1.3


BYPASS = {"proximal": "Rollout", "correction": {"kind": "None"}}


def spec_with(roles: dict[str, Any], coefficient: float = 0.05, algorithm: Any = None, **training: int) -> RLJobSpec:
    spec = make_spec(micro_batch_size=4).model_dump(mode="json")
    spec["roles"] = {"reference": {}, **roles}
    spec["algorithm"]["kl"]["coefficient"] = coefficient
    spec["algorithm"] |= algorithm or {}
    spec["training"] |= training
    return RLJobSpec.model_validate(spec)


@pytest.mark.parametrize(
    ("roles", "training", "expected"),
    [
        pytest.param({}, {}, Proximal.QUEUE, id="actor_fwd is there unless it is taken away"),
        pytest.param({}, {"epochsPerRollout": 2}, Proximal.QUEUE, id="actor_fwd serves several steps as well"),
        pytest.param({"actorFwd": None}, {}, Proximal.STEP, id="one optimizer step"),
        pytest.param({"actorFwd": None}, {"itersPerTrainUpdate": 2}, Proximal.STEP, id="one optimizer step in slices"),
        pytest.param({"actorFwd": None}, {"globalBatchSize": 8}, Proximal.ROLLOUT, id="two optimizer steps"),
        pytest.param({"actorFwd": None}, {"epochsPerRollout": 2}, Proximal.ROLLOUT, id="two passes"),
    ],
)
def test_who_computes_them(roles: dict[str, Any], training: dict[str, int], expected: Proximal) -> None:
    assert proximal_of(spec_with(roles, **training)) is expected
    bypass = spec_with({"actorFwd": None}, 0.05, BYPASS, **training)
    assert proximal_of(bypass) is Proximal.ENGINE
    assert Column.LOG_PROBS not in pipeline.columns_of(bypass)


@pytest.mark.parametrize("coefficient", [0.0, 0.05])
@pytest.mark.parametrize("actor_fwd", [None, {}])
@pytest.mark.parametrize("reference", [None, {}])
def test_the_actor_waits_for_what_somebody_writes_and_it_reads(
    coefficient: float, actor_fwd: dict[str, Any] | None, reference: dict[str, Any] | None
) -> None:
    if coefficient and reference is None:
        return  # a rule refuses it
    shape = pipeline.queue_shape(spec_with({"actorFwd": actor_fwd, "reference": reference}, coefficient))
    (train,) = (task for task in shape.tasks if task.kind is TaskKind.TRAINING)
    written = {field for task in shape.tasks for field in task.writes}
    assert set(train.needs) <= written | set(shape.generated_fields), "it would wait in vain"
    assert (Column.LOG_PROBS in train.needs) == (actor_fwd is not None)
    assert (Column.REF_LOG_PROBS in train.needs) == (coefficient > 0)
    assert (Column.REF_LOG_PROBS in written) == (reference is not None)


@pytest.mark.parametrize(("no_variance", "is_there"), [("Keep", False), ("LeaveOut", True)])
def test_groups_are_left_out_by_a_column_that_only_such_jobs_have(no_variance: str, is_there: bool) -> None:
    shape = pipeline.queue_shape(spec_with({}, algorithm={"noVariance": no_variance}))
    for task, fields in ((task.name, {*task.writes, *task.needs}) for task in shape.tasks):
        reads_or_writes = task in (pipeline.ACTOR_TRAIN, pipeline.COMPUTE_ADVANTAGES)
        assert (Column.HAS_VARIANCE in fields) == (is_there and reads_or_writes)


@dataclass
class Queue:
    """The surroundings of one actor: deals `rows` slice by slice, with what `forward`, if it is there, says of them."""

    trainer: Trainer
    forward: ForwardModel | None
    rows: list[TrainRows]
    rows_per_slice: int
    folder: Path
    losses: list[float] = field(default_factory=list)
    is_over: bool = False
    stops: bool = False
    version: int = 0
    counters: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    welcome: Any = field(default_factory=lambda: SimpleNamespace(restore=SimpleNamespace(version=0)))

    @property
    def draining(self) -> bool:
        return self.is_over

    def advance(self, amount: int) -> None:
        pass

    def pulse(self, **_: object) -> None:
        pass

    ready = pulse

    def begin(self, *_: object) -> None:
        pass

    def reach(self, version: int) -> None:
        self.version = version

    @property
    def weights(self) -> int:
        return self.version

    def publish(self, _: int) -> None:
        """Actor_fwd has the version reached from now on."""
        if self.forward is not None:
            path = self.folder / f"v{self.version}.safetensors"
            write_blob(path, self.trainer.stage_weights())
            self.forward.load(Folder(path))

    def save_if_due(self) -> None:
        pass

    def finish(self) -> None:
        self.is_over = True

    def claim_training(self, task: str, rollout_id: RolloutId, index: int, *_: int, timeout: float) -> Claim:
        del task, timeout
        numbers = list(range(index * self.rows_per_slice, (index + 1) * self.rows_per_slice))
        return as_batch(select_rows(self.rows[rollout_id], numbers), numbers, self.forward)


def as_batch(rows: TrainRows, numbers: list[int], forward: ForwardModel | None) -> Batch:
    columns: dict[str, Jagged] = {
        Column.TOKENS: rows.tokens,
        Column.RESPONSE_LENGTHS: Jagged.scalars(rows.response_lengths),
        Column.LOSS_MASKS: rows.columns[Column.LOSS_MASKS],
        Column.ROLLOUT_LOG_PROBS: rows.columns[Column.ROLLOUT_LOG_PROBS],
        Column.ADVANTAGES: rows.columns[Column.ADVANTAGES],
        Column.REWARDS: Jagged.scalars(torch.zeros(len(numbers))),
        Column.VALID: Jagged.scalars(torch.ones(len(numbers), dtype=torch.uint8)),
        Column.FINISH_REASONS: Jagged.scalars(torch.zeros(len(numbers), dtype=torch.uint8)),
        Column.VERSION_SPANS: Jagged.scalars(torch.zeros(len(numbers), 4, dtype=torch.int32)),
    }
    if Column.REF_LOG_PROBS in rows.columns:
        columns[Column.REF_LOG_PROBS] = rows.columns[Column.REF_LOG_PROBS]
    if forward is not None:
        columns[Column.LOG_PROBS] = forward.score(rows.tokens, rows.response_lengths, Output.LOG_PROBS, TEMPERATURE)
    groups = np.array(numbers, dtype=np.uint32) // 4
    return Batch(RolloutId(0), np.array(numbers, np.uint32), groups, np.zeros(len(numbers), np.int64), columns)


def trained(folder: Path, spec: RLJobSpec) -> torch.Tensor:
    """All weights of an actor of `spec` after two rollouts, back to back; with actor_fwd where the spec has it."""
    tokenizer = build_tokenizer(spec.model)
    trainer = build_trainer(spec, tokenizer, SingleRank())
    write_blob(folder / "start.safetensors", initial_state(spec.model, tokenizer))
    trainer.load(Folder(folder / "start.safetensors"))
    training = spec.training
    slicing = Slicing("actor_train", ROWS, training.global_batch_size, training.iters_per_train_update)
    forward = build_forward_model(spec, tokenizer, Role.ACTOR_FWD, SingleRank()) if spec.roles.actor_fwd else None
    queue: Any = Queue(trainer, forward, [make_rows(r) for r in range(ROLLOUTS)], slicing.rows_per_slice, folder)
    config = ActorConfig(
        ROLLOUTS, training.epochs_per_rollout, 0, proximal_of(spec), TEMPERATURE, LearntTokens.of(spec), None, 0
    )
    exports: Any = SimpleNamespace(begin=queue.publish, publish=queue.publish)
    with closing(Timeline(Path(os.devnull), "actor-0")) as timeline:
        gang = GangParts(queue, queue, trainer, OwnTurns(), timeline)
        ActorLoop(config, gang, slicing, queue, exports, None).run()
    return torch.cat([weight.flatten() for weight in trainer.stage_weights().values()])


@pytest.mark.parametrize(
    "training",
    [
        pytest.param({}, id="one optimizer step"),
        pytest.param({"itersPerTrainUpdate": 2}, id="one optimizer step in two slices"),
        pytest.param({"globalBatchSize": 8}, id="two optimizer steps"),
        pytest.param({"globalBatchSize": 8, "epochsPerRollout": 2, "itersPerTrainUpdate": 2}, id="two passes of two"),
    ],
)
def test_training_comes_out_the_same_without_actor_fwd(tmp_path: Path, training: dict[str, int]) -> None:
    """The same arithmetic on the same rows: no rounding is between them."""
    with_role, without = spec_with({}, **training), spec_with({"actorFwd": None}, **training)
    assert proximal_of(without) is not Proximal.QUEUE
    assert torch.equal(trained(tmp_path, with_role), trained(tmp_path, without))


def test_several_steps_need_the_log_probs_of_before_the_first(tmp_path: Path) -> None:
    """The other way to have them, new ones at every step, is another training: the test above can fail."""
    spec = spec_with({"actorFwd": None}, globalBatchSize=8)
    right = trained(tmp_path, spec)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setitem(globals(), "proximal_of", lambda _: Proximal.STEP)
        assert not torch.equal(trained(tmp_path, spec), right)


@pytest.mark.parametrize("training", [{}, {"itersPerTrainUpdate": 2}, {"globalBatchSize": 8, "epochsPerRollout": 2}])
def test_the_engines_log_probs_are_trained_against_as_if_a_role_had_computed_them(
    tmp_path: Path, training: dict[str, int]
) -> None:
    bypass = spec_with({"actorFwd": None}, 0.05, BYPASS, **training)
    computed = spec_with({"actorFwd": None}, 0.05, {"correction": {"kind": "None"}}, **training)
    found = trained(tmp_path, bypass)
    assert not torch.equal(trained(tmp_path, computed), found)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setitem(globals(), "as_batch", with_the_engines)
        monkeypatch.setitem(globals(), "proximal_of", lambda _: Proximal.QUEUE)
        assert torch.equal(trained(tmp_path, bypass), found)


def with_the_engines(rows: TrainRows, numbers: list[int], forward: ForwardModel | None) -> Batch:
    """A batch with a column of proximal log-probs, which are the engine's."""
    batch = _AS_BATCH(rows, numbers, forward)
    log_probs = batch.columns[Column.ROLLOUT_LOG_PROBS]
    return replace(batch, columns={**batch.columns, Column.LOG_PROBS: log_probs})


_AS_BATCH = as_batch


def test_rows_without_log_probs_are_measured_against_themselves(tmp_path: Path) -> None:
    spec = make_spec(micro_batch_size=4)
    tokenizer = build_tokenizer(spec.model)
    rows, results = make_rows(0), []
    write_blob(tmp_path / "v0.safetensors", initial_state(spec.model, tokenizer))
    for gives_them in (True, False):
        trainer = build_trainer(spec, tokenizer, SingleRank())
        trainer.load(Folder(tmp_path / "v0.safetensors"))
        own = trainer.score(rows.tokens, rows.response_lengths, Output.LOG_PROBS, TEMPERATURE)
        trainer.accumulate(replaced(rows, log_probs=own if gives_them else None))
        results.append(trainer.optimizer_step())
    assert results[0] == results[1]
    assert results[1].metrics["policy/ratio"] == pytest.approx(1.0)
    assert results[1].metrics["policy/clip_fraction_low"] == results[1].metrics["policy/clip_fraction_high"] == 0.0
