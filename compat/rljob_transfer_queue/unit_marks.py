"""Whether this client means the queue's storage units: the same servers in the same order as every other client.

For `bytes_plane`, from one thread at a time. There is no coordinator here, so clients mark the units themselves; the
control plane (`lua/units.lua`) knows which mark belongs where, and refuses rows whose bytes lie elsewhere.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from rljob_workers.transfer_queue.errors import Mismatch, StorageUnreachable
from rljob_workers.transfer_queue.resp import RETRY_SECONDS
from rljob_workers.transfer_queue.units import StorageUnit

MARK_BITS = 62
"""Drawn by chance, so that no other queue, and no coordinator, has the same mark."""
OTHERS_MARK_SECONDS = 2.0
"""So long an empty unit under a new address may wait for a client that knows it by another."""


class UnitMarks:
    """Marks of all units, as one client finds them.

    marks.check(deadline)            before the first call, and when something does not fit
    marks.require(unit, deadline)    before anything is deleted
    """

    def __init__(self, units: Sequence[StorageUnit], ask: Callable[..., Any]) -> None:
        """`ask(name, *arguments, what=...)` calls a function of the control plane."""
        self._units = units
        self._ask = ask
        self._admitted: set[int] = set()

    def check(self, deadline: float) -> None:
        """Asks every unit that answers; raises Mismatch where the queue has other ones, or another order."""
        self._admitted.clear()
        self._ask("meet", *(str(unit.address) for unit in self._units), what="names its storage units")
        for unit in self._units:
            # One that is away is asked when it is needed.
            with suppress(StorageUnreachable):
                self.require(unit.index, deadline)

    def require(self, index: int, deadline: float) -> None:
        """The unit is the queue's own; raises Mismatch where it is another, StorageUnreachable where it is away."""
        if index not in self._admitted:
            self._admit(self._units[index], deadline)
            self._admitted.add(index)

    def admitted(self) -> list[StorageUnit]:
        """Those that answered and are the queue's own."""
        return [self._units[index] for index in sorted(self._admitted)]

    def _admit(self, unit: StorageUnit, deadline: float) -> None:
        until = min(deadline, time.monotonic() + OTHERS_MARK_SECONDS)
        while True:
            found = unit.generation(deadline=deadline)
            mark = "" if found is None else found
            fresh = secrets.randbits(MARK_BITS)
            verdict, detail = self._ask("admit_unit", unit.index, str(unit.address), mark, fresh, what=f"meets {unit}")
            match verdict:
                case b"ours":
                    return
                case b"mark":
                    unit.mark(int(detail), deadline=deadline)
                case _:
                    if time.monotonic() >= until:
                        raise _new_address(unit, detail.decode())
                    time.sleep(RETRY_SECONDS)


def _new_address(unit: StorageUnit, known: str) -> Mismatch:
    return Mismatch(
        f"TransferQueue: {unit} is new to this queue, which knows storage unit {unit.index} as {known}. If they are the"
        " same server, let a client that names it so put first; else name the same storage units in the same order in"
        " every process."
    )
