"""What goes wrong with the queue beside its model: lost replies, deaths, time, restarts, lost bytes.

For `test_state_machine`. A jump of the clock is made by moving the ends of all leases into the past, which is the same
for them as the server's clock moving on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from rljob_api.wire.observation import ServerState
from rljob_workers.transfer_queue.admin import QueueAdmin, QueueAdminTiming
from rljob_workers.transfer_queue.errors import Fenced
from rljob_workers.transfer_queue.row_format import CHUNK_ID_BYTES, ROW
from tests.integration.transfer_queue.control_keys import Control
from tests.integration.transfer_queue.machine import QueueMachine, put
from tests.integration.transfer_queue.members import FIFO, INDEX, SHAPE, Member, picked
from tests.integration.transfer_queue.model import Row

SMALL_FAULTS = ("time_passes", "a_beat", "a_zombie_speaks", "another_coordinator", "a_sweep")
GREAT_FAULTS = ("the_job_restarts", "a_unit_comes_back_empty", "the_control_redis_is_killed")
STEPS_BETWEEN_FAULTS = 8
JUMP_MS = 10**9


class StruckMachine(QueueMachine):
    """The machine, and what goes wrong with it."""

    @rule(fault=st.sampled_from(SMALL_FAULTS), which=INDEX)
    def something_small_goes_wrong(self, fault: str, which: int) -> None:
        getattr(self, fault)(which)

    @precondition(lambda self: self.steps - self.struck_at >= STEPS_BETWEEN_FAULTS)
    @rule(fault=st.sampled_from(GREAT_FAULTS), which=INDEX)
    def something_great_goes_wrong(self, fault: str, which: int) -> None:
        """It sets everybody back, so it is rarer."""
        self.struck_at = self.steps
        getattr(self, fault)(which)

    @rule(losses=st.integers(1, 2))
    def replies_get_lost(self, losses: int) -> None:
        """Of the calls that come next, whosever they are."""
        self.line.losses = losses

    def time_passes(self, _which: int) -> None:
        """Beyond the end of every lease."""
        leases: Any = self.control_redis.zrange("q:leases", 0, -1, withscores=True)
        for lease, end in leases:
            self.control_redis.zadd("q:leases", {lease: end - JUMP_MS})
        self.over |= {holder for task in self.forward for holder in self.model.held[task.name].values()}

    def a_beat(self, which: int) -> None:
        self.beat(self.members[which % 4])

    @rule(who=st.integers(0, 3))
    def a_member_dies(self, who: int) -> None:
        dead = self.members[who]
        self.members[who] = self.new_member(dead.incarnation.key.role, dead.incarnation.key.replica)
        for ticket in dead.tickets:
            self.model.groups[self.places.pop(ticket.id)].state = "waiting"
        leases = {batch.lease for _, batch in dead.batches if batch.lease is not None}
        self.model.release(leases)
        self.over -= leases
        self.zombies.append(dead)

    def a_zombie_speaks(self, which: int) -> None:
        for zombie in picked(self.zombies, [which]):
            with pytest.raises(Fenced):
                self.speak(zombie)

    def speak(self, zombie: Member) -> None:
        if zombie.tickets:
            zombie.queue.put_groups([self.group(ticket, 0) for ticket in zombie.tickets])
        elif zombie.batches:
            put(zombie.queue, *zombie.batches[0])
        else:
            zombie.queue.claim(FIFO.name, range(SHAPE.num_rollouts), 4, timeout=0)

    def the_job_restarts(self, _which: int) -> None:
        self.next_epoch()

    def a_unit_comes_back_empty(self, which: int) -> None:
        unit = which % len(self.servers.units)
        lost = fields_on(Control(self.control_redis, self.shape), unit)
        self.servers.empty_unit(unit)
        assert self.admin.upkeep.probe() == [unit]
        loss = self.admin.upkeep.declare_lost(unit)
        assert bool(loss.needs_global_restart) is self.model.lose(lost)
        self.over = {lease for lease in self.over if any(self.model.holding(task, lease) for task in self.forward)}
        if loss.needs_global_restart:
            self.next_epoch()

    def the_control_redis_is_killed(self, which: int) -> None:
        self.servers.sync_control()
        self.servers.restart_control()
        self.another_coordinator(which)

    def another_coordinator(self, _which: int) -> None:
        """It takes over; leases count from here."""
        self.admin.close()
        self.admin = QueueAdmin(self.endpoints, self.shape, timing=QueueAdminTiming(unlisted_seconds=0))
        assert self.admin.open_server(max(member.queue.calls.seen_seq for member in self.members)) is ServerState.OPEN
        self.over.clear()

    def a_sweep(self, _which: int) -> None:
        self.admin.sweeper.sweep()


def fields_on(control: Control, unit: int) -> dict[Row, set[str]]:
    """Which fields of which rows lie on a unit."""
    found: dict[Row, set[str]] = {}
    for r in control.partitions:
        chunks, masks = control.chunks(r), control.masks(r)
        for name in control.shape.fields:
            metas = np.frombuffer(control.string(f"p:{r}:f:{name}"), ROW)
            for row in np.flatnonzero(masks & control.mask_of([name])).tolist():
                if chunks[bytes(metas[row]["chunk"]).ljust(CHUNK_ID_BYTES, b"\0")].unit == unit:
                    found.setdefault((r, row), set()).add(name)
    return found
