from __future__ import annotations

import os
import signal

from rljob_workers.dcs.membership.rank_context import RankMemory


def test_the_highest_number_survives_the_process_that_saw_it() -> None:
    memory = RankMemory()
    pid = os.fork()
    if pid == 0:
        memory.raise_seq(41)
        memory.raise_seq(7)
        os._exit(0)
    os.waitpid(pid, 0)
    assert memory.seen_seq == 41


def test_a_killed_incarnation_leaves_how_far_it_came_until_the_next_one_begins() -> None:
    memory = RankMemory()
    pid = os.fork()
    if pid == 0:
        memory.raise_seq(5)
        memory.set_ready()
        memory.enter_collective()
        memory.leave_collective()
        memory.enter_collective()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert (memory.is_ready, memory.collectives, memory.is_within_collective) == (True, 2, True)
    memory.begin_incarnation()
    assert (memory.is_ready, memory.collectives, memory.is_within_collective) == (False, 0, False)
    assert memory.seen_seq == 5
