"""The course of the learning rate, step by step."""

import pytest

from rljob_api.manifest import parse_manifest
from rljob_workers.trainers.optimizer_steps import Fade, LearningRate, constant, cosine, linear
from rljob_workers.trainers.settings import optimizer_config, total_steps

COURSES = [
    pytest.param(constant, 0, 4, 0.0, [1, 1, 1, 1], id="constant"),
    pytest.param(constant, 3, 6, 0.0, [0.25, 0.5, 0.75, 1, 1, 1], id="warm-up, then constant"),
    pytest.param(linear, 0, 4, 0.0, [1, 0.75, 0.5, 0.25, 0, 0], id="a line, and steps beyond the end"),
    pytest.param(linear, 1, 5, 0.2, [0.5, 1, 0.8, 0.6, 0.4, 0.2], id="warm-up, then a line to another end"),
    pytest.param(cosine, 0, 4, 0.0, [1, 0.853553, 0.5, 0.146447, 0], id="half a cosine"),
    pytest.param(cosine, 1, 5, 0.5, [0.5, 1, 0.926777, 0.75, 0.573223, 0.5], id="half a cosine to another end"),
    pytest.param(linear, 5, 3, 0.0, [1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1, 0], id="a job shorter than its warm-up"),
]


@pytest.mark.parametrize(("fade", "warmup", "total", "lowest", "rates"), COURSES)
def test_each_step_has_its_rate(fade: Fade, warmup: int, total: int, lowest: float, rates: list[float]) -> None:
    course = LearningRate(1.0, lowest, fade, warmup, total)
    assert [course.of(step) for step in range(len(rates))] == pytest.approx(rates, abs=1e-6)


def test_the_steps_of_a_job_are_derived_from_its_spec() -> None:
    spec = parse_manifest(
        """
metadata: {name: tiny}
spec:
  model: {config: {}}
  data: {prompts: prompts.jsonl}
  rollout: {numRollouts: 5, batchSize: 8, samplesPerPrompt: 4}
  training:
    globalBatchSize: 16
    maxTokensPerMicroBatch: 4096
    epochsPerRollout: 3
    optimizer: {learningRate: 0.5, schedule: Linear, minLearningRate: 0.1}
""",
        "tiny",
    ).spec
    assert total_steps(spec) == 5 * 2 * 3
    course = optimizer_config(spec.training.optimizer, total_steps(spec)).learning_rate
    assert (course.of(0), course.of(15), course.of(30)) == pytest.approx((0.5, 0.3, 0.1))
