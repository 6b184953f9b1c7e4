"""Forked children: signals that a select loop can wait for, a fork that dies with its parent, its log, its end.

`parent` forks launchers with it, a launcher its ranks and engines. The caller must be single-threaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Protocol

from rljob_api.names import EXIT_BAD_MANIFEST, EXIT_FAILED
from rljob_api.times import timestamp
from rljob_api.wire.logs import begins_line

_OURS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


class SignalPipe:
    """Readable after SIGCHLD, SIGTERM or SIGINT. One per process."""

    def __init__(self) -> None:
        """Takes the three signals over."""
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.terminated = False
        """Whether SIGTERM or SIGINT was received."""
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler is needed for the wake-up
        signal.signal(signal.SIGTERM, self._terminate)
        signal.signal(signal.SIGINT, self._terminate)

    def fileno(self) -> int:
        """For select."""
        return self._read

    def drain(self) -> None:
        """Forgets the wake-ups so far."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 512):
                pass

    def close(self) -> None:
        """Closes the pipe, also this copy of it in a forked child (where `reset_signals` came first)."""
        os.close(self._read)
        os.close(self._write)

    def _terminate(self, *_: object) -> None:
        self.terminated = True


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Holds our signals back over a fork, so that none reaches the child while it has its parent's handlers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _OURS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def reset_signals() -> None:
    """In a forked child: default actions, and no wake-ups into the parent's pipe. Signals stay held for now."""
    signal.set_wakeup_fd(-1)
    for number in _OURS:
        signal.signal(number, signal.SIG_DFL)


def release_signals() -> None:
    """In a forked child that has its own handlers now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _OURS)


LAST_OUTPUT_BYTES = 4096


_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


_PR_SET_PDEATHSIG = 1


_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Child:
    """A forked process and where its output begins in its log."""

    pid: int
    log: Path
    log_offset: int

    def last_output(self) -> str:
        """The tail of what this incarnation wrote, at most 4 KiB."""
        return self.tail(LAST_OUTPUT_BYTES).encode()[-LAST_OUTPUT_BYTES:].decode(errors="ignore").strip()

    def tail(self, num_bytes: int) -> str:
        """The last so many bytes of what this incarnation wrote; of an echoed log, only what is still on disk."""
        with contextlib.suppress(OSError), self.log.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self.log_offset, end - num_bytes))
            return log.read(num_bytes).replace(b"\0", b"").decode(errors="replace")
        return ""

    def kill(self) -> None:
        """SIGKILL to the child and to its group, which a child that has just begun is not yet in."""
        for send in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                send(self.pid, signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM to the child alone: what it started is its own to end."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Exit:
    """A child that ended; -N for signal N."""

    pid: int
    code: int


class Closable(Protocol):
    """Something of the parent's that a child must not hold open."""

    def close(self) -> None:
        """Closes this process's copy."""


def fork_child(
    body: Callable[[], int],
    log: Path,
    *,
    on_terminate: Callable[[], None] | None = None,
    close: Sequence[Closable] = (),
    oom_score: int = 0,
) -> Child:
    """Forks; the child closes `close`, runs `body`, and exits with what that returns.

    `on_terminate` is its handler of SIGTERM, which no signal comes before; None: it ends. The child is the leader of a
    process group, and of a session: no terminal's Ctrl-C reaches it.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    offset = _mark_begin(log)
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    with signals_held():
        pid = os.fork()
        if pid == 0:
            _live(body, log, on_terminate, close, parent, oom_score)
    return Child(pid, log, offset)


def _mark_begin(log: Path) -> int:
    """Marks where this incarnation begins in a log that all share (`rljob logs --previous`); its size then."""
    with log.open("ab") as out:
        out.write(begins_line(timestamp(time.time())).encode())
        return out.tell()


def exec_program(arguments: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """In a forked child: the program takes its place, with its log, its process group and its death with its parent.

    Raises ValueError, with a sentence, for a program that cannot be started.
    """
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)  # what is ignored stays ignored over an exec
    try:
        os.execvpe(arguments[0], list(arguments), dict(environment))  # noqa: S606 -- no shell is wanted
    except OSError as error:
        raise ValueError(
            f"The program {arguments[0]} cannot be started: {error.strerror}. Install it in the worker's image."
        ) from error


def reap() -> list[Exit]:
    """Collects every child that has ended, and kills what was left of its process group."""
    ended: list[Exit] = []
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return ended
        if found is None:
            return ended
        # While the zombie is there, its number cannot be another group's.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(found.si_pid, signal.SIGKILL)
        _, status = os.waitpid(found.si_pid, 0)
        ended.append(Exit(found.si_pid, os.waitstatus_to_exitcode(status)))


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process when `parent` dies, also when it has died before this call."""
    if _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(EXIT_FAILED)


def is_users_error(error: BaseException) -> bool:
    """Whether `error` is a sentence of our code to a user: a plain ValueError raised in our own modules.

    The same type out of a library, and its subclasses (of parsing, of encoding), are failures like any other.
    """
    return type(error) is ValueError and _raised_in(error.__traceback__).startswith("rljob_")


def _live(
    body: Callable[[], int],
    log: Path,
    on_terminate: Callable[[], None] | None,
    close: Sequence[Closable],
    parent: int,
    oom_score: int,
) -> NoReturn:
    code = EXIT_FAILED
    try:
        die_with_parent(parent)
        os.setsid()
        _write_to(log)
        reset_signals()
        for inherited in close:
            inherited.close()
        if on_terminate is not None:
            signal.signal(signal.SIGTERM, lambda *_: on_terminate())
        release_signals()
        _volunteer_for_oom(oom_score)
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        code = body()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else EXIT_FAILED
    except BaseException as error:  # the edge of the process: its cause must reach the log
        code = _print_end_of(error, log)
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # not sys.exit: the parent's stack above us is not ours to unwind


def _print_end_of(error: BaseException, log: Path) -> int:
    if is_users_error(error):
        notes = getattr(error, "__notes__", [])  # the traceback of a user's code, which the sentence leads to
        for note in notes:
            sys.stderr.write(f"{note}\n")
        where = f" Its traceback is in logs/{log.name}." if notes else ""
        sys.stderr.write(f"{error}{where}\n")
        return EXIT_BAD_MANIFEST
    traceback.print_exception(error)
    return EXIT_FAILED


def _write_to(log: Path) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    silence = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(silence, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(silence)
    os.close(output)


def _volunteer_for_oom(score: int) -> None:
    """When memory runs out, a rank or an engine shall go and not the launcher that can report it."""
    if score:
        Path("/proc/self/oom_score_adj").write_text(str(score))


def _raised_in(trace: TracebackType | None) -> str:
    """Name of the module whose frame raised."""
    name = ""
    while trace is not None:
        name = trace.tb_frame.f_globals.get("__name__", "")
        trace = trace.tb_next
    return name


RANK_OOM_SCORE = 300
"""Points by which a rank goes before launcher, coordinator and Redis when memory runs out."""


def how_it_ended(code: int) -> str:
    """The end of a process, for a sentence."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
