from __future__ import annotations

import os

from rljob_workers.dcs.membership.rank_context import SeqSink


def test_the_highest_number_survives_the_process_that_saw_it() -> None:
    sink = SeqSink()
    pid = os.fork()
    if pid == 0:
        sink.raise_to(41)
        sink.raise_to(7)
        os._exit(0)
    os.waitpid(pid, 0)
    assert sink.value == 41
