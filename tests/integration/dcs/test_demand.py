"""What ranks lost, from their beats to the status and the metrics; and how many there are, from the orders to them."""

from __future__ import annotations

from rljob_api.names import Role
from rljob_workers.dcs.membership.counters import LOOP_SECONDS, STARVED_SECONDS, WITHHELD_SECONDS
from rljob_workers.dcs.membership.session import RankSession
from tests.integration.dcs.world import make_step_report

from .world import ROLES, World


def report(rank: RankSession, **counters: float) -> None:
    """A beat that is received when this returns."""
    rank.counters.update(counters)
    rank.ready()


def report_step(rank: RankSession, step: int) -> None:
    rank.report_step(make_step_report(rank, step))


def test_status_has_the_sums_of_the_last_step_and_metrics_those_of_now(world: World) -> None:
    world.begin()
    actor, rollout = world.rank(Role.ACTOR), world.rank(Role.ROLLOUT)
    assert world.status().demand is None
    report(actor, **{LOOP_SECONDS: 0.0, STARVED_SECONDS: 0.0})
    report(rollout, **{LOOP_SECONDS: 0.0, WITHHELD_SECONDS: 0.0})
    report(actor, **{LOOP_SECONDS: 10.0, STARVED_SECONDS: 4.0})
    report(rollout, **{LOOP_SECONDS: 9.0, WITHHELD_SECONDS: 0.5})
    report_step(actor, 0)
    report(actor, **{LOOP_SECONDS: 12.0, STARVED_SECONDS: 5.0})

    demand = world.status().demand
    assert demand is not None
    assert (demand.step, demand.actor_seconds, demand.starved_seconds) == (0, 10.0, 4.0)
    assert (demand.rollout_seconds, demand.withheld_seconds) == (9.0, 0.5)
    text = world.call("GET", "/metrics").decode()
    assert 'rljob_actor_loop_seconds_total{job="test"} 12.0' in text
    assert 'rljob_actor_starved_seconds_total{job="test"} 5.0' in text
    assert 'rljob_rollout_withheld_seconds_total{job="test"} 0.5' in text
    assert 'rljob_rank_starved_seconds_total{job="test",role="actor",replica="0",rank="0"} 5.0' in text


def test_a_coordinator_that_begins_again_states_that_it_counts_again(world: World) -> None:
    world.begin()
    actor = world.rank(Role.ACTOR)
    report(actor, **{LOOP_SECONDS: 10.0})
    report_step(actor, 0)
    before = world.status().demand
    world.restart()
    assert world.status().demand is None
    report(actor, **{LOOP_SECONDS: 20.0})
    report_step(actor, 1)
    after = world.status().demand
    assert before is not None
    assert after is not None
    assert after.since > before.since
    assert after.actor_seconds == 0.0


def test_a_rank_receives_how_many_its_role_has_by_the_orders_in_force(world: World) -> None:
    world.begin()
    rollout = world.rank(Role.ROLLOUT)
    assert rollout.role_ranks is None
    rollout.ready()
    assert rollout.role_ranks == ROLES[Role.ROLLOUT]
