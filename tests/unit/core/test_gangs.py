"""Every pod of a gang begins in one generation, whatever happened to which; other pods keep their own."""

from hypothesis import given
from hypothesis import strategies as st

from rljob_api.names import Role
from rljob_api.roles import Grouping, RoleTopology
from rljob_api.status import ConditionType, RLJobStatus
from rljob_operator.core import PodEnding, PodState, begin
from rljob_operator.core.conditions import is_true
from rljob_operator.core.membership import pods, with_one_generation, with_pods
from tests.unit.core.cluster import make_cluster
from tests.unit.core.worlds import START

REPLICAS = {Role.ROLLOUT: 2, Role.ACTOR: 3, Role.REFERENCE: 2}
MEMBERS = [(role, replica) for role, count in REPLICAS.items() for replica in range(count)]


def make_status(generations: list[int], draining: frozenset[int] = frozenset()) -> RLJobStatus:
    status, _ = begin(RLJobStatus(), REPLICAS, START)
    numbers = {key: index for index, (key, _) in enumerate(pods(status))}
    return with_pods(
        status,
        lambda key, pod: pod.model_copy(
            update={
                "generation": generations[numbers[key]],
                "ready": True,
                "draining": numbers[key] in draining,
            }
        ),
    )


def actors(status: RLJobStatus) -> list[tuple[int, bool, float]]:
    return [(pod.generation, pod.ready, pod.ordered_at) for key, pod in pods(status) if key.role is Role.ACTOR]


def test_a_pod_that_begins_again_takes_its_peers_along() -> None:
    now = START + 7
    status = with_one_generation(make_status([0, 0, 1, 3, 0, 0, 2]), now)
    assert actors(status) == [(3, False, now), (3, True, START), (3, False, now)]


def test_pods_that_work_for_themselves_keep_their_generations() -> None:
    status = with_one_generation(make_status([0, 4, 0, 0, 0, 2, 0]), START)
    assert [pod.generation for _, pod in pods(status)] == [0, 4, 0, 0, 0, 2, 0]


def test_pods_of_one_sharded_replica_begin_again_together_and_the_others_stay() -> None:
    shapes = {Role.REFERENCE: RoleTopology(2, 1, 0, Grouping.INDEPENDENT, shards=2)}
    status = with_one_generation(make_status([0, 4, 0, 0, 0, 2, 0]), START, shapes)
    assert [pod.generation for _, pod in pods(status)] == [0, 4, 0, 0, 0, 2, 2]
    of_one_pod = {Role.REFERENCE: RoleTopology(2, 2, 0, Grouping.INDEPENDENT, shards=2)}
    status = with_one_generation(make_status([0, 4, 0, 0, 0, 2, 0]), START, of_one_pod)
    assert [pod.generation for _, pod in pods(status)] == [0, 4, 0, 0, 0, 2, 0]


@given(
    st.lists(st.integers(0, 5), min_size=len(MEMBERS), max_size=len(MEMBERS)),
    st.frozensets(st.integers(0, 1)),
)
def test_no_generation_falls_and_all_of_a_gang_have_its_highest(
    generations: list[int], draining: frozenset[int]
) -> None:
    before = make_status(generations, draining)
    after = with_one_generation(before, START + 1)
    assert with_one_generation(after, START + 2) == after, "once is enough"
    of_gang = {generation for generation, _, _ in actors(after)}
    assert of_gang == {max(generation for generation, _, _ in actors(before))}
    for (key, old), (_, new) in zip(pods(before), pods(after), strict=True):
        assert new.generation >= old.generation
        assert key.role is Role.ACTOR or new == old


def test_peers_of_an_actor_pod_that_was_lost_begin_in_its_generation_after_one_restart() -> None:
    cluster = make_cluster(replicas={Role.ROLLOUT: 1, Role.ACTOR: 2, Role.ADVANTAGES: 1})
    cluster.end(cluster.pod(Role.ACTOR, 1), PodEnding.EVICTED)
    cluster.settle(12)
    assert len({cluster.replica(Role.ACTOR, replica).generation for replica in (0, 1)}) == 1
    assert cluster.status.restart.global_restarts == 1
    assert is_true(cluster.status, ConditionType.READY)


def test_peers_of_an_actor_pod_that_was_lost_before_it_ran_begin_in_the_generation_of_the_next() -> None:
    """Its loss restarts nothing: only their order says that the pod whose ranks they wait for is another one."""
    cluster = make_cluster(replicas={Role.ROLLOUT: 1, Role.ACTOR: 2, Role.ADVANTAGES: 1})
    cluster.starts = PodState.PENDING
    cluster.end(cluster.pod(Role.ACTOR, 1), PodEnding.EVICTED)
    cluster.settle(12)
    placed = cluster.pod(Role.ACTOR, 1)
    placed.has_run, cluster.starts = False, PodState.RUNNING
    cluster.end(placed, PodEnding.EVICTED)
    cluster.settle(12)
    assert [cluster.replica(Role.ACTOR, replica).generation for replica in (0, 1)] == [1, 1]
    assert cluster.status.restart.global_restarts == 1
    assert is_true(cluster.status, ConditionType.READY)
