"""The 200 fault schedules: twenty kinds of job and trouble, ten seeds of each.

A schedule is a world and a list of happenings, both drawn by a generator of its seed; after each a turn of the
supervisor is decided, and some turns are lost after they were persisted. `turns_of` gives all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, TypeAlias

from rljob_api.names import Role
from rljob_api.roles import Grouping, RoleTopology
from rljob_api.spec.restart import RestartPolicySpec
from rljob_operator.core import PodState, RetainedRun, UserRequest
from tests.recorded.decisions import jobs, pods
from tests.recorded.decisions.world import DeletedTurn, Turn, World
from tests.unit.core.test_queue import ADMITTED, held
from tests.unit.core.worlds import REPLICAS, WITHOUT_CRITIC, make_autoscaling, make_policy

SEEDS = 10
"""Schedules of each kind."""

STEPS = 9
"""Happenings of a schedule."""

Happening: TypeAlias = Callable[[World, Random], None]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of schedule."""

    happenings: Sequence[Happening]
    fields: Callable[[Random], dict[str, Any]] = lambda _: {}
    """Fields of the world, beside the policy."""
    policy: Callable[[Random], RestartPolicySpec] = lambda rng: drawn_policy(rng)
    settles: bool = True
    """The job is well before the first happening."""
    ends: Sequence[Happening] = ()
    """The last but one happening, by turns of the seed."""


def drawn_policy(rng: Random, **fields: Any) -> RestartPolicySpec:
    """Any mechanism, with a high limit, and any patience."""
    mechanism, beat = rng.choice(["Process", "Process", "Recreate"]), rng.choice([30, 30, 120])
    return make_policy(**{"mechanism": mechanism, "heartbeatTimeoutSeconds": beat, **fields})


def _drawn_table(rng: Random) -> RestartPolicySpec:
    roles = ("rollout", "actorFwd", "reference", "advantages")
    return drawn_policy(rng, table={role: rng.choice(["InPlace", "Global", None]) for role in roles})


def _drawn_budget(rng: Random) -> RestartPolicySpec:
    rules = [
        {"name": "mine", "exitCodes": [1, 3, -9], "action": rng.choice(["FailJob", "Ignore", "Count"])},
        {"name": "oom", "podReasons": ["OOMKilled", "Evicted"], "role": "rollout", "action": "Count"},
    ]
    limits = {"maxGlobalRestarts": rng.randint(0, 4), "threshold": rng.randint(1, 3)}
    rules = rng.choice([[], rules])
    return drawn_policy(rng, windowSeconds=rng.choice([None, 60]), failureRules=rules, **limits)


def _drawn_backoff(rng: Random) -> RestartPolicySpec:
    initial = rng.choice([None, 0, 5, 30])
    return drawn_policy(rng, backoff={"initialSeconds": initial, "factor": 2.0, "maxSeconds": 60})


def _gang(rng: Random) -> dict[str, Any]:
    replicas = {Role.ROLLOUT: rng.randint(2, 3), Role.ACTOR: 2, Role.ADVANTAGES: 1}
    required = rng.choice([{}, {Role.ROLLOUT: 1}])
    return {"replicas": replicas, "required": required, "release_after_seconds": 60.0}


def _sharded(rng: Random) -> dict[str, Any]:
    shapes = {
        Role.ACTOR: RoleTopology(2, 2, 0, Grouping.GANG, shards=rng.choice([1, 2])),
        Role.REFERENCE: RoleTopology(2, 1, 0, Grouping.INDEPENDENT, shards=2),
    }
    replicas = {Role.ROLLOUT: 1, Role.ACTOR: 2, Role.REFERENCE: 2}
    return {"replicas": replicas, "beside": {"topologies": shapes}}


def _elastic(rng: Random) -> dict[str, Any]:
    fewest = rng.choice([1, 2])
    autoscaling = make_autoscaling(min_replicas=fewest, max_staleness=rng.choice([0, 1]))
    return {"replicas": {Role.ROLLOUT: fewest, Role.ACTOR: 1}, "autoscaling": autoscaling}


