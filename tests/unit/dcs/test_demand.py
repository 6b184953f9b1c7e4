"""What the coordinator says of a starved actor and idle rollouts: sums over incarnations, as of the end of a step."""

from rljob_api.names import Epoch, Role
from rljob_api.wire.identity import Incarnation, RankKey
from rljob_api.wire.observation import DemandObservation
from rljob_api.wire.ranks import Beat, RankState
from rljob_workers.dcs.coordinator.demand import FAMILIES, Demand


def make_beat(role: Role, id_: str, **counters: float) -> Beat:
    key = RankKey(role=role, replica=0, rank=0)
    incarnation = Incarnation(key=key, epoch=Epoch(1), generation=0, id=id_ * 12)
    return Beat(incarnation=incarnation, state=RankState.READY, counters=counters)


def sums(demand: Demand) -> dict[str, float]:
    return {name: value for name, _, value in demand.samples() if value}


def test_what_ranks_lost_is_summed_by_role() -> None:
    demand = Demand(lambda: 5.0)
    for beat in (
        make_beat(Role.ACTOR, "a", loop_seconds=0.0, starved_seconds=0.0),
        make_beat(Role.ROLLOUT, "b", loop_seconds=0.0, withheld_seconds=0.0),
        make_beat(Role.ROLLOUT, "c", loop_seconds=0.0, withheld_seconds=0.0),
        make_beat(Role.REFERENCE, "d", loop_seconds=9.0),
        make_beat(Role.ACTOR, "a", loop_seconds=10.0, starved_seconds=4.0),
        make_beat(Role.ROLLOUT, "b", loop_seconds=10.0, withheld_seconds=1.5),
        make_beat(Role.ROLLOUT, "c", loop_seconds=8.0, withheld_seconds=0.5),
        make_beat(Role.ACTOR, "a", loop_seconds=12.0, starved_seconds=4.5),
    ):
        demand.receive(beat)
    assert sums(demand) == {
        "rljob_actor_loop_seconds_total": 12.0,
        "rljob_actor_starved_seconds_total": 4.5,
        "rljob_rollout_loop_seconds_total": 18.0,
        "rljob_rollout_withheld_seconds_total": 2.0,
    }
    assert {name for name, _, _ in demand.samples()} == set(FAMILIES)


def test_the_next_incarnation_counts_from_nothing_and_the_last_one_stays_counted() -> None:
    demand = Demand(lambda: 5.0)
    demand.receive(make_beat(Role.ACTOR, "a"))
    demand.receive(make_beat(Role.ACTOR, "a", loop_seconds=10.0))
    demand.forget("a" * 12)
    demand.receive(make_beat(Role.ACTOR, "b"))
    demand.receive(make_beat(Role.ACTOR, "b", loop_seconds=3.0))
    assert sums(demand) == {"rljob_actor_loop_seconds_total": 13.0}


def test_a_coordinator_that_began_again_does_not_count_what_was_before_it() -> None:
    demand = Demand(lambda: 5.0)
    demand.receive(make_beat(Role.ACTOR, "a", loop_seconds=1000.0))
    demand.receive(make_beat(Role.ACTOR, "a", loop_seconds=1002.0))
    assert sums(demand) == {"rljob_actor_loop_seconds_total": 2.0}


def test_a_step_is_reported_with_what_the_sums_were_when_it_ended() -> None:
    times = iter([5.0, 17.0])
    demand = Demand(lambda: next(times))
    assert demand.at_step is None
    demand.receive(make_beat(Role.ACTOR, "a"))
    demand.receive(make_beat(Role.ACTOR, "a", loop_seconds=10.0, starved_seconds=4.0))
    demand.step_ended(3)
    demand.receive(make_beat(Role.ACTOR, "a", loop_seconds=11.0, starved_seconds=5.0))
    assert demand.at_step == DemandObservation(
        since=5.0,
        at=17.0,
        step=3,
        actor_seconds=10.0,
        starved_seconds=4.0,
        rollout_seconds=0.0,
        withheld_seconds=0.0,
    )
    demand.epoch_opened()
    assert demand.at_step is None


def test_what_rewards_were_asked_again_is_named_by_what_they_scored() -> None:
    demand = Demand(lambda: 5.0)
    asked = {"reward_retries": 3.0, "evaluation_reward_retries": 2.0, "judge_replies_unread": 1.0}
    demand.receive(make_beat(Role.ROLLOUT, "a", **dict.fromkeys(asked, 0.0)))
    assert demand.trouble == {"prompts_passed_over": 0.0}
    demand.receive(make_beat(Role.ROLLOUT, "a", **asked))
    assert demand.trouble == {"prompts_passed_over": 0.0, **asked}


def test_a_step_has_what_was_lost_since_the_one_before() -> None:
    demand = Demand(lambda: 5.0)
    demand.receive(make_beat(Role.ACTOR, "a"))
    assert demand.idle_shares() == {}
    demand.receive(make_beat(Role.ACTOR, "a", loop_seconds=10.0, starved_seconds=4.0))
    demand.receive(make_beat(Role.ROLLOUT, "b", loop_seconds=0.0))
    demand.receive(make_beat(Role.ROLLOUT, "b", loop_seconds=8.0, withheld_seconds=2.0))
    assert demand.idle_shares() == {"idle/actor": 0.4, "idle/engines": 0.25}
    demand.receive(make_beat(Role.ACTOR, "a", loop_seconds=20.0, starved_seconds=5.0))
    assert demand.idle_shares() == {"idle/actor": 0.1, "idle/engines": 0.25}, "no rollout has reported since"
