"""What readers of the first rollout are answered at once, for tests of bytes that are gone or damaged."""

from __future__ import annotations

from rljob_api.names import Role
from rljob_workers.transfer_queue.types import Batch, NotReady
from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.world import LOG_PROBS


def claim(job: Job) -> Batch | NotReady:
    answer = job.client(Role.ACTOR_FWD).claim(LOG_PROBS.name, range(1), 100, timeout=0)
    assert isinstance(answer, Batch | NotReady), answer
    return answer


def claim_training(job: Job) -> Batch | NotReady:
    answer = job.claim_training(0)
    assert isinstance(answer, Batch | NotReady), answer
    return answer
