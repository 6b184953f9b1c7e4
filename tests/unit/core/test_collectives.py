"""Whose fault a broken collective is: the rank that is lost, or the one that did not come."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from rljob_api.names import EXIT_CUT_OFF, EXIT_GROUP_BROKEN, Role
from rljob_api.status import RLJobStatus
from rljob_api.wire.failures import Failure, FailureKind
from rljob_api.wire.identity import PodKey
from rljob_api.wire.launchers import RankProcess
from rljob_operator.core import Observed, RaiseEpoch, Reason, UserRequest, begin, decide
from tests.unit.core.worlds import START, actions_of, key, make_coordinator, make_fact, make_policy, settle

REPLICAS = {Role.ACTOR: 2, Role.ADVANTAGES: 1}
PODS = (key(Role.ACTOR), key(Role.ACTOR, 1), key(Role.ADVANTAGES))
NOW = START + 50
BROKEN = EXIT_GROUP_BROKEN
Recorded = tuple[int | None, bool, int | None]
"""Collectives that a rank has entered, whether it is within the last, its exit code."""


def make_running() -> Observed:
    status, _ = begin(RLJobStatus(), REPLICAS, START)
    observed = Observed(make_policy(), REPLICAS, 100, status, None, tuple(make_fact(pod) for pod in PODS))
    return settle(observed, START + 1)


def reported(observed: Observed, ranks: Sequence[Recorded], *failed: int, **fields: Any) -> Observed:
    """Two actor pods with two ranks each, and reports of those that left."""
    assert observed.coordinator is not None
    pods = list(observed.coordinator.pods)
    processes = [
        RankProcess(
            rank=index % 2,
            pid=index,
            incarnation=f"{index:012x}",
            epoch=1,
            generation=0,
            exit_code=code,
            collectives=entered,
            is_within_collective=within,
        )
        for index, (entered, within, code) in enumerate(ranks)
    ]
    for replica in (0, 1):
        at = next(i for i, pod in enumerate(pods) if pod.pod == key(Role.ACTOR, replica))
        mine = processes[2 * replica : 2 * replica + 2]
        pods[at] = pods[at].model_copy(update={"processes": mine, "ranks": []})
    failures = [report(key(Role.ACTOR, index // 2), processes[index]) for index in failed]
    coordinator = make_coordinator(observed.status, pods, failures=failures, desired=observed.coordinator.desired)
    return replace(observed, coordinator=coordinator.model_copy(update=fields))


def report(pod: PodKey, process: RankProcess) -> Failure:
    code = process.exit_code
    message = "It waited for somebody." if code == BROKEN else "gone."
    return Failure(
        id=f"uid-{pod}/0/{process.incarnation}",
        kind=FailureKind.RANK_EXITED,
        pod=pod,
        rank=process.rank,
        epoch=process.epoch,
        generation=process.generation,
        incarnation=process.incarnation,
        exit_code=code,
        message=f"{pod}.{process.rank} exited with code {code}: {message}",
        at=START,
    )


@pytest.mark.parametrize(
    ("ranks", "failed", "expected", "reason"),
    [
        pytest.param(
            [(7, True, BROKEN), (7, True, BROKEN), (7, True, -9), (7, True, BROKEN)],
            (0, 1, 2, 3),
            "actor-1.0 exited with code -9: gone",
            Reason.RANK_EXITED,
            id="a rank that was killed is named, and not those that left for it",
        ),
        pytest.param(
            [(7, True, BROKEN), (6, False, None), (7, True, BROKEN), (7, True, BROKEN)],
            (2, 3),
            "actor-0.1 went no further than collective 6: actor-1.0 exited with code 76: It waited for somebody",
            Reason.HANG,
            id="a rank that lives and does not come is named",
        ),
        pytest.param(
            [(7, True, BROKEN), (7, True, BROKEN), (7, True, BROKEN), (7, True, None)],
            (0,),
            "actor-1.1 has not come out of collective 7: actor-0.0 exited with code 76: It waited for somebody",
            Reason.HANG,
            id="a rank that hangs within the collective is the one that still runs",
        ),
        pytest.param(
            [(7, True, BROKEN), (None, False, None), (7, True, BROKEN), (7, True, BROKEN)],
            (0,),
            "actor-0.1 went no further than collective 0: actor-0.0 exited with code 76: It waited for somebody",
            Reason.HANG,
            id="one that came to none at all",
        ),
        pytest.param(
            [(7, True, BROKEN), (7, True, BROKEN), (7, True, BROKEN), (7, True, BROKEN)],
            (1,),
            "actor-0.1 exited with code 76: It waited for somebody",
            Reason.RANK_EXITED,
            id="where nothing tells them apart, what was said is said",
        ),
    ],
)
def test_who_is_named(ranks: Sequence[Recorded], failed: Sequence[int], expected: str, reason: Reason) -> None:
    decision = decide(reported(make_running(), ranks, *failed), NOW)
    assert [
        event.message.partition("; the job restarts")[0] for event in decision.events if event.reason is reason
    ] == [expected]
    assert decision.status.restart.global_restarts == 1
    assert len(actions_of(decision, RaiseEpoch)) == 1


def test_those_that_left_do_not_count_beside_the_one_that_was_lost() -> None:
    ranks = [(7, True, BROKEN), (7, True, BROKEN), (7, True, -9), (7, True, BROKEN)]
    decision = decide(reported(make_running(), ranks, 0, 1, 2, 3), NOW)
    assert decision.status.restart.message is not None
    assert "more at the same time" not in decision.status.restart.message


def test_a_failure_of_another_role_does_not_hide_who_broke_the_group() -> None:
    ranks = [(7, True, BROKEN), (6, False, None), (7, True, None), (7, True, None)]
    observed = reported(make_running(), ranks, 0)
    assert observed.coordinator is not None
    other = RankProcess(rank=0, pid=9, incarnation="9" * 12, epoch=1, generation=0, exit_code=1)
    failures = [*observed.coordinator.failures, report(key(Role.ADVANTAGES), other)]
    seen = observed.coordinator.model_copy(update={"failures": failures})
    decision = decide(replace(observed, coordinator=seen), NOW)
    assert decision.status.restart.message is not None
    assert decision.status.restart.message.startswith("actor-0.1 went no further than collective 6")


@pytest.mark.parametrize(
    ("cut_off", "counted"),
    [
        pytest.param(True, 0, id="it was cut off from the coordinator, with its launcher"),
        pytest.param(False, 1, id="it alone could not reach it"),
    ],
)
def test_a_gang_that_broke_since_one_was_cut_off_counts_as_that_one_does(cut_off: bool, counted: int) -> None:
    """Its own report is held back for as long as those of the others, and may come after them."""
    ranks = [(7, True, BROKEN), (6, False, EXIT_CUT_OFF), (7, True, BROKEN), (7, True, BROKEN)]
    observed = reported(make_running(), ranks, 0, 2, 3)
    assert observed.coordinator is not None
    for pod in observed.coordinator.pods:
        pod.processes[:] = [
            process.model_copy(update={"cut_off": cut_off}) if process.exit_code == EXIT_CUT_OFF else process
            for process in pod.processes
        ]
    decision = decide(observed, NOW)
    assert decision.status.restart.message is not None
    assert decision.status.restart.message.startswith("actor-0.1 went no further than collective 6")
    assert decision.status.restart.counted_towards_max == counted


def test_a_rank_that_did_not_come_since_its_pod_does_not_reach_the_coordinator_is_not_counted() -> None:
    ranks = [(7, True, BROKEN), (7, True, BROKEN), (6, False, None), (6, False, None)]
    observed = replace(reported(make_running(), ranks, 0, 1), request=UserRequest(generation=1))
    assert observed.coordinator is not None
    silent = [
        pod.model_copy(update={"poll_age_seconds": 20.0}) if pod.pod == key(Role.ACTOR, 1) else pod
        for pod in observed.coordinator.pods
    ]
    for pods, counted in ((observed.coordinator.pods, 1), (silent, 0)):
        coordinator = observed.coordinator.model_copy(update={"pods": pods})
        decision = decide(replace(observed, coordinator=coordinator), NOW)
        assert decision.status.restart.message is not None
        assert decision.status.restart.message.startswith("actor-1.0, actor-1.1 went no further than collective 6")
        assert decision.status.restart.counted_towards_max == counted
