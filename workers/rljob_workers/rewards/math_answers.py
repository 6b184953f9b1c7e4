"""The reward mathVerify: whether an answer is the label's expression, by the package math-verify in processes beside.

math-verify bounds its time by a signal, which only a process's main thread gets, and rewards are asked in threads. So
each check is done by a small process of its own main thread (`math_process`); one that overruns all the same is
ended, and another takes its place.
"""

from __future__ import annotations

import json
import logging
import queue
import select
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rljob_workers.rewards.base import Answer, Outcome, Reward, RewardMissing, named_prompt
from rljob_workers.rewards.builtin import expected_label

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOG = logging.getLogger(__name__)

NUM_PROCESSES = 2
"""Beside one rollout rank. A check takes milliseconds; a second process works on while one waits for its time limit."""

_START_SECONDS = 120.0
"""For the imports, on a busy machine."""

_GRACE_SECONDS = 2.0


class _Overrun(Exception):
    """A process has not answered in time, or is gone."""


class _Process:
    """One that checks; used by one thread at a time."""

    def __init__(self, timeout_seconds: int) -> None:
        command = [sys.executable, "-m", "rljob_workers.rewards.math_process", str(timeout_seconds)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        # Reading the label and the answer, and comparing: each by a time limit of its own.
        self._limit = 4.0 * timeout_seconds + _GRACE_SECONDS
        self._line(_START_SECONDS)

    def ask(self, label: str, response: str) -> bool | None:
        """Whether they are the same; None for a label that is no expression. Raises _Overrun."""
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps([label, response]).encode() + b"\n")
            self._child.stdin.flush()
        except OSError as error:
            raise _Overrun(str(error)) from error
        answer: bool | None = json.loads(self._line(self._limit))
        return answer

    def _line(self, seconds: float) -> bytes:
        assert self._child.stdout is not None
        ready, _, _ = select.select([self._child.stdout], [], [], seconds)
        line = self._child.stdout.readline() if ready else b""
        if not line:
            self.end()
            raise _Overrun(f"no answer within {seconds:g} s")
        return line

    def end(self) -> None:
        """May be called twice."""
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                with suppress(OSError):  # the rest could not be written
                    pipe.close()


class MathVerify(Reward):
    """1.0 for the label's expression, else 0.0; RewardMissing where the label is none."""

    def __init__(self, timeout_seconds: int, field: str) -> None:
        """Raises ValueError where math-verify is not installed."""
        if find_spec("math_verify") is None:
            raise ValueError(f"{field}: needs the package math-verify. Install it: pip install 'rljob[math]'.")
        self._timeout_seconds = timeout_seconds
        self._field = field
        self._idle: queue.SimpleQueue[_Process | None] = queue.SimpleQueue()
        for _ in range(NUM_PROCESSES):
            self._idle.put(None)
        self._threads = ThreadPoolExecutor(NUM_PROCESSES, thread_name_prefix="rljob-math")

    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> list[list[Outcome]]:
        """Raises ValueError for a prompt without a label."""
        labels = [[gold_text(expected_label(answer)) for answer in group] for group in groups]
        asked = [
            [self._threads.submit(self._score, answer, label) for answer, label in zip(group, golds, strict=True)]
            for group, golds in zip(groups, labels, strict=True)
        ]
        return [[each.result() for each in group] for group in asked]

    def close(self) -> None:
        """Ends the processes that are idle; others end with their last answer, since none asks them any more."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        while not self._idle.empty():
            process = self._idle.get()
            if process is not None:
                process.end()

    def _score(self, answer: Answer, label: str) -> Outcome:
        process: Any = self._idle.get()
        try:
            process = process or _Process(self._timeout_seconds)
            is_same = process.ask(label, answer.response)
        except _Overrun as error:
            process = None
            _LOG.warning("mathVerify: %s for %r; it gets 0.0", error, answer.response[:200])
            return 0.0
        finally:
            self._idle.put(process)
        if is_same is None:
            return RewardMissing(
                f"{self._field}: the label {label!r:.80} of {named_prompt(answer.prompt)} is no expression that"
                " math-verify reads."
            )
        return float(is_same)


def gold_text(label: str) -> str:
    """The result in a label: the text behind the last `####` where it has one."""
    return label.rpartition("####")[2].strip()
