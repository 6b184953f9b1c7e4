"""A run that Python has started: followed, stopped, awaited.

The process is the command `rljob run` in a session of its own, so that Ctrl-C or a notebook's interrupt reaches Python
alone; `with` stops it then as one Ctrl-C would. What it prints goes to a file without a name, since a pipe that Python
does not read would hold it up.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from rljob.files import Row, RunFiles
from rljob.job import Job
from rljob_api.manifest import ManifestError
from rljob_api.names import EXIT_BAD_MANIFEST, EXIT_INTERRUPTED

_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Result:
    """How a run has ended, as the last line of `rljob run --output json` says it."""

    phase: str
    """Succeeded, Failed or Interrupted."""
    reason: str
    """One word: Succeeded, or why not."""
    message: str
    """A sentence."""
    steps: int
    """Steps trained by this start and those before it in the folder."""
    reward_first: float | None
    """Mean of the first ten steps, or of the first half of fewer than twenty; None where none was trained."""
    reward_last: float | None
    """Mean of as many last ones."""
    checkpoint: int | None
    """Version of the last recorded checkpoint."""
    global_restarts: int
    seconds: float
    """This start's."""
    folder: Path
    troubles: tuple[str, ...] = ()
    """Troubles that the steps have shown, as sentences; also of a run that has succeeded."""

    @property
    def succeeded(self) -> bool:
        """Whether all rollouts are trained and the last checkpoint is recorded."""
        return self.phase == "Succeeded"


