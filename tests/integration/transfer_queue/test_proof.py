"""The proof finds what is broken: each damage is done by hand."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import redis

from rljob_api.names import Role
from rljob_workers.transfer_queue.types import Batch
from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.proof import breaches
from tests.integration.transfer_queue.servers import Servers
from tests.integration.transfer_queue.world import LOG_PROBS, make_shape

Damage = Callable[[redis.Redis], object]


def busy_job(servers: Servers) -> Job:
    """One group put, two of its rows leased, one ticket in work and one returned."""
    job = Job(servers, make_shape(batch=2, samples=2, staleness=1))
    put, _, returned = job.tickets(3)
    job.put([put])
    job.rollout.return_tickets([returned], killed=False)
    assert isinstance(job.client(Role.ACTOR_FWD).claim(LOG_PROBS.name, range(1), 1, timeout=0), Batch)
    return job


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        pytest.param(lambda a: a.rpush("p:0:q:actor_log_probs", 1), "row 1 is held or listed twice", id="listed twice"),
        pytest.param(lambda a: a.rpush("p:0:q:actor_log_probs", 0), "row 0 is held or listed twice", id="leased, too"),
        pytest.param(lambda a: a.lpop("p:0:q:actor_log_probs"), r"row 1 \(r\) is nowhere", id="ready and not listed"),
        pytest.param(lambda a: a.delete("q:lease"), r"row 0 \(c\) is nowhere", id="held by nobody"),
        pytest.param(lambda a: a.setrange("p:0:s:ref_log_probs", 0, "d"), "is ready and consumed", id="in two states"),
        pytest.param(lambda a: a.setrange("p:0:s:ref_log_probs", 2, "d"), "1 rows are consumed, the count", id="count"),
        pytest.param(lambda a: a.setrange("p:0:mask", 0, b"\0" * 4), "generated rows", id="fields of a group"),
        pytest.param(lambda a: a.zrem("q:ready:actor_log_probs", 0), "set of ready partitions", id="not offered"),
        pytest.param(lambda a: a.hincrby("p:0:refs", a.hkeys("p:0:refs")[0], 1), "chunks and their counts", id="refs"),
        pytest.param(lambda a: a.setrange("p:0:f:tokens", 16, b"\xff" * 4), "tokens of row 0 lies in", id="too far"),
        pytest.param(lambda a: a.rpush("q:dead:0", a.hvals("p:0:chunks")[0]), "is named 2 times", id="dead and named"),
        pytest.param(lambda a: a.zadd("q:open", {"0": 0}), "are not made of issued", id="issued and open"),
        pytest.param(lambda a: a.hincrby("q:meta", "next", 1), "are not made of issued", id="a place is nowhere"),
        pytest.param(lambda a: a.zadd("q:front", {"0": 0}), "prompt 0 is drawn 2 times", id="a prompt is drawn twice"),
        pytest.param(lambda a: a.hset("q:meta", "cursor", 1), "prompt 1 is beyond the cursor", id="cursor"),
        pytest.param(lambda a: a.delete("q:tickets"), "groups in work say", id="a ticket is gone"),
        pytest.param(lambda a: a.delete("q:again"), "came back, the list says", id="a group that waits is forgotten"),
        pytest.param(lambda a: a.delete("q:live"), "are kept for", id="answers outlive a life"),
        pytest.param(lambda a: a.delete("q:leases"), "those that expire differ", id="a lease for ever"),
        pytest.param(lambda a: a.zrem("q:partitions", 0), "keys of partitions that are gone", id="a partition's rest"),
    ],
)
def test_a_damaged_control_state_is_named(servers: Servers, damage: Damage, sentence: str) -> None:
    job = busy_job(servers)
    assert breaches(servers, job.shape) == []
    with servers.control.admin() as admin:
        damage(admin)
    job.close()
    assert any(re.search(sentence, breach) for breach in breaches(servers, job.shape))


def test_bytes_that_are_missing_or_too_many_are_named(servers: Servers) -> None:
    job = busy_job(servers)
    job.close()
    with servers.units[0].admin() as one, servers.units[1].admin() as two:
        holder = one if one.keys("1:*") else two
        holder.delete(*holder.keys("1:*"))
        one.set("1:0123456789ab:left", b"x")
    found = breaches(servers, job.shape)
    assert any("is not on its unit" in breach for breach in found)
    assert "unit 0 holds 1:0123456789ab:left, which nothing names" in found
