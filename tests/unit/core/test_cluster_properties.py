"""What holds on a cluster for every order in which pods go, users wish and turns are lost."""

from copy import deepcopy
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rljob_api.names import Role
from rljob_api.spec.restart import RestartRequestSpec
from rljob_api.status import ConditionType, Phase, RLJobStatus
from rljob_operator.core import Decision, Observed, PodEnding, PodState, Stop, decide
from rljob_operator.core.conditions import is_true, terminal
from tests.unit.core.cluster import Cluster, make_cluster
from tests.unit.core.worlds import make_policy

MAXIMUM = 2
HAPPENINGS = st.one_of(
    st.tuples(st.just("is taken away"), st.sampled_from(PodEnding)),
    st.tuples(st.just("dies"), st.sampled_from([1, 64, 137])),
    st.tuples(st.just("restarts"), st.just(0)),
    st.tuples(st.just("goes deaf"), st.booleans()),
    st.tuples(st.just("falls silent"), st.sampled_from([0.1, 99.0, 999.0])),
    st.tuples(st.just("lingers"), st.booleans()),
    st.tuples(st.just("is cut off"), st.booleans()),
    st.tuples(st.just("scales"), st.integers(1, 4)),
    st.tuples(st.just("changes the spec"), st.integers(1, 3)),
    st.tuples(st.just("outdates"), st.booleans()),
    st.tuples(st.just("asks for a restart"), st.sampled_from([None, Role.ACTOR, Role.ROLLOUT, Role.REFERENCE])),
    st.tuples(st.just("suspends"), st.booleans()),
    st.tuples(st.just("trains"), st.integers(3, 100)),
)
SCHEDULES = st.lists(st.tuples(HAPPENINGS, st.integers(0, 20), st.floats(0.1, 80)), max_size=12)
POLICIES = st.sampled_from(["Process", "Recreate"]).map(
    lambda mechanism: make_policy(maxGlobalRestarts=MAXIMUM, mechanism=mechanism)
)


def happened(world: Cluster, what: str, how: object, which: int) -> None:
    """One thing more."""
    pod = world.pods[which % len(world.pods)] if world.pods else None
    match what, how:
        case "is taken away", PodEnding() if pod is not None:
            world.end(pod, how)
        case "dies", int() if pod is not None:
            pod.state, pod.exit_code = PodState.EXITED, how
        case "restarts", _ if pod is not None:
            world.restart(pod)
        case "goes deaf", bool() if pod is not None:
            pod.deaf = how
        case "falls silent", float() if pod is not None:
            pod.silent = how
        case "lingers", bool():
            world.stops = not how
        case "is cut off", bool():
            world.answers = not how
        case "scales", int():
            world.replicas[Role.ROLLOUT] = how
            world.ask()
        case "changes the spec", int():
            world.ask(revision=f"r{how}")
        case "outdates", bool():
            world.ask(outdated=how)
        case "asks for a restart", _:
            world.ask(restart_request=RestartRequestSpec(id=f"{which}", role=how))
        case "suspends", bool():
            world.ask(suspend=how)
        case "trains", int():
            world.step, world.recorded = how - 1, how


def check_step(world: Cluster, before: RLJobStatus, observed: Observed, decision: Decision) -> None:
    """What holds of every single decision."""
    after = decision.status
    assert before.restart.epoch <= after.restart.epoch <= before.restart.epoch + 1
    assert after.restart.counted_towards_max <= MAXIMUM
    if after.restart.counted_towards_max > before.restart.counted_towards_max:
        assert after.restart.epoch == before.restart.epoch + 1
    assert decision.next_turn_at > world.now
    assert len({fact.pod for fact in observed.pods}) == len(observed.pods), "a number was given to two pods"
    incarnations = [pod.incarnation for role in after.roles for pod in role.pods if pod.incarnation]
    assert len(set(incarnations)) == len(incarnations)
    ended = terminal(before)
    if ended is not None:
        assert is_true(after, ended.type)
        assert after.restart == before.restart
        assert not [event for event in decision.events if event.scope]
    if not is_true(after, ConditionType.SUSPENDED) and after.restart.epoch == before.restart.epoch and before.roles:
        stay = sum(not pod.draining for pod in after.roles[0].pods)
        had = sum(not pod.draining for pod in before.roles[0].pods)
        assert stay >= min(had, observed.replicas[Role.ROLLOUT]), "shrunk below what is wanted"


