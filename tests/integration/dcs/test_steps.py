"""A step is trained when both roles have reported it, once, whatever becomes of the coordinator in between."""

from __future__ import annotations

import pytest

from rljob_api.names import Role
from rljob_api.wire.observation import EventKind
from rljob_api.wire.ranks import StepReport
from rljob_workers.dcs.errors import CoordinatorRefused, IncarnationOver
from rljob_workers.dcs.membership.counters import PASSED_OVER
from rljob_workers.dcs.membership.session import RankSession
from tests.integration.dcs.world import World, make_step_report


def of_critic(rank: RankSession, step: int) -> StepReport:
    metrics = {"critic/loss": 2.0 + step, "critic/seconds_waiting": 0.5}
    return make_step_report(rank, step).model_copy(update={"reward": 0.0, "metrics": metrics})


def trained(world: World) -> list[int]:
    return [event.step.step for event in world.reported(EventKind.STEP_TRAINED) if event.step is not None]


@pytest.mark.parametrize("first", [Role.ACTOR, Role.CRITIC])
def test_half_a_step_outlives_the_coordinator_and_is_no_step(critic_world: World, first: Role) -> None:
    world = critic_world
    world.begin()
    actor, critic = world.rank(Role.ACTOR), world.rank(Role.CRITIC)
    reports = [(actor, make_step_report(actor, 0)), (critic, of_critic(critic, 0))]
    if first is Role.CRITIC:
        reports.reverse()
    (one, before), (other, after) = reports
    one.report_step(before)
    world.restart()
    one.report_step(before)
    assert (world.status().step, trained(world)) == (None, [])
    other.report_step(after)
    world.restart()
    for rank, report in reports:  # whose answers were lost
        rank.report_step(report)
    assert trained(world) == [0]
    last = world.status().last_step
    assert last is not None
    assert (last.incarnation, last.reward) == (actor.incarnation, 0.5)
    assert last.metrics == {"critic/loss": 2.0, "critic/seconds_waiting": 0.5, PASSED_OVER: 0.0}


def test_steps_are_joined_one_by_one_however_far_one_role_is_ahead(critic_world: World) -> None:
    world = critic_world
    world.begin()
    actor, critic = world.rank(Role.ACTOR), world.rank(Role.CRITIC)
    for step in range(3):
        actor.report_step(make_step_report(actor, step))
    for step in range(2):
        critic.report_step(of_critic(critic, step))
    assert trained(world) == [0, 1]
    critic.report_step(of_critic(critic, 0))
    last = world.status().last_step
    assert last is not None
    assert (last.step, last.metrics["critic/loss"]) == (1, 3.0)
    text = world.call("GET", "/metrics").decode()
    assert 'rljob_step{job="test"} 1.0' in text
    assert 'rljob_critic_loss{job="test"} 3.0' in text
    assert 'rljob_critic_seconds{job="test",phase="waiting"} 0.5' in text


def test_half_a_step_ends_with_its_epoch(critic_world: World) -> None:
    world = critic_world
    world.begin()
    actor, before = world.rank(Role.ACTOR), world.rank(Role.CRITIC)
    before.report_step(of_critic(before, 0))
    world.raise_epoch(2)
    world.order(2)
    with pytest.raises(IncarnationOver):
        actor.report_step(make_step_report(actor, 0))
    actor, critic = world.rank(Role.ACTOR, epoch=2), world.rank(Role.CRITIC, epoch=2)
    actor.report_step(make_step_report(actor, 0))
    assert trained(world) == []
    critic.report_step(of_critic(critic, 0))
    assert trained(world) == [0]


def test_a_role_that_trains_nothing_reports_no_step(critic_world: World) -> None:
    critic_world.begin()
    rollout = critic_world.rank(Role.ROLLOUT)
    with pytest.raises(CoordinatorRefused, match="of no role that trains"):
        rollout.report_step(make_step_report(rollout, 0))


def test_what_steps_show_is_reported_once_whatever_restarts(world: World) -> None:
    """Two steps in a row: one before a restart of the coordinator, one after it; then an epoch that repeats both."""
    world.begin()
    actor = world.rank(Role.ACTOR)
    nothing = {"samples/learnt_share": 0.0, "samples/invalid_share": 1.0}
    reports = [make_step_report(actor, step).model_copy(update={"metrics": nothing}) for step in range(2)]
    actor.report_step(reports[0])
    world.restart()
    assert world.reported(EventKind.NOTHING_LEARNT) == []
    for report in (reports[0], reports[1], reports[1]):
        actor.report_step(report)
    (event,) = world.reported(EventKind.NOTHING_LEARNT)
    assert event.message == (
        "steps 0 to 1: the policy has learnt from no sample. 100% have no score: look at the reward."
    )
    kinds = [one.kind for one in world.events() if one.kind in (EventKind.STEP_TRAINED, EventKind.NOTHING_LEARNT)]
    assert kinds == [EventKind.STEP_TRAINED, EventKind.STEP_TRAINED, EventKind.NOTHING_LEARNT]
    world.raise_epoch(2)
    world.order(2)
    actor = world.rank(Role.ACTOR, epoch=2)
    for report in reports:
        actor.report_step(report.model_copy(update={"incarnation": actor.incarnation}))
    assert trained(world) == [0, 1, 0, 1]
    assert len(world.reported(EventKind.NOTHING_LEARNT)) == 1