class Run(RunFiles):
    """A started run. Made by `run`.

    with run(job) as going:
        for step in going: ...
    result = going.result()
    """

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], output: IO[bytes], errors: IO[bytes]) -> None:
        """`output` and `errors` are files that the process writes to."""
        super().__init__(folder)
        self._process, self._output, self._errors = process, output, errors
        for file in (output, errors):
            weakref.finalize(self, file.close)
        self._read_bytes = 0
        self._total_steps = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stops the run if it goes on: after a break, or an exception."""
        if self.is_running:
            self.stop()

    def __iter__(self) -> Iterator[Row]:
        """The metrics of each step as it is trained, until the run ends: rows as `metrics()` has them.

        A row comes once, over all loops: one that begins after a `break` goes on where the last one ended. A step that
        a restart repeats comes again, with a higher `epoch` and with `restates`, the epoch of the row that it replaces;
        rows of later steps that came before it are void. `metrics()` has what stands. Steps that an earlier start in
        the same folder has trained do not come. Raises ManifestError where the run was refused.
        """
        for line in self._lines():
            if line.pop("kind") == "step":
                yield line

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """The number of the process `rljob run`."""
        return self._process.pid

    @property
    def warnings(self) -> list[str]:
        """Warnings of the command so far, a sentence each."""
        return _text(self._errors).splitlines()

    def stop(self) -> Result:
        """Saves a checkpoint and stops, as one Ctrl-C does; returns when that is done.

        The next `run` in the folder goes on from there.
        """
        if self.is_running:
            self._process.send_signal(signal.SIGINT)
        return self.result()

    def kill(self) -> None:
        """Ends all processes of the run at once: the next `run` trains the steps since the last checkpoint again."""
        self._process.kill()
        self._process.wait()

    def result(self, timeout_seconds: float | None = None) -> Result:
        """Waits for the end. Raises TimeoutError, and ManifestError where the run was refused."""
        try:
            code = self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"The run in {self.folder} goes on after {timeout_seconds:g} s.") from None
        self._mind_a_refusal()
        lines = [json.loads(line) for line in _text(self._output).splitlines()]
        ended = next((line for line in reversed(lines) if line["kind"] == "result"), None)
        return self._without_a_result(code) if ended is None else _result(ended, self.folder)

    def watch(self, every_seconds: float = 5.0) -> Result:
        """Prints events, and a line of progress this often, until the end; for a notebook, or a terminal."""
        from rljob_operator.local.view import StepRates, event_text, headline, step_text, time_of_day

        pace, printed_at, last_message = StepRates(), -every_seconds, ""
        for line in self._lines():
            text = ""
            if line["kind"] == "event":
                text, last_message = event_text(line), line["message"]
            elif line["kind"] == "step":
                pace.add(line)
                is_last = line["step"] + 1 == self._total_steps
                if is_last or time.monotonic() - printed_at >= every_seconds:
                    printed_at = time.monotonic()
                    text = step_text(line, self._total_steps, pace)
            if text:
                sys.stdout.write(f"{time_of_day(line['time'])} {text}\n")
                sys.stdout.flush()
        result = self.result()
        if result.message != last_message:  # else the last event has said how it ended
            sys.stdout.write(f"{headline({'phase': result.phase, 'message': result.message})}\n")
        return result

    def _lines(self) -> Iterator[Row]:
        """Lines that the command reports, each once, until it has ended."""
        while True:
            has_ended = not self.is_running  # before the file is read: what it wrote last is then there
            for line in self._new_lines():
                if line["kind"] == "start":
                    self._total_steps = line["totalSteps"]
                yield line
            if has_ended:
                self._mind_a_refusal()
                return
            time.sleep(_POLL_SECONDS)

    def _new_lines(self) -> Iterator[Row]:
        """Read by `pread`, since the process writes at the position that it shares with this file."""
        size = os.fstat(self._output.fileno()).st_size
        for line in os.pread(self._output.fileno(), size - self._read_bytes, self._read_bytes).split(b"\n")[:-1]:
            self._read_bytes += len(line) + 1
            yield json.loads(line)

    def _mind_a_refusal(self) -> None:
        if self._process.poll() == EXIT_BAD_MANIFEST:
            raise ManifestError(self.warnings)

    def _without_a_result(self, code: int) -> Result:
        """The result of a command that was killed, or stopped before it had begun anything."""
        status, rows = self.status(), self.metrics()
        by = f"signal {-code}" if code < 0 else f"exit code {code}"
        message = f"rljob run ended by {by} before it had reported an end. {self.warnings[-1] if self.warnings else ''}"
        return Result(
            phase="Interrupted" if code < 0 or code == EXIT_INTERRUPTED else "Failed",
            reason="Killed",
            message=message.strip(),
            steps=len(rows),
            reward_first=None,
            reward_last=None,
            checkpoint=status.get("training", {}).get("checkpoint"),
            global_restarts=status.get("restart", {}).get("globalRestarts", 0),
            seconds=0.0,
            folder=self.folder,
        )


def run(job: Job, *, out: str | Path | None = None, fresh: bool = False, audit: bool = False) -> Run:
    """Starts the job on this machine, as `rljob run` does, or goes on with an earlier run; returns at once.

    `out`: the folder of the run, by default rljob-out/NAME. `fresh` starts over and keeps the earlier run beside it;
    `audit` logs every trained sample. What the job names is looked at by the process: a problem is raised by the first
    `for`, `watch` or `result`.
    """
    folder = (Path("rljob-out") / job.name if out is None else Path(out)).absolute()
    options = [option for option, is_given in (("--fresh", fresh), ("--audit", audit)) if is_given]
    command = [sys.executable, "-m", "rljob_cli", "run", *job.arguments, "--out", str(folder), "--output", "json"]
    output, errors = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115 - open as long as the `Run`
    with tempfile.TemporaryFile() as given:
        given.write(job.standard_input)
        given.seek(0)
        process = subprocess.Popen(
            [*command, *options],
            cwd=job.working_folder,
            stdin=given,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
    return Run(folder, process, output, errors)


def _text(file: IO[bytes]) -> str:
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")


def _result(line: dict[str, Any], folder: Path) -> Result:
    return Result(
        phase=line["phase"],
        reason=line["reason"],
        message=line["message"],
        steps=line["steps"],
        reward_first=line["rewardFirst"],
        reward_last=line["rewardLast"],
        checkpoint=line["checkpoint"],
        global_restarts=line["globalRestarts"],
        seconds=line["seconds"],
        folder=folder,
        troubles=tuple(f"{trouble['reason']}: {trouble['message']}" for trouble in line["troubles"]),
    )
