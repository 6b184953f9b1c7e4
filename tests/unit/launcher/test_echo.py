"""Logs repeated line by line: whole, prefixed, bounded; and given back to the file system."""

import os
from pathlib import Path

import pytest

from rljob_workers.launcher.environment import LauncherState
from rljob_workers.launcher.pod_logs import LINE_BYTES, PATIENCE_SECONDS, READ_BYTES, RETAINED_BYTES, LogEcho

STATE = LauncherState()


class Echoed:
    def __init__(self, folder: Path) -> None:
        self.log = folder / "actor-0.0.log"
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.now = 0.0
        self.echo = LogEcho(folder, self.writer, lambda: self.now)

    def write(self, data: bytes) -> None:
        with self.log.open("ab") as log:
            log.write(data)

    def output(self, turns: int = 1) -> bytes:
        received = b""
        for _ in range(turns):
            self.echo.turn(STATE)
            try:
                received += os.read(self.reader, 1 << 20)
            except BlockingIOError:
                continue
        return received


@pytest.fixture
def echoed(tmp_path: Path) -> Echoed:
    return Echoed(tmp_path)


def test_lines_come_whole_and_with_their_name(echoed: Echoed) -> None:
    assert echoed.output() == b""
    echoed.write(b"one\ntw")
    assert echoed.output() == b"[actor-0.0] one\n"
    echoed.write(b"o\n")
    assert echoed.output() == b"[actor-0.0] two\n"


def test_a_line_without_an_end_comes_after_a_while(echoed: Echoed) -> None:
    echoed.write(b"last words")
    assert echoed.output() == b""
    echoed.now = PATIENCE_SECONDS
    assert echoed.output() == b"[actor-0.0] last words\n"


def test_a_long_line_is_cut(echoed: Echoed) -> None:
    echoed.write(b"x" * (LINE_BYTES + 1) + b"\n")
    text = echoed.output(20)
    assert text.replace(b"[actor-0.0] ", b"").replace(b"\n", b"") == b"x" * (LINE_BYTES + 1)


def test_what_was_there_before_is_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "actor-0.0.log").write_bytes(b"an earlier container's\n")
    echoed = Echoed(tmp_path)
    echoed.write(b"mine\n")
    assert echoed.output() == b"[actor-0.0] mine\n"


def test_a_log_that_appears_later_is_repeated_from_its_beginning(echoed: Echoed, tmp_path: Path) -> None:
    echoed.write(b"one\n")
    assert echoed.output() == b"[actor-0.0] one\n"
    (tmp_path / "actor-0.1.log").write_bytes(b"a rank that a later epoch has\n")
    (tmp_path / "notes.txt").write_bytes(b"no log\n")
    assert echoed.output() == b"[actor-0.1] a rank that a later epoch has\n"


def test_an_output_that_no_one_reads_holds_nothing_up_and_loses_nothing(echoed: Echoed) -> None:
    lines = [b"line %d\n" % number for number in range(50_000)]
    echoed.write(b"".join(lines))
    for _ in range(20):
        echoed.echo.turn(STATE)
    assert len(echoed.echo._waiting) <= 4 * READ_BYTES
    received = echoed.output(1000)
    assert received.replace(b"[actor-0.0] ", b"") == b"".join(lines)


def test_an_output_that_is_closed_ends_nothing(echoed: Echoed) -> None:
    os.close(echoed.reader)
    echoed.write(b"one\n")
    echoed.echo.turn(STATE)
    echoed.echo.turn(STATE)


def test_a_log_keeps_its_tail_on_disk_and_no_more(echoed: Echoed) -> None:
    line = b"y" * 1023 + b"\n"
    for _ in range(4 * RETAINED_BYTES // (64 << 10)):
        echoed.write(line * 64)
        echoed.output(2)
    stat = echoed.log.stat()
    assert stat.st_size == 4 * RETAINED_BYTES
    if echoed.echo._can_punch:  # not every file system gives back
        assert stat.st_blocks * 512 <= 2 * RETAINED_BYTES + (64 << 10)
    assert echoed.log.read_bytes().endswith(line)
