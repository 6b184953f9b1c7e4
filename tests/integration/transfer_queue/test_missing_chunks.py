"""A unit that loses single chunks and keeps its mark: readers report it, and their rows are treated like lost ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rljob_api.names import Role, RolloutId
from rljob_workers.transfer_queue.admin_calls import Named
from rljob_workers.transfer_queue.row_format import parse_chunk
from rljob_workers.transfer_queue.types import Batch, NotReady
from rljob_workers.transfer_queue.upkeep import LostChunks, LostRows
from tests.integration.transfer_queue.first_claims import claim, claim_training
from tests.integration.transfer_queue.job import Job
from tests.weights import weight

MakeJob = Callable[..., Job]


def delete_chunk(job: Job, field: str) -> int:
    """By hand, one chunk of a field; gives the unit that had it."""
    chunks = [parse_chunk(line) for _, line in job.admin.sweeper.named(Named.RETAINED)]
    chunk = next(chunk for chunk in chunks if chunk.field == field)
    with job.servers.units[chunk.unit].admin() as admin:
        assert admin.unlink(chunk.key) == 1
    return chunk.unit


def lost(unit: int, field: str, **groups: int) -> LostChunks:
    return LostChunks(unit, RolloutId(0), (field,), 1, LostRows(**groups))


def test_a_group_whose_tokens_are_missing_is_generated_again(make_job: MakeJob) -> None:
    job = make_job(batch=2)
    job.put(job.tickets(2))
    unit = delete_chunk(job, "tokens")
    assert job.admin.upkeep.declare_missing() == []
    answer = claim(job)
    assert isinstance(answer, NotReady)
    assert f"storage unit {unit} (" in answer.waiting_for
    assert "no longer has 1 chunks (tokens)" in answer.waiting_for
    (found,) = job.admin.upkeep.declare_missing()
    assert (found.unit, found.fields, found.num_chunks) == (unit, ("tokens",), 1)
    assert found.loss.reissued >= 1
    assert job.admin.upkeep.declare_missing() == []
    assert [one.lost_chunks for one in job.admin.inspection.stats("test").units] == [int(unit == 0), int(unit == 1)]
    job.admin.sweeper.sweep()
    job.put(job.tickets(2))
    batch = claim(job)
    assert isinstance(batch, Batch)
    assert len(batch.rows) == 4
    job.prove()


def test_results_that_are_missing_are_computed_again(make_job: MakeJob) -> None:
    job = make_job(batch=2)
    job.put(job.tickets(2))
    job.derive(0)
    unit = delete_chunk(job, "log_probs")
    assert isinstance(claim_training(job), NotReady)
    assert job.admin.upkeep.declare_missing() == [lost(unit, "log_probs", recomputed=2)]
    job.derive(0)
    job.admin.sweeper.sweep()
    job.prove()


def test_missing_rows_of_a_training_batch_need_a_restart_and_are_generated_again_by_it(make_job: MakeJob) -> None:
    job = make_job(batch=2)
    job.put(job.tickets(2))
    job.derive(0)
    unit = delete_chunk(job, "tokens")
    assert isinstance(claim_training(job), NotReady)
    expected = [lost(unit, "tokens", needs_global_restart=2)]
    assert job.admin.upkeep.declare_missing() == expected
    # Readers go on asking until the restart: it is the same loss, and counted once.
    assert isinstance(claim_training(job), NotReady)
    (again,) = job.admin.upkeep.declare_missing()
    assert (again.num_chunks, again.fields, again.loss) == (1, (), expected[0].loss)
    job.raise_epoch(2)
    job.rollout = job.client(Role.ROLLOUT)
    job.put(job.tickets(2))
    assert isinstance(claim(job), Batch)
    job.admin.sweeper.sweep()
    job.prove()


def test_a_unit_that_came_back_empty_is_not_called_short_of_single_chunks(make_job: MakeJob) -> None:
    job = make_job(batch=2)
    job.put(job.tickets(2))
    unit = delete_chunk(job, "tokens")
    assert isinstance(claim(job), NotReady)
    job.servers.empty_unit(unit)
    assert job.admin.upkeep.declare_missing() == []
    assert job.admin.upkeep.probe() == [unit]
    assert job.admin.upkeep.declare_lost(unit).reissued >= 1
    assert job.admin.upkeep.declare_missing() == []
    assert sum(one.lost_chunks for one in job.admin.inspection.stats("test").units) == 0


def test_a_unit_that_is_away_is_looked_at_when_it_is_back(make_job: MakeJob) -> None:
    job = make_job(batch=2)
    job.put(job.tickets(2))
    unit = delete_chunk(job, "tokens")
    assert isinstance(claim(job), NotReady)
    job.servers.units[unit].kill()
    assert job.admin.upkeep.declare_missing() == []
    job.servers.units[unit].start()
    assert job.admin.upkeep.probe() == [unit]
    assert job.admin.upkeep.declare_lost(unit).reissued >= 1
    job.admin.sweeper.sweep()
    job.prove()


def test_a_loss_is_found_again_by_the_successor_of_one_that_died_before_it_reported(make_job: MakeJob) -> None:
    job = make_job(batch=2)
    job.put(job.tickets(2))
    job.derive(0)
    unit = delete_chunk(job, "tokens")
    assert isinstance(claim_training(job), NotReady)

    def die(_: LostChunks) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.admin.upkeep.declare_missing(die)
    reported: list[LostChunks] = []
    job.admin.upkeep.declare_missing(reported.append)
    assert [(one.unit, one.num_chunks, one.loss.needs_global_restart) for one in reported] == [(unit, 1, 2)]
    job.admin.upkeep.declare_missing(reported.append)
    assert len(reported) == 1


def test_rows_of_a_published_rollout_are_marked_absent(make_job: MakeJob) -> None:
    job = make_job(batch=2)
    job.put(job.tickets(2))
    job.derive(0)
    job.train(0)
    job.publish(1)
    unit = delete_chunk(job, "tokens")
    job.rollout.calls.change("report_missed", 0, unit, waiting="a reader that was late")
    assert job.admin.upkeep.declare_missing() == [lost(unit, "tokens", absent=2)]
    job.put(job.tickets(1, weight(1)), weight(1))
    job.admin.sweeper.sweep()
    job.prove()
