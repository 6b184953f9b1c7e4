"""The work of the coordinator's thread and its event loop grows no faster than its input.

A hundred thousand of what each function takes; `tests/integration/dcs/test_many_pods.py` has those that write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from rljob_api.names import Epoch, Lineage, Role, RolloutId, WeightVersion
from rljob_api.spec.evaluation import EvaluationDataSpec, EvaluationSetSpec
from rljob_api.spec.measured import KeepBestSpec, StopWhenSpec
from rljob_api.wire.checkpoints import CheckpointAttempt, CheckpointPart, Measured, MetricValues, PartWriter
from rljob_api.wire.epochs import DesiredState, PodOrder, PodPhase
from rljob_api.wire.identity import Incarnation, PodKey, RankKey, WeightId
from rljob_api.wire.launchers import LauncherHello
from rljob_api.wire.observation import EvaluationReport
from rljob_api.wire.queue import LeaseStats, PartitionStats, QueueStats, TaskRows, TaskStats, TicketHolder
from rljob_api.wire.ranks import Beat, RankState
from rljob_workers.dcs.coordinator.background_care import Replica, to_take_back
from rljob_workers.dcs.coordinator.best_checkpoint import best_of
from rljob_workers.dcs.coordinator.context import Notifier, Topic
from rljob_workers.dcs.coordinator.demand import Advance, Demand
from rljob_workers.dcs.coordinator.launchers import SeqReport, UnorderedLaunchers
from rljob_workers.dcs.coordinator.queue_room import FAMILIES, queue_samples
from rljob_workers.dcs.coordinator.rank_incarnations import RankStanding, readiness_mark
from rljob_workers.dcs.coordinator.router import read_body
from rljob_workers.dcs.coordinator.server_gate import Closed, OpeningPatience, launchers_awaited
from rljob_workers.dcs.coordinator.stop_condition import reached
from rljob_workers.evaluation import SampleResult, metrics_of, sentence_of_set_aside, set_aside
from rljob_workers.telemetry.evaluation_series import samples_of
from rljob_workers.telemetry.exposition import render
from rljob_workers.transfer_queue.inspection import drain_blockers, retained_by_drain
from tests.growth import MOST, growth

Work = Callable[[], object]
Make = Callable[[int], Work]

MANY, FEWER = 100_000, 10_000
"""Fewer of what takes longer to make than to work on."""


def a_set(k: int) -> list[EvaluationSetSpec]:
    data = EvaluationDataSpec(prompts="p.jsonl")
    return [EvaluationSetSpec(name="a", data=data, samples_per_prompt=k, pass_reward=0.5)]


def metrics_of_prompts(number: int) -> Work:
    results = [SampleResult("a", prompt, f"{prompt % 4}", prompt % 7 / 7, 4, False) for prompt in range(number)]
    return partial(metrics_of, results, a_set(1))


def metrics_of_sources(number: int) -> Work:
    results = [SampleResult("a", prompt, f"{prompt}", 1.0, 4, False) for prompt in range(number)]
    return partial(metrics_of, results, a_set(1))


def metrics_of_samples(number: int) -> Work:
    results = [SampleResult("a", sample // 8, "x", sample % 7 / 7, 4, False) for sample in range(number)]
    return partial(metrics_of, results, a_set(8))


def prompts_set_aside(number: int) -> Work:
    return lambda: sentence_of_set_aside(set_aside(range(number), f"digest:{number}/1", a_set(1)))


def replicas(number: int) -> Work:
    known = [Replica(f"{one:012x}", 9.0 if one else 0.1, is_idle=not one) for one in range(number)]
    return partial(to_take_back, known, 1.0)


def pod(number: int) -> PodKey:
    return PodKey(role=Role.ROLLOUT, replica=number)


def incarnation(number: int) -> Incarnation:
    key = RankKey(role=Role.ROLLOUT, replica=number, rank=0)
    return Incarnation(key=key, epoch=Epoch(1), generation=0, id=f"{number:012x}")


def launchers_that_wait(number: int) -> Work:
    hellos = [LauncherHello(pod=pod(one), pod_uid=f"{one}", launcher=f"{one:012x}", pid=1) for one in range(number)]

    def work() -> None:
        unordered = UnorderedLaunchers()
        for hello in hellos:
            unordered.add(hello)
        for hello in hellos:
            unordered.remove(hello.pod)

    return work


def ready_ranks(number: int) -> Work:
    orders = [PodOrder(pod=pod(one), epoch=Epoch(1), generation=0, phase=PodPhase.RUN) for one in range(number)]
    desired = DesiredState(epoch=Epoch(1), pods=orders, replicas={"rollout": number})
    standings = {f"{pod(one)}.0": RankStanding(incarnation(one), ready=True) for one in range(number)}
    return partial(readiness_mark, Role.ROLLOUT, desired, {str(pod(one)): 1 for one in range(number)}, standings)


def reports_of_launchers(number: int) -> Work:
    names = [f"{one:012x}" for one in range(number)]
    reports = {name: SeqReport(float(place % 2), 1) for place, name in enumerate(names)}
    closed, patience = Closed(since=1.0, coordinator_is_new=False), OpeningPatience(3.0, 1.0)
    return partial(launchers_awaited, closed, frozenset(names), reports, 2.0, patience)


def beats(number: int) -> Work:
    held = WeightId(lineage=Lineage(1), version=WeightVersion(1))
    counters = {"loop_seconds": 1.0, "withheld_seconds": 0.5}
    received = [
        Beat(incarnation=incarnation(one), state=RankState.READY, holds=held, counters=counters, progress=one)
        for one in range(number)
    ]

    def work() -> None:
        advance, demand = Advance(lambda: 1.0), Demand(lambda: 1.0)
        for beat in received:
            advance.receive(beat)
            demand.receive(beat)
        demand.step_ended(1)
        for beat in received:
            advance.forget(beat.incarnation.id)
            demand.forget(beat.incarnation.id)

    return work


def stats(number: int) -> QueueStats:
    rows = [
        TaskRows(task=name, unready=1, ready=1, claimed=1, done=1, batches=0) for name in ("advantages", "actor_train")
    ]
    return QueueStats(
        job="a",
        epoch=Epoch(1),
        lineage=Lineage(1),
        seq=1,
        published=WeightVersion(number // 2),
        recorded=None,
        groups_issued=0,
        groups_capacity=0,
        withheld=None,
        draining_since=None,
        tickets_in_work=number,
        tickets_returned=0,
        holders=[TicketHolder(holder=f"rollout-{one}.0", tickets=1) for one in range(number)],
        partitions=[
            PartitionStats(
                partition=f"train_{one}",
                rollout_id=RolloutId(one),
                groups_put=1,
                groups_issued=1,
                groups_returned=0,
                groups_absent=0,
                groups_missing=0,
                tasks=rows,
            )
            for one in range(number)
        ],
        tasks=[
            TaskStats(
                task="actor_train", kind="Training", publishes=True, leases=1, rows_claimed=0, rows_ready=0, batches=0
            ),
            TaskStats(task="advantages", kind="Forward", leases=1, rows_claimed=1, rows_ready=0, batches=0),
        ],
        leases=[
            LeaseStats(
                lease=f"{one}",
                task="advantages",
                partition="train_1",
                holder="nobody",
                rows=1,
                age_seconds=1.0,
                expires_in_seconds=1.0,
            )
            for one in range(number)
        ],
        units=[],
        garbage_chunks=0,
        garbage_partitions=0,
        dropped_retained_rows=0,
        dropped_unclaimed_rows=0,
    )


def page_of_the_queue(number: int) -> Work:
    known = stats(number)
    return lambda: render(FAMILIES, (("job", "a"),), queue_samples(known))


def a_drain(number: int) -> Work:
    known = stats(number)
    return lambda: [*drain_blockers(known), *retained_by_drain(known)]


def figures_of_an_evaluation(number: int) -> Work:
    metrics = {f"eval/a/source{one}/mean@1": 1.0 for one in range(number)}
    report = EvaluationReport.model_construct(version=WeightVersion(1), samples=number, metrics=metrics)
    return lambda: list(samples_of(report))


def best_of_versions(number: int) -> Work:
    values = {one: one % 7 / 7 for one in range(number)}
    known = Measured(
        candidates=MetricValues(metric="reward", values=values), folders={one: f"{one}" for one in range(number)}
    )
    return partial(best_of, KeepBestSpec(metric="reward"), known)


def a_stop_condition(number: int) -> Work:
    condition = StopWhenSpec(metric="reward", above=0.5, for_steps=1000)
    return partial(reached, condition, dict.fromkeys(range(number), 1.0), number - 1)


def parts_of_a_checkpoint(number: int) -> Work:
    writers = [PartWriter(role=Role.ACTOR, rank=rank) for rank in range(number)]
    weight = WeightId(lineage=Lineage(1), version=WeightVersion(1))
    parts = [CheckpointPart(writer=writer, files={}) for writer in writers]
    attempt = CheckpointAttempt(epoch=1, id=weight, wanted=writers, parts=parts)
    return lambda: (attempt.is_whole, attempt.missing, attempt.to_begin)


def polls_without_news(number: int) -> Work:
    """All of them wait for the same topic, and leave when their time is over."""

    async def wait_all() -> None:
        notifier = Notifier(asyncio.get_running_loop())
        count = notifier.count(Topic.WEIGHTS)
        await asyncio.gather(*(notifier.wait(Topic.WEIGHTS, count, 0.001) for _ in range(number)))

    return lambda: asyncio.run(wait_all())


def polls_with_news(number: int) -> Work:
    async def wait_all() -> None:
        notifier = Notifier(asyncio.get_running_loop())
        count = notifier.count(Topic.WEIGHTS)
        waiting = [asyncio.create_task(notifier.wait(Topic.WEIGHTS, count, 600.0)) for _ in range(number)]
        await asyncio.sleep(0)
        notifier.notify(Topic.WEIGHTS)
        await asyncio.gather(*waiting)

    return lambda: asyncio.run(wait_all())


def a_body_in_parts(number: int) -> Work:
    async def read() -> None:
        left = number

        async def receive() -> dict[str, object]:
            nonlocal left
            left -= 1
            return {"type": "http.request", "body": bytes(1000), "more_body": left > 0}

        assert len(await read_body(receive)) == 1000 * number

    return lambda: asyncio.run(read())


@pytest.mark.parametrize(
    ("make", "size"),
    [
        pytest.param(metrics_of_prompts, MANY, id="prompts of an evaluation"),
        pytest.param(metrics_of_samples, MANY, id="samples of an evaluation"),
        pytest.param(metrics_of_sources, MANY, id="sources of an evaluation"),
        pytest.param(prompts_set_aside, MANY, id="prompts of an evaluation that were set aside"),
        pytest.param(figures_of_an_evaluation, MANY, id="figures of an evaluation on the page of metrics"),
        pytest.param(replicas, MANY, id="replicas that do nothing"),
        pytest.param(launchers_that_wait, FEWER, id="launchers that wait for orders"),
        pytest.param(ready_ranks, FEWER, id="ranks of a role that is ready"),
        pytest.param(reports_of_launchers, MANY, id="launchers that the control Redis waits for"),
        pytest.param(beats, FEWER, id="beats"),
        pytest.param(page_of_the_queue, FEWER, id="partitions and leases on the page of metrics"),
        pytest.param(a_drain, FEWER, id="partitions and leases of a drain"),
        pytest.param(best_of_versions, MANY, id="versions that compete"),
        pytest.param(a_stop_condition, MANY, id="values of stopWhen"),
        pytest.param(parts_of_a_checkpoint, FEWER, id="parts of a checkpoint"),
        pytest.param(polls_without_news, FEWER, id="polls that end without news"),
        pytest.param(polls_with_news, FEWER, id="polls that news end"),
        pytest.param(a_body_in_parts, FEWER, id="parts of a request's body"),
    ],
)
def test_ten_times_as_much_is_not_a_hundred_times_the_work(make: Make, size: int) -> None:
    assert growth(make, size) < MOST
