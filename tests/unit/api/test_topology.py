"""The shape of a role, row by row; then that ranks are numbered without gaps, whatever the numbers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.names import Role
from rljob_api.roles import TRAITS, Grouping, RoleTopology
from rljob_api.spec.roles import RoleSpec, RolesSpec


def shape(role: Role, replicas: int, gpus: int, ranks_per_pod: int | None = None) -> RoleTopology:
    spec = RoleSpec(replicas=replicas, gpus=gpus, ranks_per_pod=ranks_per_pod)
    return RolesSpec().model_copy(update={role.value: spec}).topology(role)


@pytest.mark.parametrize(
    ("role", "replicas", "gpus", "expected"),
    [
        pytest.param(Role.ACTOR, 1, 0, RoleTopology(1, 1, 0, Grouping.GANG), id="without GPUs a pod has one rank"),
        pytest.param(Role.ACTOR, 2, 1, RoleTopology(2, 1, 0, Grouping.GANG), id="one GPU, one rank"),
        pytest.param(Role.ACTOR, 2, 8, RoleTopology(2, 8, 0, Grouping.GANG), id="a rank for each GPU"),
        pytest.param(Role.ROLLOUT, 3, 0, RoleTopology(3, 1, 1, Grouping.INDEPENDENT), id="an engine without GPUs"),
        pytest.param(Role.ROLLOUT, 3, 4, RoleTopology(3, 4, 4, Grouping.INDEPENDENT), id="an engine for each rank"),
        pytest.param(Role.REFERENCE, 2, 1, RoleTopology(2, 1, 0, Grouping.INDEPENDENT), id="no engines elsewhere"),
    ],
)
def test_shape(role: Role, replicas: int, gpus: int, expected: RoleTopology) -> None:
    assert shape(role, replicas, gpus) == expected


def test_without_gpus_a_pod_has_as_many_ranks_as_the_user_states() -> None:
    assert shape(Role.ACTOR, 2, 0, 2) == RoleTopology(2, 2, 0, Grouping.GANG)
    assert shape(Role.ROLLOUT, 1, 0, 3) == RoleTopology(1, 3, 3, Grouping.INDEPENDENT)
    assert shape(Role.ACTOR, 1, 4, 4) == shape(Role.ACTOR, 1, 4)


@pytest.mark.parametrize(("gpus", "share", "engines"), [(8, 1, 8), (8, 2, 4), (8, 8, 1), (0, 1, 1)])
def test_an_engine_has_as_many_gpus_as_it_is_given(gpus: int, share: int, engines: int) -> None:
    engine = {"kind": "SGLang", "tensorParallel": share}
    roles = RolesSpec.model_validate({"rollout": {"replicas": 2, "gpus": gpus, "engine": engine}})
    assert roles.topology(Role.ROLLOUT) == RoleTopology(2, engines, engines, Grouping.INDEPENDENT)


@pytest.mark.parametrize(
    ("role", "given", "ranks", "models"),
    [
        pytest.param("actor", {"replicas": 2, "gpus": 8}, 16, 16, id="a model on every rank"),
        pytest.param("actor", {"replicas": 2, "gpus": 8, "parallelism": {"tensor": 4, "pipeline": 2}}, 16, 2, id="two"),
        pytest.param(
            "critic", {"gpus": 8, "parallelism": {"context": 2, "expert": 4}}, 8, 4, id="experts add no ranks"
        ),
        pytest.param("reference", {"replicas": 2, "gpus": 8, "shards": 16}, 16, 1, id="shards of whole pods"),
        pytest.param(
            "reference", {"replicas": 2, "gpus": 8, "parallelism": {"tensor": 8}}, 16, 2, id="one in each pod"
        ),
    ],
)
def test_rows_are_dealt_to_models(role: str, given: dict[str, Any], ranks: int, models: int) -> None:
    topology = RolesSpec.model_validate({role: given}).topology(Role(role))
    assert (topology.num_ranks, topology.models) == (ranks, models)
    assert len(topology.gangs) == (1 if TRAITS[Role(role)].saves else models)


def test_a_role_that_the_job_does_not_have_has_no_pods_but_a_pod_of_it_has_a_rank() -> None:
    absent = RolesSpec(reference=None).topology(Role.REFERENCE)
    assert (absent.num_ranks, absent.gangs, absent.ranks_per_pod) == (0, (), 1)


@given(role=st.sampled_from(list(Role)), replicas=st.integers(1, 50), gpus=st.integers(0, 16))
def test_ranks_are_numbered_without_gaps_over_pods_and_each_is_in_one_gang(
    role: Role, replicas: int, gpus: int
) -> None:
    topology = shape(role, replicas, gpus)
    everyone = list(range(topology.num_ranks))
    assert [rank for pod in range(topology.pods) for rank in topology.ranks_of(pod)] == everyone
    assert [rank for gang in topology.gangs for rank in gang] == everyone
    assert len(topology.gangs) == (1 if TRAITS[role].grouping is Grouping.GANG else topology.num_ranks)
    assert topology.engines in (0, topology.ranks_per_pod)


@given(gangs=st.integers(1, 6), shards=st.integers(1, 8), ranks=st.sampled_from([1, 2, 4]))
def test_a_sharded_role_has_gangs_within_a_pod_or_over_whole_pods(gangs: int, shards: int, ranks: int) -> None:
    if ranks % shards and shards % ranks:
        return
    count = gangs * shards
    topology = RoleTopology(-(-count // ranks), ranks, 0, Grouping.INDEPENDENT, shards)
    if topology.num_ranks % shards:
        return
    assert [rank for gang in topology.gangs for rank in gang] == list(range(topology.num_ranks))
    for gang in topology.gangs:
        assert all(topology.gang_of(rank) == gang for rank in gang)
        over = {rank // ranks for rank in gang}
        assert len(over) == topology.pods_per_gang
        assert min(over) % topology.pods_per_gang == 0
