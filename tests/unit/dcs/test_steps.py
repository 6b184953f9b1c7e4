"""A step that two roles have trained is reported as one: the leading role's, with the figures of both."""

from rljob_api.names import Epoch, Role, WeightVersion
from rljob_api.wire.identity import Incarnation, RankKey
from rljob_api.wire.ranks import StepReport
from rljob_workers.dcs.coordinator.steps import joined


def report(role: Role, reward: float, **metrics: float) -> StepReport:
    key = RankKey(role=role, replica=0)
    return StepReport(
        incarnation=Incarnation(key=key, epoch=Epoch(1), generation=0, id="a" * 12),
        step=3,
        version=WeightVersion(4),
        reward=reward,
        loss=reward / 2,
        metrics=metrics,
        staleness=1,
        samples=4,
        tokens=40,
        seconds=2.0,
    )


def test_the_leading_role_speaks_and_the_figures_are_of_all() -> None:
    actor = report(Role.ACTOR, 0.5, grad_norm=1.0)
    critic = report(Role.CRITIC, 0.0, value_loss=3.0, grad_norm=7.0)
    expected = actor.model_copy(update={"metrics": {"grad_norm": 1.0, "value_loss": 3.0}})
    assert joined({Role.CRITIC: critic, Role.ACTOR: actor}) == expected
    assert joined({Role.ACTOR: actor, Role.CRITIC: critic}) == expected


def test_a_step_of_one_role_is_its_own_report() -> None:
    actor = report(Role.ACTOR, 0.5, grad_norm=1.0)
    assert joined({Role.ACTOR: actor}) == actor