def _local(rng: Random) -> dict[str, Any]:
    return {"request": UserRequest(), "replicas": dict(rng.choice([REPLICAS, WITHOUT_CRITIC]))}


def _starting(rng: Random) -> dict[str, Any]:
    request = UserRequest(revision="r1", generation=1, startup_deadline_seconds=rng.choice([None, 100]))
    request = replace(request, suspend=rng.random() < 0.2)
    retained = rng.choice([None, None, RetainedRun("claim", 7, "7-e2-a"), RetainedRun("claim", 100, "100-e2-a")])
    begun = {"retained": retained, "earlier_epoch": rng.choice([0, 2])}
    return {**begun, "request": request, "starts": rng.choice(list(PodState)[:2]), "answers": rng.random() < 0.5}


def _small(_: Random) -> dict[str, Any]:
    return {"replicas": {Role.ROLLOUT: 2, Role.ACTOR: 1, Role.REFERENCE: 1}}


def _without_critic(_: Random) -> dict[str, Any]:
    return {"replicas": dict(WITHOUT_CRITIC)}


ORDINARY: Sequence[Happening] = (jobs.quiet, jobs.trains, jobs.recovers)

KINDS: Mapping[str, Kind] = {
    "start": Kind(
        (
            *(pods.pods_start_slowly, pods.nothing_has_room, pods.ranks_register_late, pods.container_ends),
            *(jobs.pods_are_not_made, jobs.was_retained, jobs.recovers, jobs.quiet, jobs.infrastructure_goes),
            *(jobs.resumes, jobs.control_state_goes, jobs.control_state_opens),
        ),
        _starting,
        settles=False,
    ),
    "rank-exit": Kind((*ORDINARY, pods.rank_exits, pods.rank_exits, pods.old_rank_exits, pods.reports)),
    "engine-death": Kind((*ORDINARY, pods.engine_dies, pods.engine_dies, pods.engines_run), _small),
    "node-loss": Kind(
        (*ORDINARY, pods.node_is_lost, pods.pod_ends, pods.container_ends, pods.container_restarts, pods.lingers)
    ),
    "hang": Kind((*ORDINARY, pods.falls_silent, pods.falls_silent, pods.goes_deaf, jobs.stands_still), _without_critic),
    "drain": Kind((*ORDINARY, pods.pod_ends, pods.falls_silent, pods.goes_deaf, pods.lingers, jobs.suspends)),
    "coordinator-loss": Kind(
        (
            *(jobs.trains, jobs.recovers, jobs.coordinator_goes, jobs.coordinator_comes, jobs.control_state_goes),
            *(jobs.control_state_opens, jobs.infrastructure_goes, jobs.secret_goes, jobs.orders_are_refused),
            *(pods.pod_ends, pods.rank_exits, jobs.infrastructure_crashes, jobs.another_epoch),
        ),
        _small,
    ),
    "suspend": Kind(
        (*ORDINARY, jobs.suspends, jobs.suspends, jobs.resumes, jobs.resumes, pods.pod_ends, pods.goes_deaf)
    ),
    "scale": Kind((*ORDINARY, jobs.scales, jobs.scales, pods.pod_ends, pods.rank_exits, pods.lingers), _small),
    "elastic": Kind(
        (*ORDINARY, jobs.steps_starved, jobs.steps_starved, jobs.steps_idle, pods.pod_ends, jobs.bounds_change),
        _elastic,
    ),
    "edit": Kind(
        (
            *(jobs.trains, jobs.is_edited, jobs.is_outdated, jobs.is_refused, jobs.is_mended, jobs.recovers),
            *(jobs.restart_is_requested, pods.rank_exits),
        ),
        _without_critic,
    ),
    "gang": Kind((*ORDINARY, pods.gang_waits, pods.gang_waits, pods.pod_ends, pods.node_is_lost), _gang),
    "sharded": Kind(
        (*ORDINARY, pods.collective_breaks, pods.collective_breaks, pods.collective_is_over, pods.falls_silent),
        _sharded,
    ),
    "kueue": Kind(
        (*ORDINARY, jobs.quota_is_taken, jobs.is_admitted, jobs.leaves_the_queue, jobs.suspends, jobs.resumes),
        lambda rng: {**_small(rng), "admission": rng.choice([ADMITTED, held()])},
    ),
    "budget": Kind((*ORDINARY, pods.rank_exits, pods.container_ends, pods.pod_ends), _without_critic, _drawn_budget),
    "backoff": Kind((*ORDINARY, pods.rank_exits, pods.rank_exits, jobs.recovers), _small, _drawn_backoff),
    "table": Kind(
        (*ORDINARY, pods.reference_exits, pods.reference_exits, pods.rank_exits, pods.container_ends),
        policy=_drawn_table,
    ),
    "end": Kind(
        (
            *ORDINARY,
            jobs.has_limits,
            pods.falls_silent,
            jobs.is_evaluated,
            jobs.volume_is_small,
            jobs.tracker_fails,
            jobs.drain_is_taken_back,
            jobs.step_is_reported,
        ),
        _without_critic,
        ends=(jobs.is_done, jobs.stop_is_reached, jobs.is_deleted, jobs.has_limits),
    ),
    "local": Kind(
        (
            *(*ORDINARY, pods.rank_exits, pods.container_ends, pods.falls_silent, jobs.infrastructure_goes),
            *(
                jobs.control_state_goes,
                jobs.control_state_opens,
                jobs.queue_drains,
                pods.container_restarts,
                pods.launcher_stops,
            ),
        ),
        _local,
        ends=(jobs.is_interrupted, jobs.is_done, jobs.quiet),
    ),
    "any": Kind(
        (
            *(*ORDINARY, pods.rank_exits, pods.pod_ends, pods.container_ends, jobs.coordinator_goes, jobs.scales),
            *(jobs.coordinator_comes, jobs.suspends, jobs.resumes, jobs.is_edited, jobs.queue_drains, pods.reports),
            *(jobs.restart_is_requested, jobs.is_outdated, jobs.tracker_fails, pods.goes_deaf),
        ),
        _without_critic,
        ends=(jobs.is_done, jobs.suspends, jobs.is_deleted, jobs.quiet),
    ),
}


