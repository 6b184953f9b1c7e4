"""A process with many waiting clients of our queue, each in a thread of its own, for which nothing ever comes."""

from __future__ import annotations

import threading
import time
from typing import Any

from rljob_api.spec.queue import Waiting
from rljob_api.wire.identity import Endpoints, Incarnation
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.types import NotReady
from tests.bench.queue.channel import serve
from tests.bench.queue.shape import READ, make_shape
from tests.bench.queue.workloads import tiny

_threads: list[threading.Thread] = []
_broken: list[str] = []


def _wait(endpoints: str, incarnations: list[str], waiting: str, seconds: float, turn_seconds: float) -> dict[str, Any]:
    shape, place = make_shape(tiny()), Endpoints.model_validate_json(endpoints)
    until = time.monotonic() + seconds
    for incarnation in incarnations:
        queue = TransferQueueClient(
            place, shape, Incarnation.model_validate_json(incarnation), waiting=Waiting(waiting)
        )
        thread = threading.Thread(target=_turns, args=(queue, until, turn_seconds))
        thread.start()
        _threads.append(thread)
    return {}


def _turns(queue: TransferQueueClient, until: float, turn_seconds: float) -> None:
    try:
        while (left := until - time.monotonic()) > 0:
            answer = queue.claim(READ.name, range(1), 8, timeout=min(turn_seconds, left))
            assert isinstance(answer, NotReady), answer
        queue.close()
    except Exception as error:  # the edge of a thread: reported by `end`
        _broken.append(repr(error))


def _end() -> dict[str, Any]:
    for thread in _threads:
        thread.join()
    assert not _broken, _broken
    return {}


if __name__ == "__main__":
    serve({"wait": _wait, "end": _end})
