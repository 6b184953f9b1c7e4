"""The work list of an evaluation: each sample is scored once, whatever dies, and none is lost."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from rljob_api.names import Role, WeightVersion
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.errors import Fenced
from rljob_workers.transfer_queue.types import EvaluationState, EvaluationWaits, Withheld
from tests.integration.transfer_queue.job import Job
from tests.weights import weight

MakeJob = Callable[..., Job]
FIRST = WeightVersion(0)


def claim(client: TransferQueueClient, limit: int, *in_work: int, digest: str = "d") -> list[int] | EvaluationWaits:
    return client.evaluation.claim(weight(0), digest, 5, limit, in_work)


def put(client: TransferQueueClient, *samples: int) -> int:
    return client.evaluation.put(FIRST, {sample: b"%d" % sample for sample in samples})


def test_samples_are_given_once_and_put_once(make_job: MakeJob) -> None:
    job = make_job()
    other = job.client(Role.ROLLOUT, replica=1)
    assert claim(job.rollout, 3) == [0, 1, 2]
    assert claim(other, 3) == [3, 4]
    assert claim(other, 3, 3, 4) is EvaluationWaits.TAKEN
    assert put(job.rollout, 0, 1, 3) == 2  # not what another has
    assert put(job.rollout, 0) == 0
    assert put(other, 3, 4) == 2
    assert job.admin.evaluation() == EvaluationState(1, 0, 5, 4, False, "d")  # type: ignore[arg-type]
    assert put(job.rollout, 2) == 1
    assert sorted(job.admin.evaluation_results().values()) == [b"0", b"1", b"2", b"3", b"4"]


def test_what_was_given_in_a_lost_answer_and_what_is_handed_back_is_given_again(make_job: MakeJob) -> None:
    job = make_job()
    assert claim(job.rollout, 3) == [0, 1, 2]
    assert claim(job.rollout, 2, 1) == [0, 2]
    job.rollout.evaluation.hand_back([1, 4])
    assert claim(job.rollout, 9, 0, 2) == [1, 3, 4]


@pytest.mark.parametrize("ends", ["end_incarnation", "take_back"])
def test_the_samples_of_a_rank_that_ends_or_hangs_come_back(make_job: MakeJob, ends: str) -> None:
    job = make_job()
    other = job.client(Role.ROLLOUT, replica=1)
    assert claim(job.rollout, 3) == [0, 1, 2]
    assert put(job.rollout, 1) == 1
    getattr(job.admin, ends)(job.incarnation(job.rollout))
    assert claim(other, 9) == [0, 2, 3, 4]
    assert put(other, 0, 2, 3, 4) == 4
    if ends == "take_back":
        assert put(job.rollout, 0, 2) == 0
    else:
        with pytest.raises(Fenced):
            put(job.rollout, 0, 2)
    assert len(job.admin.evaluation_results()) == 5


def test_an_evaluation_of_a_version_that_is_restored_goes_on(make_job: MakeJob) -> None:
    job = make_job()
    assert claim(job.rollout, 3) == [0, 1, 2]
    assert put(job.rollout, 0, 2) == 2
    job.raise_epoch(2)
    again = job.client(Role.ROLLOUT)
    assert again.evaluation.claim(weight(0, lineage=2), "d", 5, 9, []) == [1, 3, 4]
    assert put(again, 1, 3, 4) == 3
    assert len(job.admin.evaluation_results()) == 5


def test_it_is_over_when_the_coordinator_ends_it_and_stays_so_after_a_restart(make_job: MakeJob) -> None:
    job = make_job()
    assert not job.actor.evaluation.is_over(FIRST, timeout=0)
    claim(job.rollout, 5)
    put(job.rollout, 0, 1, 2, 3, 4)
    assert not job.actor.evaluation.is_over(FIRST, timeout=0)
    job.admin.end_evaluation(FIRST)
    job.admin.end_evaluation(FIRST)
    assert job.actor.evaluation.is_over(FIRST, timeout=0)
    assert claim(job.rollout, 5) is EvaluationWaits.OVER
    job.raise_epoch(2)
    again = job.client(Role.ROLLOUT)
    assert again.evaluation.is_over(FIRST, timeout=0)
    assert again.evaluation.claim(weight(0, lineage=2), "d", 5, 9, []) is EvaluationWaits.OVER


def test_other_sets_begin_it_again_and_other_weights_get_nothing(make_job: MakeJob) -> None:
    job = make_job()
    claim(job.rollout, 3)
    assert put(job.rollout, 0) == 1
    assert claim(job.rollout, 3, 1, 2, digest="e") == [0, 1, 2]
    assert job.admin.evaluation_results() == {}
    assert job.rollout.evaluation.claim(weight(1), "e", 5, 3, []) is EvaluationWaits.OTHER_VERSION
    assert job.rollout.evaluation.claim(weight(0, lineage=7), "e", 5, 3, []) is EvaluationWaits.OTHER_VERSION


SETS = "d:4/2,1/1"
"""Two prompts with two samples each, and a set of one with one."""


def test_a_prompt_that_kills_its_engine_alone_too_often_is_set_aside_for_all_versions(make_job: MakeJob) -> None:
    job = make_job(kills=4)
    for _ in range(2):
        assert claim(job.rollout, 3, digest=SETS) == [0, 1, 2], "one death proves nothing"
        job.rollout.evaluation.hand_back([0, 1, 2], killed=True)  # one of them
    assert claim(job.rollout, 9, digest=SETS) == [4], "what is no suspect goes first"
    assert claim(job.rollout, 9, 4, digest=SETS) is EvaluationWaits.TAKEN, "and a suspect is alone at its engine"
    assert put(job.rollout, 4) == 1
    for _ in range(2):
        assert claim(job.rollout, 9, digest=SETS) == [0, 1], "the samples of one prompt"
        assert claim(job.rollout, 9, 0, 1, digest=SETS) is EvaluationWaits.TAKEN
        job.admin.suspect(job.incarnation(job.rollout))
        assert put(job.rollout, 0) == 0
    assert claim(job.rollout, 9, digest=SETS) == [2, 3]
    assert put(job.rollout, 2, 3) == 2, "the other suspect was innocent"
    assert job.admin.evaluation_results() == {0: b"", 1: b"", 2: b"2", 3: b"3", 4: b"4"}
    job.raise_epoch(2)
    job.rollout = job.client(Role.ROLLOUT)
    job.admin.end_evaluation(FIRST)
    job.raise_epoch(3)
    again = job.client(Role.ROLLOUT)
    assert again.evaluation.claim(weight(0, lineage=3), SETS, 5, 9, []) is EvaluationWaits.OVER


def test_a_suspect_of_an_evaluation_and_one_of_training_never_share_an_engine(make_job: MakeJob) -> None:
    job = make_job()
    for _ in range(2):
        tickets = job.rollout.claim_tickets(weight(0), 1, timeout=0)
        assert isinstance(tickets, list)
        assert claim(job.rollout, 2, digest=SETS) == [0, 1]
        job.rollout.evaluation.hand_back([0, 1], killed=True)
        job.rollout.return_tickets(tickets, killed=True)  # both become suspects
    assert claim(job.rollout, 9, digest=SETS) == [2, 3, 4]
    assert put(job.rollout, 2, 3, 4) == 3
    assert claim(job.rollout, 9, digest=SETS) == [0, 1]
    assert job.rollout.claim_tickets(weight(0), 1, timeout=0) is Withheld.SUSPECT
    assert put(job.rollout, 0, 1) == 2
    job.rollout.claim_tickets(weight(0), 1, timeout=0)
    assert len(job.admin.evaluation_results()) == 5


def test_a_prompt_is_acquitted_by_all_of_its_samples_and_by_no_other(make_job: MakeJob) -> None:
    job = make_job()
    for _ in range(2):
        assert claim(job.rollout, 2, digest=SETS) == [0, 1]
        job.rollout.evaluation.hand_back([0, 1], killed=True)
    assert claim(job.rollout, 3, digest=SETS) == [2, 3, 4]
    assert put(job.rollout, 2, 3, 4) == 3
    assert claim(job.rollout, 2, digest=SETS) == [0, 1]
    assert put(job.rollout, 0) == 1
    job.rollout.evaluation.hand_back([1], killed=True)
    assert len(job.admin.evaluation_results()) == 4
    assert claim(job.rollout, 2, digest=SETS) is EvaluationWaits.TAKEN
    assert job.admin.evaluation_results()[1] == b"", "it was the third death, and alone"


def test_the_end_wakes_who_waits_for_it(make_job: MakeJob) -> None:
    """By the notice: its patience is longer than the test's."""
    job = make_job()
    claim(job.rollout, 5)
    put(job.rollout, 0, 1, 2, 3, 4)
    with ThreadPoolExecutor(1) as thread:
        waits = thread.submit(job.actor.evaluation.is_over, FIRST, timeout=60)
        job.admin.end_evaluation(FIRST)
        assert waits.result(timeout=30)


def test_only_what_a_dead_engine_had_is_suspect(make_job: MakeJob) -> None:
    """A request whose end comes late counts no kill of what was begun since."""
    job = make_job()
    assert claim(job.rollout, 5, digest=SETS) == [0, 1, 2, 3, 4]
    job.rollout.evaluation.hand_back([0], killed=True)
    assert claim(job.rollout, 5, 1, 2, 3, 4, digest=SETS) == [0]
    job.rollout.evaluation.hand_back([0], killed=True)
    assert claim(job.rollout, 5, 1, 2, 3, 4, digest=SETS) is EvaluationWaits.TAKEN
    assert put(job.rollout, 1, 2, 3, 4) == 4, "they were generated before"
    for _ in range(2):
        assert claim(job.rollout, 5, digest=SETS) == [0]
        job.rollout.evaluation.hand_back([2, 3], killed=True)
        job.rollout.evaluation.hand_back([0])
    assert claim(job.rollout, 5, digest=SETS) == [0]
    assert put(job.rollout, 0) == 1
