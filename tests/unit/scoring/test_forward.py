"""Which partitions a version serves, and who waits for whom."""

import os
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, cast
from unittest.mock import MagicMock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.names import Role, Stream
from rljob_api.spec import RLJob
from rljob_api.wire.identity import WeightId
from rljob_workers import pipeline
from rljob_workers.models.weights import Folder, Weights
from rljob_workers.scoring.forward import ForwardConfig, ForwardLoop
from rljob_workers.telemetry.timeline import Timeline
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.data_parallel import SingleRank
from rljob_workers.trainers.mesh import data_parallel
from tests.unit.api.manifests import changed

ROWS = [torch.ones(1, dtype=torch.int32)] * 4


def make_forward(interval: int | None, num_rollouts: int = 10) -> ForwardConfig:
    return ForwardConfig("log_probs", "log_probs", 1.0, Stream.REFERENCE, num_rollouts, max_rows=8, interval=interval)


@pytest.mark.parametrize(
    ("interval", "version", "expected"),
    [
        pytest.param(1, 4, range(4, 5), id="the current policy serves its own partition alone"),
        pytest.param(3, 6, range(6, 9), id="a reference serves until the next one"),
        pytest.param(3, 9, range(9, 10), id="the last reference serves what is left"),
        pytest.param(1, 10, range(10, 10), id="nothing is left for the last version"),
        pytest.param(None, 0, range(10), id="a reference that is never replaced serves all"),
    ],
)
def test_a_version_serves_the_partitions_that_ask_for_it(interval: int | None, version: int, expected: range) -> None:
    assert make_forward(interval).partitions(version) == expected


@given(st.integers(1, 12), st.integers(1, 40))
def test_every_partition_is_served_under_one_version(interval: int, num_rollouts: int) -> None:
    config = make_forward(interval, num_rollouts)
    served = [(r, version) for version in range(0, num_rollouts, interval) for r in config.partitions(version)]
    assert served == [(r, r // interval * interval) for r in range(num_rollouts)]


def test_results_state_by_which_weights_they_were_made() -> None:
    """By that the queue refuses, and a restore drops, what dead weights have made."""

    class Batch:
        rollout_id = 0
        rows = range(len(ROWS))
        columns: ClassVar = dict.fromkeys((Column.TOKENS, Column.RESPONSE_LENGTHS), Jagged.from_rows(ROWS))

    meets = MagicMock()  # the session, the queue, the model and the rest that a replica works with
    weights = [WeightId(lineage=1, version=version) for version in (0, 1)]
    with closing(Timeline(Path(os.devnull), "actor_fwd-0")) as timeline:
        loop = ForwardLoop(make_forward(1), meets, meets, meets, meets, timeline, data_parallel(SingleRank()))
        for weight in weights:
            loop._take(Weights(weight, Stream.POLICY, Folder(Path(os.devnull))))
            loop._work(cast(Any, Batch()))
    assert [call.kwargs["weight"] for call in meets.put.call_args_list] == weights


def make_job(**roles: object) -> RLJob:
    algorithm = {"kl": {"coefficient": 0.001}} if "reference" in roles else {}
    return RLJob.model_validate(changed({"spec.roles": roles, "spec.algorithm": algorithm}))


def test_the_actor_waits_for_the_reference_only_where_there_is_one() -> None:
    without, having = pipeline.queue_shape(make_job().spec), pipeline.queue_shape(make_job(reference={}).spec)
    names = {task.name: task for task in having.tasks}
    assert Column.REF_LOG_PROBS in names["actor_train"].needs
    assert {field for task in having.tasks for field in task.writes} | set(having.generated_fields) >= set(
        names["actor_train"].needs
    ), "a field that nobody writes would be waited for in vain"
    assert [task.name for task in without.tasks] == [task.name for task in having.tasks if task.name != "ref_log_probs"]
    assert all(Column.REF_LOG_PROBS not in task.needs for task in without.tasks)


def test_roles_that_a_job_does_not_have_are_not_present() -> None:
    assert Role.REFERENCE not in make_job().spec.roles.replicas()
    present = make_job(reference={"replicas": 2}, rollout={"replicas": 3}).spec.roles.replicas()
    assert present == {Role.ROLLOUT: 3, Role.ACTOR: 1, Role.ACTOR_FWD: 1, Role.REFERENCE: 2, Role.ADVANTAGES: 1}