EVICTION = ("is taken away", PodEnding.EVICTED), 0, 1.0


@settings(deadline=None, max_examples=20)
@given(SCHEDULES, POLICIES)
@example([(("suspends", True), 0, 1.0), (("suspends", False), 0, 1.0)], make_policy())
@example([EVICTION, (("scales", 1), 0, 1.0), EVICTION], make_policy())
def test_every_decision_is_bounded_and_states_nothing_new_when_asked_again(
    schedule: list[tuple[tuple[str, object], int, float]], policy: object
) -> None:
    world = make_cluster(policy=policy)
    for (what, how), which, seconds in schedule:
        happened(world, what, how, which)
        before, observed = world.status, world.observe()
        now = world.now + seconds
        decision = decide(observed, now)
        again = decide(replace(observed, status=decision.status), now)
        assert again.status.model_dump() == decision.status.model_dump()
        assert again.actions == decision.actions
        assert not [event for event in again.events if event.scope]
        world.turn(seconds)
        check_step(world, before, observed, decision)


@settings(deadline=None, max_examples=25)
@given(SCHEDULES, POLICIES)
def test_whatever_happened_the_job_is_well_again_or_at_rest(
    schedule: list[tuple[tuple[str, object], int, float]], policy: object
) -> None:
    world = make_cluster(policy=policy)
    for (what, how), which, seconds in schedule:
        happened(world, what, how, which)
        world.turn(seconds)
    world.stops = world.answers = True
    for pod in world.pods:
        pod.deaf, pod.silent = False, 0.1
    world.ask(outdated=False)
    for _ in range(12):
        world.turn(10)
    if terminal(world.status) is not None:
        assert world.turn().actions == (Stop(Phase(world.status.phase)),)
    elif world.request.suspend:
        assert is_true(world.status, ConditionType.SUSPENDED)
        assert not world.pods
    else:
        assert is_true(world.status, ConditionType.READY)
        assert len(world.membership(Role.ROLLOUT)) == world.replicas[Role.ROLLOUT]
        assert len(world.pods) == sum(len(role.pods) for role in world.status.roles)
        settled = deepcopy(world.status)
        assert world.turn(0.1).actions == ()
        assert world.status.conditions == settled.conditions


@settings(deadline=None, max_examples=25)
@given(SCHEDULES, POLICIES)
def test_no_two_actors_take_orders_of_one_epoch(
    schedule: list[tuple[tuple[str, object], int, float]], policy: object
) -> None:
    world = make_cluster(policy=policy)
    taken: set[tuple[int, str]] = set()
    for (what, how), which, seconds in schedule:
        happened(world, what, how, which)
        world.turn(seconds)
        for pod in world.pods:
            if pod.role is Role.ACTOR and pod.order is not None:
                taken.add((pod.order.epoch, pod.uid))
    epochs = [epoch for epoch, _ in taken]
    assert len(epochs) == len(set(epochs)), f"(epoch, pod): {sorted(taken)}"


@settings(deadline=None, max_examples=15)
@given(st.lists(st.tuples(st.sampled_from(PodEnding), st.integers(0, 20)), min_size=1, max_size=10))
def test_what_the_cluster_takes_away_never_counts(taken: list[tuple[PodEnding, int]]) -> None:
    world = make_cluster(policy=make_policy(maxGlobalRestarts=0, threshold=1))
    for ending, which in taken:
        world.end(world.pods[which % len(world.pods)], ending)
        world.settle()
    assert world.status.restart.counted_towards_max == 0
    assert all(role.failures == 0 for role in world.status.roles)
    assert is_true(world.status, ConditionType.READY)