def names() -> Iterator[tuple[str, int]]:
    """Kind and seed of each schedule."""
    for kind in KINDS:
        for seed in range(SEEDS):
            yield kind, seed


def turns_of(kind: str, seed: int) -> Sequence[Turn | DeletedTurn]:
    """Walks the schedule."""
    rng, of = Random(f"{kind}/{seed}"), KINDS[kind]
    fields = of.fields(rng)
    world = World(**{"replicas": dict(REPLICAS), **fields, "policy": of.policy(rng)})
    if rng.random() < 0.5:
        world.stated["progress_age_seconds"] = 1.0  # else no rank has reported that it came forward
    if of.settles:
        world.settle(4)
    for number in range(STEPS):
        is_end = bool(of.ends) and number == STEPS - 2
        happens = of.ends[seed % len(of.ends)] if is_end else rng.choice(of.happenings)
        happens(world, rng)
        _go_on(world, rng)
    jobs.recovers(world, rng)
    for _ in range(3):
        world.turn(rng.uniform(5, 30))
    return world.turns


def _go_on(world: World, rng: Random) -> None:
    if rng.random() < 0.1:
        world.turn_without_actions(rng.uniform(0.1, 5))
    world.turn(round(rng.choice([0.1, 1, 5, 20, 80]) * rng.uniform(0.5, 1.5), 3))
    if rng.random() < 0.5:
        world.turn(round(rng.uniform(0.1, 3), 3))
