"""A unit whose memory damages what it keeps: readers prove it, and its rows are treated like lost ones."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from rljob_api.names import Role, RolloutId
from rljob_workers.transfer_queue.errors import CorruptChunk
from rljob_workers.transfer_queue.row_format import HEADER_BYTES, ChunkRef
from rljob_workers.transfer_queue.types import Batch, NotReady
from rljob_workers.transfer_queue.upkeep import LostChunks, LostRows
from tests.integration.transfer_queue.control_keys import Control
from tests.integration.transfer_queue.first_claims import claim, claim_training
from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.world import LOG_PROBS

MakeJob = Callable[..., Job]
FIRST_VALUE = HEADER_BYTES


def chunks_of(job: Job, field: str) -> list[ChunkRef]:
    with job.servers.control.admin() as admin:
        chunks = Control(admin, job.shape).chunks(0).values()
    return [chunk for chunk in chunks if chunk.field == field]


def flip(job: Job, field: str, at: int = FIRST_VALUE) -> ChunkRef:
    """One bit of a stored chunk of the field."""
    chunk = chunks_of(job, field)[0]
    with job.servers.units[chunk.unit].admin() as admin:
        byte: Any = admin.getrange(chunk.key, at, at)
        admin.setrange(chunk.key, at, bytes([byte[0] ^ 1]))
    return chunk


def is_there(job: Job, chunk: ChunkRef) -> bool:
    with job.servers.units[chunk.unit].admin() as admin:
        return bool(admin.exists(chunk.key))


def lost(chunk: ChunkRef, **groups: int) -> LostChunks:
    return LostChunks(chunk.unit, RolloutId(0), (chunk.field,), 1, LostRows(**groups))


def test_a_group_whose_tokens_are_damaged_is_generated_again(
    make_job: MakeJob, caplog: pytest.LogCaptureFixture
) -> None:
    job = make_job(batch=2, checksums=True)
    job.put(job.tickets(2))
    chunk = flip(job, "tokens")
    with caplog.at_level(logging.ERROR, "rljob.queue"):
        answer = claim(job)
    assert isinstance(answer, NotReady)
    assert f"storage unit {chunk.unit} (" in answer.waiting_for
    assert f"keeps chunk {chunk.key} of tokens damaged, as two readings say: " in answer.waiting_for
    assert "do not match their checksum" in answer.waiting_for
    assert "Check the memory of that server." in answer.waiting_for
    assert caplog.messages == [answer.waiting_for]
    (found,) = job.admin.upkeep.declare_missing()
    assert (found.unit, found.fields, found.num_chunks) == (chunk.unit, ("tokens",), 1)
    assert found.loss.reissued >= 1
    job.admin.sweeper.sweep()
    job.put(job.tickets(2))
    batch = claim(job)
    assert isinstance(batch, Batch)
    assert len(batch.rows) == 4


def test_results_that_are_damaged_are_computed_again(make_job: MakeJob) -> None:
    job = make_job(batch=2, checksums=True)
    job.put(job.tickets(2))
    job.derive(0)
    chunk = flip(job, "log_probs")
    assert isinstance(claim_training(job), NotReady)
    assert job.admin.upkeep.declare_missing() == [lost(chunk, recomputed=2)]
    job.derive(0)
    assert isinstance(claim_training(job), Batch)


def test_damaged_rows_of_a_training_batch_need_a_restart_and_are_generated_again_by_it(make_job: MakeJob) -> None:
    job = make_job(batch=2, checksums=True)
    job.put(job.tickets(2))
    job.derive(0)
    assert isinstance(claim_training(job), Batch)
    chunk = flip(job, "tokens")
    assert isinstance(claim_training(job), NotReady)
    assert job.admin.upkeep.declare_missing() == [lost(chunk, needs_global_restart=2)]
    job.raise_epoch(2)
    job.rollout = job.client(Role.ROLLOUT)
    job.put(job.tickets(2))
    assert isinstance(claim(job), Batch)


def test_all_damaged_chunks_of_a_claim_are_found_at_once(make_job: MakeJob) -> None:
    job = make_job(batch=2, checksums=True)
    job.put(job.tickets(2))
    job.derive(0)
    damaged = [flip(job, field) for field in ("log_probs", "ref_log_probs", "advantages")]
    answer = claim_training(job)
    assert isinstance(answer, NotReady)
    assert "(2 more of advantages, log_probs, ref_log_probs)" in answer.waiting_for
    assert not any(is_there(job, chunk) for chunk in damaged)
    assert all(is_there(job, chunk) for chunk in chunks_of(job, "tokens"))
    found = {field for one in job.admin.upkeep.declare_missing() for field in one.fields}
    # Advantages may have gone with what they are made of, before their own unit was looked at.
    assert {"log_probs", "ref_log_probs"} <= found
    job.derive(0)
    assert isinstance(claim_training(job), Batch)


@pytest.mark.parametrize("at", [0, 4, HEADER_BYTES - 1], ids=["magic", "version", "checksum of the header"])
def test_a_header_that_is_none_is_damage_without_checksums_too(make_job: MakeJob, at: int) -> None:
    job = make_job(batch=2)
    job.put(job.tickets(2))
    chunk = flip(job, "tokens", at)
    assert isinstance(claim(job), NotReady)
    assert not is_there(job, chunk)
    (found,) = job.admin.upkeep.declare_missing()
    assert found.loss.reissued >= 1
    job.put(job.tickets(2))
    assert isinstance(claim(job), Batch)


def test_a_chunk_that_was_cut_is_damaged(make_job: MakeJob) -> None:
    job = make_job(batch=2)
    job.put(job.tickets(2))
    chunk = chunks_of(job, "tokens")[0]
    with job.servers.units[chunk.unit].admin() as admin:
        whole: Any = admin.get(chunk.key)
        admin.set(chunk.key, whole[:-4])
    answer = claim(job)
    assert isinstance(answer, NotReady)
    assert "the queue says" in answer.waiting_for
    assert not is_there(job, chunk)
    job.admin.upkeep.declare_missing()
    job.put(job.tickets(2))


@pytest.mark.parametrize("bad_readings", [1, 2, 3, 4])
def test_what_is_damaged_on_its_way_is_read_again_and_not_deleted(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, bad_readings: int
) -> None:
    """The first reading is that of all chunks; then each is read by itself, and all of them again."""
    job = make_job(batch=2, checksums=True)
    job.put(job.tickets(2))
    chunk = chunks_of(job, "tokens")[0]
    forward = job.client(Role.ACTOR_FWD)
    units = forward.calls.units
    fetch, readings = units.fetch, 0

    def garbled(fields: Any, **kwargs: Any) -> Any:
        nonlocal readings
        if readings < bad_readings and any(chunk in placement.chunks for placement in fields.values()):
            readings += 1
            raise CorruptChunk(f"TransferQueue: garbled in way {readings}", chunk)
        return fetch(fields, **kwargs)

    monkeypatch.setattr(units, "fetch", garbled)
    answer = forward.claim(LOG_PROBS.name, range(1), 100, timeout=0)
    if bad_readings > 3:
        assert isinstance(answer, NotReady)
        assert "garbled in way 4" in answer.waiting_for
        answer = forward.claim(LOG_PROBS.name, range(1), 100, timeout=0)
    assert isinstance(answer, Batch)
    assert len(answer.rows) == 4
    assert is_there(job, chunk)
    assert job.admin.upkeep.declare_missing() == []
