"""The end of an evaluation, by a real coordinator: event, status, `/metrics`; and scores of other sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rljob_api.names import Role, WeightVersion
from rljob_api.spec import RLJob
from rljob_api.spec.evaluation import EvaluationDataSpec, EvaluationSetSpec, EvaluationSpec
from rljob_api.wire.observation import EvaluationObservation, EventKind, SetFigure
from rljob_workers.evaluation import SampleResult, digest_of
from rljob_workers.pipeline import queue_shape
from rljob_workers.transfer_queue.client import TransferQueueClient
from tests.integration.dcs.conftest import running
from tests.integration.dcs.world import World, eventually, job
from tests.integration.transfer_queue.servers import Servers
from tests.weights import weight

SIZE, FIRST = 4, WeightVersion(0)


def evaluated(pass_reward: float = 1.0) -> RLJob:
    """Of two prompts with two samples each."""
    data = EvaluationDataSpec(prompts="p.jsonl")
    of_set = EvaluationSetSpec(name="gsm8k", data=data, samples_per_prompt=2, pass_reward=pass_reward)
    evaluation = EvaluationSpec(sets=[of_set], every_steps=1, at_start=True)
    manifest = job()
    return manifest.model_copy(update={"spec": manifest.spec.model_copy(update={"evaluation": evaluation})})


@pytest.fixture
def world(shared_servers: Servers, tmp_path: Path) -> Iterator[World]:
    yield from running(shared_servers, tmp_path, evaluated())


def digest(manifest: RLJob) -> str:
    assert manifest.spec.evaluation is not None
    return digest_of(manifest.spec.evaluation, manifest.spec.seed, [SIZE])


def result(prompt: int, reward: float, source: str) -> bytes:
    return SampleResult("gsm8k", prompt, source, reward, 10, truncated=False).dump()


RESULTS = {0: result(0, 1.0, "a"), 1: result(0, 0.5, "a"), 2: result(1, 0.0, "b"), 3: result(1, 0.0, "b")}


def client_of(world: World) -> TransferQueueClient:
    rank = world.rank(Role.ROLLOUT)
    return TransferQueueClient(world.endpoints, queue_shape(world.job.spec), rank.incarnation)


def test_the_end_is_in_events_status_and_metrics_also_after_a_restart(world: World) -> None:
    world.begin()
    with closing(client_of(world)) as queue:
        assert world.status().evaluation is None
        assert "rljob_evaluation" not in world.call("GET", "/metrics").decode()
        assert queue.evaluation.claim(weight(0), digest(world.job), SIZE, SIZE, []) == [0, 1, 2, 3]
        assert queue.evaluation.put(FIRST, RESULTS) == SIZE
        eventually(lambda: queue.evaluation.is_over(FIRST, timeout=1.0), "the end")
    world.restart()
    (event,) = eventually(lambda: world.reported(EventKind.EVALUATED), "the event")
    assert event.message == "Version 0 was evaluated: gsm8k mean@2 0.3750, pass@2 0.5000."
    figure = SetFigure(name="gsm8k", metric="mean@2", value=0.375)
    assert world.status().evaluation == EvaluationObservation(version=FIRST, sets=[figure])
    shown = {line for line in world.call("GET", "/metrics").decode().splitlines() if "rljob_evaluation" in line}
    assert {
        'rljob_evaluation_version{job="test"} 0.0',
        'rljob_evaluation_reward_mean{job="test",set="gsm8k",k="2"} 0.375',
        'rljob_evaluation_reward_mean{job="test",set="gsm8k",k="2",source="a"} 0.75',
        'rljob_evaluation_pass_share{job="test",set="gsm8k",k="1"} 0.25',
        'rljob_evaluation_pass_share{job="test",set="gsm8k",k="2",source="b"} 0.0',
        'rljob_evaluation_response_length_tokens{job="test",set="gsm8k"} 10.0',
        "# TYPE rljob_evaluation_truncated_share gauge",
    } <= shown


def test_prompts_that_were_set_aside_are_counted_and_named(world: World) -> None:
    world.begin()
    with closing(client_of(world)) as queue:
        work = digest(world.job)
        for _ in range(2):
            assert queue.evaluation.claim(weight(0), work, SIZE, SIZE, []) == [0, 1, 2, 3]
            queue.evaluation.hand_back([0, 1, 2, 3], killed=True)
        for _ in range(world.job.spec.rollout.max_prompt_kills - 2):
            assert queue.evaluation.claim(weight(0), work, SIZE, SIZE, []) == [0, 1]
            queue.evaluation.hand_back([0, 1], killed=True)
        assert queue.evaluation.claim(weight(0), work, SIZE, SIZE, []) == [2, 3]
        assert queue.evaluation.put(FIRST, {number: RESULTS[number] for number in (2, 3)}) == 2
    (event,) = eventually(lambda: world.reported(EventKind.EVALUATED), "the event")
    assert event.message == (
        "Version 0 was evaluated: gsm8k mean@2 0.0000, pass@2 0.0000. Set aside of gsm8k, since an engine died of each"
        " too often: prompt 0."
    )
    assert event.evaluation is not None
    assert event.evaluation.metrics["eval/gsm8k/set_aside"] == 1
    assert event.evaluation.samples == 2


def test_scores_of_other_sets_are_no_result_and_are_made_again(world: World) -> None:
    """A job that was resumed with other sets when all samples were scored and their end was not reported."""
    world.begin()
    with closing(client_of(world)) as queue:
        before = digest(evaluated(pass_reward=0.5))
        assert queue.evaluation.claim(weight(0), before, SIZE, SIZE, []) == [0, 1, 2, 3]
        assert queue.evaluation.put(FIRST, RESULTS) == SIZE
        assert not queue.evaluation.is_over(FIRST, timeout=2.0), "the coordinator looks several times"
        assert world.status().evaluation is None
        assert queue.evaluation.claim(weight(0), digest(world.job), SIZE, SIZE, []) == [0, 1, 2, 3]
        assert queue.evaluation.put(FIRST, RESULTS) == SIZE
        eventually(lambda: queue.evaluation.is_over(FIRST, timeout=1.0), "the end")
    (event,) = world.reported(EventKind.EVALUATED)
    assert event.message == "Version 0 was evaluated: gsm8k mean@2 0.3750, pass@2 0.5000."
