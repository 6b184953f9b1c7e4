"""Runs make targets in lanes: those of a lane one after the other, the lanes side by side.

    python scripts/run_targets.py 'lint,test-processes' 'test-cluster'
    python scripts/run_targets.py "test-schedule,bench-operator ARGS='--jobs 2'"

The first lane's output appears as it comes; that of any other lane stands in one piece after it. A target that fails
keeps none of the others from running. At the end a line for each target says how it ended and how long it took; the
exit code is that of the first one, in the order of the arguments, that failed. An interrupt ends all targets with all
that they have started; where this process is killed, make ends.
"""

# ruff: noqa: T201 -- it prints what it found

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import IO, NoReturn

_MAKE = shutil.which("make") or "make"
_POLL_SECONDS = 0.1
_END_SECONDS = 30.0
"""From an interrupt to the kill: for pytest to end what its tests have started."""
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
"""Loaded before any fork: a child between fork and exec must not load libraries."""


@dataclass
class Target:
    """One call of make, and how it ended."""

    arguments: str
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    exit_code: int | None = None
    """Below zero it is the signal that ended it; None: it has not ended by itself."""

    def line(self) -> str:
        """For the summary of what failed."""
        ended = {0: "green", None: "cut off"}.get(self.exit_code, f"RED, exit code {self.exit_code}")
        minutes, seconds = divmod(round(self.seconds), 60)
        return f"  {self.arguments:<36} {minutes:3d} min {seconds:2d} s  {ended}"


class Lane:
    """Targets one after the other, each in a process group of its own."""

    def __init__(self, names: str, output: IO[bytes] | None) -> None:
        """`output` is where goes what they print; None: where this process prints."""
        self.targets: list[Target] = []
        self.output = output
        self._to_come = [arguments.strip() for arguments in names.split(",")]
        self._running: subprocess.Popen[bytes] | None = None

    def go_on(self) -> bool:
        """Starts the next target once the one before has ended; whether there is anything left to wait for."""
        if self._running is not None:
            exit_code = self._running.poll()
            if exit_code is None:
                return True
            self.targets[-1].exit_code = exit_code
            self.targets[-1].seconds = time.monotonic() - self.targets[-1].began
            self._running = None
        if not self._to_come:
            return False
        target = Target(self._to_come.pop(0))
        self.targets.append(target)
        self._running = subprocess.Popen(
            [_MAKE, "--no-print-directory", *shlex.split(target.arguments)],
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=None if self.output is None else subprocess.STDOUT,
            process_group=0,
            preexec_fn=_end_with_parent,
        )
        return True

    def runs(self) -> bool:
        """Whether a target does."""
        return self._running is not None and self._running.poll() is None

    def end(self, number: signal.Signals) -> None:
        """Sends a signal to all that the target has started which ran last."""
        assert self._running is not None
        with suppress(ProcessLookupError):
            os.killpg(self._running.pid, number)

    def show(self) -> None:
        """Prints what its targets have printed so far, if that has not been seen yet."""
        if self.output is not None:
            self.output.seek(0)
            shutil.copyfileobj(self.output, sys.stdout.buffer)
            sys.stdout.flush()


def _end_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _interrupt(number: int, _: object) -> NoReturn:
    raise KeyboardInterrupt(number)


def _run(lanes: list[Lane]) -> None:
    left = lanes
    while left := [lane for lane in left if lane.go_on()]:
        time.sleep(_POLL_SECONDS)


def _end(lanes: list[Lane]) -> None:
    """By an interrupt, which pytest answers by its fixtures' ends; then by force, for what takes no interrupt."""
    running = [lane for lane in lanes if lane.runs()]
    deadline = time.monotonic() + _END_SECONDS
    for lane in running:
        lane.end(signal.SIGINT)
    while any(lane.runs() for lane in running) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    for lane in running:
        lane.end(signal.SIGKILL)


def main(arguments: list[str]) -> int:
    """The exit code."""
    if not arguments:
        sys.exit(__doc__)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    began, interrupted = time.monotonic(), 0
    with ExitStack() as files:
        lanes = [
            Lane(names, files.enter_context(tempfile.TemporaryFile()) if number else None)
            for number, names in enumerate(arguments)
        ]
        try:
            _run(lanes)
        except KeyboardInterrupt as interrupt:
            interrupted = 128 + int(interrupt.args[0])
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)  # one is enough: the rest below has its own time
            _end(lanes)
        for lane in lanes:
            lane.show()
    targets = [target for lane in lanes for target in lane.targets]
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    print(f"\nIn {minutes} min {seconds} s:", *(target.line() for target in targets), sep="\n", flush=True)
    return interrupted or next((target.exit_code for target in targets if target.exit_code), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
