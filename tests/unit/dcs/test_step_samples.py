"""What `/metrics` shows of the last step: names that steps report, and of a critic what there is."""

from __future__ import annotations

import pytest

from rljob_api.names import Epoch, Role, WeightVersion
from rljob_api.wire.identity import Incarnation, RankKey
from rljob_api.wire.ranks import StepReport
from rljob_workers.algorithms.supervised import SupervisedObjective
from rljob_workers.algorithms.value import ValueObjective
from rljob_workers.dcs.coordinator.metrics import FAMILIES, step_samples
from rljob_workers.telemetry.exposition import render
from rljob_workers.telemetry.step_series import REPORTED_APART, UNITS, series_of
from rljob_workers.trainers.megatron.expert_load import EXPERT_METRICS
from rljob_workers.training.step_metrics import CRITIC_METRICS, METRICS
from tests.objectives import clip_objective

OF_CRITIC = {
    "critic/loss": 0.25,
    "critic/explained_variance": -0.5,
    "critic/clip_fraction": 0.125,
    "critic/grad_norm": 3.0,
    "critic/seconds_train": 1.5,
    "critic/seconds_values": 0.5,
    "critic/seconds_stage_checkpoint": 0.25,
    "critic/seconds_waiting": 2.0,
}


def page(metrics: dict[str, float]) -> list[str]:
    """Lines of samples of a step with these figures."""
    report = StepReport(
        incarnation=Incarnation(key=RankKey(role=Role.ACTOR, replica=0), epoch=Epoch(1), generation=0, id="a" * 12),
        step=3,
        version=WeightVersion(4),
        reward=0.5,
        loss=0.1,
        metrics=metrics,
        staleness=1,
        samples=4,
        tokens=40,
        seconds=2.0,
    )
    return [line for line in render(FAMILIES, (("job", "demo"),), step_samples(report)).splitlines() if line[0] != "#"]


def test_a_critic_s_figures_are_shown() -> None:
    of_critic = [line for line in page({"reward/mean": 0.5, **OF_CRITIC}) if "critic" in line]
    assert of_critic == [
        'rljob_critic_clipped_share{job="demo"} 0.125',
        'rljob_critic_explained_variance{job="demo"} -0.5',
        'rljob_critic_grad_norm{job="demo"} 3.0',
        'rljob_critic_loss{job="demo"} 0.25',
        'rljob_critic_seconds{job="demo",phase="train"} 1.5',
        'rljob_critic_seconds{job="demo",phase="values"} 0.5',
        'rljob_critic_seconds{job="demo",phase="stage_checkpoint"} 0.25',
        'rljob_critic_seconds{job="demo",phase="waiting"} 2.0',
    ]


@pytest.mark.parametrize(
    ("metrics", "shown"),
    [
        pytest.param({"samples/invalid_share": 0.5}, set(), id="a job without one"),
        pytest.param({"critic/skipped_steps": 1.0}, {"rljob_critic_skipped_steps"}, id="a step that it skipped"),
        pytest.param({"critic/loss": 1.0}, {"rljob_critic_loss"}, id="returns that do not differ explain nothing"),
    ],
)
def test_what_a_step_does_not_have_is_not_shown(metrics: dict[str, float], shown: set[str]) -> None:
    assert {line.partition("{")[0] for line in page(metrics) if "critic" in line} == shown


def test_every_figure_that_steps_report_has_a_series_of_its_unit() -> None:
    figures = (*METRICS, *CRITIC_METRICS)
    units = {figure.name: figure.unit for figure in figures if figure.name not in REPORTED_APART}
    for objective in (clip_objective(kl=0.1, cap=2.0), SupervisedObjective(), ValueObjective()):
        units |= {metric.name: metric.unit for metric in objective.metrics}
    for metric in EXPERT_METRICS:
        units |= {metric.name: metric.unit, metric.name.replace("experts/", "critic/experts_"): metric.unit}
    assert dict(UNITS) == units, "mend the table of telemetry/step_series.py"


@pytest.mark.parametrize(
    ("figure", "line"),
    [
        pytest.param("policy/entropy", 'rljob_policy_entropy_nats{job="demo"} 0.5', id="the unit is appended"),
        pytest.param("policy/clip_fraction_low", 'rljob_policy_clip_fraction_low{job="demo"} 0.5', id="a share"),
        pytest.param("policy/ratio", 'rljob_policy_ratio{job="demo"} 0.5', id="no unit"),
        pytest.param(
            "throughput/tokens_per_second", 'rljob_throughput_tokens_per_second{job="demo"} 0.5', id="a rate says so"
        ),
        pytest.param("staleness/mean", 'rljob_token_staleness{job="demo"} 0.5', id="a name of before the rule"),
        pytest.param("seconds/train", 'rljob_actor_seconds{job="demo",phase="train"} 0.5', id="phases are one family"),
        pytest.param(
            "reward/format", 'rljob_step_metric{job="demo",metric="reward/format"} 0.5', id="a reward's own metric"
        ),
        pytest.param(
            'rollout/a"b', 'rljob_step_metric{job="demo",metric="rollout/a\\"b"} 0.5', id="a name that is no word"
        ),
    ],
)
def test_a_figure_is_shown_by_the_rule(figure: str, line: str) -> None:
    assert line in page({figure: 0.5})


@pytest.mark.parametrize("figure", [*REPORTED_APART, "prompts_passed_over"])
def test_what_the_page_has_elsewhere_is_shown_once(figure: str) -> None:
    assert page({figure: 0.5}) == page({})


def test_no_two_figures_are_one_series() -> None:
    shown = [series_of(name) for name in (*UNITS, *REPORTED_APART)]
    assert len({*shown}) == len(shown)


def test_a_family_has_help_with_the_unit() -> None:
    assert FAMILIES["rljob_policy_entropy_nats"].text == (
        "policy/entropy of the last step (nats): docs/metrics.md has its formula."
    )
