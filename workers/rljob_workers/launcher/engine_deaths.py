"""What an engine has died of, by its log, and whether another start would die of the same.

Pure. `engines` asks; the count of vain starts outlives ranks and epochs. A server of several processes logs the
exception of one, and its own last line is that of its cleanup.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_HEADER = re.compile(r"^(?P<prefix>.*?)(?P<group>\+ Exception Group )?Traceback \(most recent call last\):\s*$")


_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+)(, in (?P<function>\S+))?')


_EXCEPTION = re.compile(r"^(?P<type>(?:[A-Za-z_][\w<>]*\.)*[A-Z]\w*[a-z]\w*)(: (?P<message>.*)|:?)$")


_FATAL = re.compile(r"^Fatal Python error: .+")


_OWN_END = re.compile(r"kill_process_tree called|[Rr]eceived sigquit")
"""SGLang's message where one of its processes has died of an exception: it kills all of them, itself included."""


_CONSEQUENCES = frozenset(
    (
        "BrokenPipeError",
        "CancelledError",
        "ChildProcessError",
        "ConnectionAbortedError",
        "ConnectionError",
        "ConnectionRefusedError",
        "ConnectionResetError",
        "EOFError",
        "GeneratorExit",
        "KeyboardInterrupt",
        "SystemExit",
    )
)
"""What processes die of that have lost another one, or were asked to end: shown where there is nothing else."""


_ACCESSORS = frozenset(
    ("__getattr__", "__getattribute__", "__call__", "_call_impl", "_wrapped_call_impl", "_wrapped_call")
)
"""Places in libraries that every call goes through: the frame above them is more specific."""


_INCOMPLETE = re.compile(r"(:|validation errors? for .*|\bfollowing.*)$")
"""Messages whose next lines name the cause."""


_MORE_LINES = 2


_STRAY_LINES = 50
"""Of other processes, between the frames of a traceback and its exception."""


LONGEST_SENTENCE = 1000
"""Characters."""


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception and where it was raised."""

    type: str
    """Without its module."""
    line: str
    """The exception's line in the traceback."""
    place: str | None = None
    """`package/module.py:7, in function`."""

    @property
    def sentence(self) -> str:
        """For a message."""
        line = self.line if len(self.line) <= LONGEST_SENTENCE else f"{self.line[: LONGEST_SENTENCE - 3]}..."
        return line if self.place is None else f"{line} ({self.place})"

    @property
    def is_consequence(self) -> bool:
        """Whether it was raised since another process had gone."""
        return self.type in _CONSEQUENCES


def died_of(log: str, last_lines: int | None = None) -> Raised | None:
    """The last exception that is no consequence of another process's; None where the log has no traceback.

    `last_lines`: of a process that was well for long, whose log may have exceptions that it has survived.
    """
    lines = log.splitlines()
    if last_lines is not None:
        lines = lines[-last_lines:]
    found = [raised for number in range(len(lines)) if (raised := _raised_at(lines, number)) is not None]
    causes = [raised for raised in found if not raised.is_consequence]
    return next(reversed(causes or found), None)


def killed_itself(log: str) -> bool:
    """Whether a server that was killed (SIGKILL) has logged that it does so itself."""
    return _OWN_END.search(log) is not None


def _raised_at(lines: list[str], number: int) -> Raised | None:
    if _FATAL.match(lines[number]):
        return Raised("Fatal Python error", lines[number].strip())
    header = _HEADER.match(lines[number])
    if header is None:
        return None
    prefix = header["prefix"]
    if header["group"]:
        prefix += "| "
    body = [line.removeprefix(prefix) for line in lines[number + 1 :]]
    place, strays = None, 0
    for position, line in enumerate(body):
        frame = _FRAME.match(line)
        if frame is not None:
            place = _nearer(place, frame)
        elif line[:1].isspace() or not line:
            continue  # source lines and the marks below them
        elif exception := _EXCEPTION.match(line):
            return Raised(exception["type"].rpartition(".")[2], _whole(line, body[position + 1 :]), place)
        elif strays == _STRAY_LINES or _HEADER.match(line):
            return None
        else:
            strays += 1
    return None


def _nearer(place: str | None, frame: re.Match[str]) -> str | None:
    function = frame["function"]
    if place is not None and function in _ACCESSORS:
        return place
    file = re.sub(r"^.*/(site|dist)-packages/", "", frame["file"])
    return f"{file}:{frame['line']}" + (f", in {function}" if function else "")


def _whole(line: str, rest: list[str]) -> str:
    """The exception's line, with what it announces."""
    if not _INCOMPLETE.search(line):
        return line.strip()
    more = [text.strip() for text in rest[:_MORE_LINES] if text.strip() and not _HEADER.match(text)]
    return " ".join([line.strip(), *more])


MAX_BY_ONE_CAUSE = 3
"""Starts in a row that one cause has ended: the model, the flags or the environment make it, and will again."""


MAX_STARTS = 10
"""Where causes pass by themselves, differ, or left no output. With the delays between starts that is a minute for an
engine that dies at once, and some for one that loads a model first: processes end and give their memory back."""


_PASSES = re.compile(
    r"out ?of ?memory|cannot allocate memory|address already in use|busy or unavailable|temporarily unavailable"
    r"|no space left|too many open files|stale file handle|input/output error|timed? ?out|connection (refused|reset)"
    r"|no free memory|not enough memory|NCCL|exit code:? -9\b",
    re.IGNORECASE,
)
"""What another process may hold that is about to end, or what a disk or network may get over. SGLang reports -9 of a
scheduler that was killed, as the kernel does for want of memory."""


_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)*", re.IGNORECASE)


class VainStarts:
    """Of one engine, from its first start with its settings on."""

    def __init__(self) -> None:
        self._was_up = False
        self._starts = 0
        self._cause: str | None = None
        self._by_cause = 0

    def up(self) -> None:
        """It has answered: its settings can work, and later deaths are none of theirs."""
        self._was_up = True

    def ended(self, cause: str | None) -> bool:
        """Counts the end of an incarnation, of `cause`, a sentence; whether another start would be in vain, too."""
        if self._was_up:
            return False
        named = None if cause is None else _NUMBERS.sub("#", cause)
        self._by_cause = self._by_cause + 1 if named is not None and named == self._cause else 1
        self._cause = named
        self._starts += 1
        is_lasting = cause is not None and _PASSES.search(cause) is None
        return self._starts >= MAX_STARTS or (is_lasting and self._by_cause >= MAX_BY_ONE_CAUSE)

    @property
    def summary(self) -> str:
        """How often, for a sentence."""
        return f"{self._starts} starts, and it was never up" if self._starts > 1 else "it was never up"
