"""What `/metrics` shows of the last step: names that steps report, and of a critic what there is."""

from __future__ import annotations

import pytest

from rljob_api.names import Epoch, Role, WeightVersion
from rljob_api.wire.identity import Incarnation, RankKey
from rljob_api.wire.ranks import StepReport
from rljob_workers.algorithms.value import ValueObjective
from rljob_workers.dcs.coordinator.metrics import FAMILIES, FROM_REPORT, step_samples
from rljob_workers.telemetry.exposition import render
from rljob_workers.training.step_metrics import CRITIC_METRICS, METRICS

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
        pytest.param({"critic/skipped_steps": 1.0}, set(), id="a step that it skipped"),
        pytest.param({"critic/loss": 1.0}, {"rljob_critic_loss"}, id="returns that do not differ explain nothing"),
    ],
)
def test_what_a_step_does_not_have_is_not_shown(metrics: dict[str, float], shown: set[str]) -> None:
    assert {line.partition("{")[0] for line in page(metrics) if "critic" in line} == shown


def test_what_is_shown_is_what_steps_report() -> None:
    reported = {figure.name for figure in (*METRICS, *CRITIC_METRICS, *ValueObjective.metrics)}
    assert FROM_REPORT.keys() <= reported
    assert {figure.name for figure in CRITIC_METRICS if "/seconds_" in figure.name} <= FROM_REPORT.keys()
