"""The course of the learning rate, step by step."""

import pytest

from rljob_api.manifest import parse_manifest
from rljob_workers.trainers.optimizer_steps import Fade, LearningRate, constant, cosine, linear
from rljob_workers.trainers.settings import (
    CriticSettings,
    actor_steps,
    critic_config,
    optimizer_config,
    total_steps,
    trainer_config,
)

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


PPO = """
metadata: {name: ppo}
spec:
  model: {config: {tokenizer: {kind: Character, alphabet: 0123456789=}}}
  data: {prompts: prompts.jsonl}
  algorithm: {advantage: Gae}
  rollout: {numRollouts: 10, batchSize: 8, samplesPerPrompt: 4}
  training:
    globalBatchSize: 32
    maxTokensPerMicroBatch: 4096
    criticOnlySteps: 5
    optimizer: {learningRate: 1, schedule: Linear}
  roles: {critic: {}}
"""

ACTOR_COURSES = [
    pytest.param({}, [1, 0.8, 0.6, 0.4, 0.2], id="the actor's course is over the five rollouts that it trains on"),
    pytest.param(
        {"warmup_steps": 2},
        [1 / 3, 2 / 3, 1, 2 / 3, 1 / 3],
        id="its warm-up begins with the first rollout that it trains on",
    ),
    pytest.param({"min_learning_rate": 0.5}, [1, 0.9, 0.8, 0.7, 0.6], id="down to another end"),
]


@pytest.mark.parametrize(("optimizer", "rates"), ACTOR_COURSES)
def test_rollouts_of_the_critic_alone_are_no_part_of_the_actors_course(
    optimizer: dict[str, float], rates: list[float]
) -> None:
    spec = parse_manifest(PPO, "ppo").spec
    chosen = spec.training.optimizer.model_copy(update=optimizer)
    spec = spec.model_copy(update={"training": spec.training.model_copy(update={"optimizer": chosen})})
    actor = trainer_config(spec).optimizer.learning_rate
    assert [actor.of(step) for step in range(5)] == pytest.approx(rates)
    critic = critic_config(CriticSettings.of(spec), spec).optimizer.learning_rate
    assert critic.total_steps == 10
    assert critic.of(9) == pytest.approx(
        chosen.min_learning_rate + (1 - chosen.min_learning_rate) / (10 - chosen.warmup_steps)
    )


def test_a_job_that_trains_the_critic_alone_has_no_actor_steps() -> None:
    spec = parse_manifest(PPO.replace("criticOnlySteps: 5", "criticOnlySteps: 20"), "ppo").spec
    assert actor_steps(spec) == 0
    assert trainer_config(spec).optimizer.learning_rate.of(0) == 1
