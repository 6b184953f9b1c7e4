"""A unit's thread never outlives its call: the next one uses the same connections and buffers."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from rljob_workers.transfer_queue.storage import StorageUnits
from rljob_workers.transfer_queue.units import StorageUnit
from tests.integration.data_plane.unit_server import UnitServer


def test_an_exception_of_one_unit_waits_for_the_others(
    connect: Callable[..., StorageUnits], servers: list[UnitServer]
) -> None:
    both_work, was_raised = threading.Barrier(2), threading.Event()
    ended_late: list[bool] = []

    def work(unit: StorageUnit, share: list[str]) -> list[str]:
        both_work.wait(240)
        if unit.index == 0:
            raise MemoryError(share[0])
        ended_late.append(was_raised.wait(0.5))
        return share

    with pytest.raises(MemoryError, match="of unit 0"):
        connect(*servers)._at_once(work, {0: ["of unit 0"], 1: ["of unit 1"]})
    was_raised.set()
    assert ended_late == [False]
