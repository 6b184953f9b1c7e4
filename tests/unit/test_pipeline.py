"""Which columns the advantages of a job are made of, and how many rows must be there at once."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_api.spec import RLJobSpec
from rljob_api.spec.algorithm import AlgorithmSpec
from rljob_api.spec.roles import ReferenceSpec
from rljob_api.spec.training import ClaimPolicy
from rljob_workers import pipeline
from rljob_workers.tensors.columns import Column
from rljob_workers.transfer_queue.types import ForwardPolicy
from tests.unit.trainers.rows import make_spec

REWARDS = {Column.REWARDS, Column.VALID}
TOKENS = {*REWARDS, Column.RESPONSE_LENGTHS, Column.LOSS_MASKS, Column.FINISH_REASONS}
AGAINST_GREEDY = {*REWARDS, Column.BASELINES}
WITH_VALUES = {*TOKENS, Column.VALUES}
OF_TOKENS = {Column.ADVANTAGES, Column.RETURNS}
WHITENED = {"advantage": "Gae", "gae": {"whiten": "Partition"}}


def job(algorithm: dict[str, Any]) -> RLJobSpec:
    return make_spec().model_copy(update={"algorithm": AlgorithmSpec.model_validate(algorithm)})


@pytest.mark.parametrize(
    ("algorithm", "needs", "writes", "policy"),
    [
        pytest.param({}, REWARDS, {Column.ROW_ADVANTAGES}, ClaimPolicy.GROUP, id="of a group"),
        pytest.param({"advantage": "m:f"}, REWARDS, {Column.ROW_ADVANTAGES}, ClaimPolicy.GROUP, id="the user's own"),
        pytest.param(
            {"noVariance": "LeaveOut"},
            REWARDS,
            {Column.ROW_ADVANTAGES, Column.HAS_VARIANCE},
            ClaimPolicy.GROUP,
            id="groups without variance are left out",
        ),
        pytest.param(
            {"kl": {"coefficient": 0.1, "placement": "Reward"}},
            {*TOKENS, Column.LOG_PROBS, Column.REF_LOG_PROBS},
            {Column.ROW_ADVANTAGES, Column.REWARD_KL},
            ClaimPolicy.GROUP,
            id="of a group, whose rewards are lessened by tokens",
        ),
        pytest.param(
            {"advantage": "ReinforcePlusPlus"},
            TOKENS,
            {Column.ADVANTAGES},
            ForwardPolicy.PARTITION,
            id="over the rollout",
        ),
        pytest.param(
            {"advantage": "ReMax"},
            AGAINST_GREEDY,
            {Column.ROW_ADVANTAGES},
            ClaimPolicy.FIFO,
            id="each row against a greedy answer",
        ),
        pytest.param(
            {"advantage": "ReMax", "noVariance": "LeaveOut"},
            AGAINST_GREEDY,
            {Column.ROW_ADVANTAGES, Column.HAS_VARIANCE},
            ClaimPolicy.GROUP,
            id="the same, but for its group's variance",
        ),
        pytest.param({"advantage": "Gae"}, WITH_VALUES, OF_TOKENS, ClaimPolicy.FIFO, id="each row by itself"),
        pytest.param(
            {"advantage": "Gae", "noVariance": "LeaveOut"},
            WITH_VALUES,
            {*OF_TOKENS, Column.HAS_VARIANCE},
            ClaimPolicy.GROUP,
            id="each row by itself, but for its group's variance",
        ),
        pytest.param(
            {"advantage": "Distillation"},
            {*TOKENS, Column.LOG_PROBS, Column.REF_LOG_PROBS},
            {Column.ADVANTAGES},
            ClaimPolicy.FIFO,
            id="each row by itself, and a teacher",
        ),
        pytest.param(WHITENED, WITH_VALUES, OF_TOKENS, ForwardPolicy.PARTITION, id="whitened over the rollout"),
    ],
)
def test_the_estimator_decides_what_its_task_reads_writes_and_claims(
    algorithm: dict[str, Any], needs: set[Column], writes: set[Column], policy: ClaimPolicy | ForwardPolicy
) -> None:
    spec = job(algorithm)
    task = pipeline.compute_advantages(spec)
    assert (set(task.needs), set(task.writes), task.policy) == (needs, writes, policy)
    read = set(pipeline.actor_train(spec).needs)
    assert writes - {Column.RETURNS} <= read, "the actor waits for what is made for it"
    assert not read & {Column.VALUES, Column.RETURNS, Column.BASELINES}, "and for nothing that others read"


@pytest.mark.parametrize(
    ("placement", "of_loss", "of_reward"), [(None, True, False), ("Loss", True, False), ("Reward", False, True)]
)
def test_the_reference_is_read_where_the_pull_is_felt(placement: str | None, of_loss: bool, of_reward: bool) -> None:
    spec = job({"kl": {"coefficient": 0.1, "placement": placement}})
    spec = spec.model_copy(update={"roles": spec.roles.model_copy(update={"reference": ReferenceSpec()})})
    train, advantages = pipeline.actor_train(spec), pipeline.compute_advantages(spec)
    assert (Column.REF_LOG_PROBS in train.needs) is of_loss
    assert (Column.REF_LOG_PROBS in advantages.needs) is of_reward
    without = spec.model_copy(update={"roles": spec.roles.model_copy(update={"actor_fwd": None})})
    assert (Column.ROLLOUT_LOG_PROBS in pipeline.compute_advantages(without).needs) is of_reward
    assert Column.LOG_PROBS not in pipeline.compute_advantages(without).needs


@pytest.mark.parametrize("no_variance", ["Keep", "LeaveOut"])
@pytest.mark.parametrize(("advantage", "more"), [("Grpo", ()), ("ReMax", (Column.BASELINES,))])
def test_without_the_role_the_rollout_generates_what_it_would_compute(
    advantage: str, more: tuple[Column, ...], no_variance: str
) -> None:
    with_role = job({"advantage": advantage, "noVariance": no_variance})
    without = with_role.model_copy(update={"roles": with_role.roles.model_copy(update={"advantages": None})})
    assert set(pipeline.columns_of(with_role)) == set(pipeline.columns_of(without))
    assert pipeline.actor_train(with_role).needs != ()
    assert set(pipeline.actor_train(with_role).needs) == set(pipeline.actor_train(without).needs)
    shape = pipeline.queue_shape(without)
    computed = {field for task in shape.tasks for field in task.writes}
    assert set(shape.generated_fields) == set(pipeline.columns_of(without)) - computed
    assert Column.ROW_ADVANTAGES in shape.generated_fields
    assert pipeline.COMPUTE_ADVANTAGES not in {task.name for task in shape.tasks}
    assert pipeline.queue_shape(with_role).generated_fields == (*pipeline.GENERATED, *more)
