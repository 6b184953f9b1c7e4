"""Processes that users' functions start: how those of `multiprocessing` begin, and the end of all that a process left.

For the processes that call users' functions. Imports nothing of ours.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import multiprocessing.context
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import popen_fork, resource_tracker
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.process import BaseProcess
from multiprocessing.resource_tracker import ResourceTracker
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


_LIBC = ctypes.CDLL(None, use_errno=True)


_END_SECONDS = 5.0
"""For processes that were killed to end."""


_TRACKER_SECONDS = 1.0
"""For the process in which `multiprocessing` notes semaphores to unlink those that the others have left, and to end."""


_BOOTSTRAP = "importlib._bootstrap"
"""The module that runs imports, as the package `importlib`, which is loaded long before, names it."""


class _Process(ForkServerProcess):
    """A process that begins in the server, and forked where a module that is being imported starts it.

    From the server it would import that module to get its function, and start another, or, of a pool, fail.
    """

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any:  # noqa: ANN401, N802 - as multiprocessing names and types it
        return popen_fork.Popen(process_obj) if _imports_now() else ForkServerProcess._Popen(process_obj)


class _Context(ForkServerContext):
    Process = _Process


class _Tracker(ResourceTracker):
    """The process that notes semaphores, and unlinks those that are left when all processes of users have ended.

    In a session of its own: a rank's process is killed with its group, and their names would stay to the next boot. It
    warns of none: how our processes end is no leak of a user's.
    """

    _fd: int | None
    _pid: int | None

    def ensure_running(self) -> None:
        """Starts it once; a later one is the library's."""
        with self._lock:  # type: ignore[attr-defined]
            if self._fd is None:
                reading, self._fd = os.pipe()
                os.set_inheritable(reading, True)
                command = [sys.executable, "-c", f"from {ResourceTracker.__module__} import main; main({reading})"]
                quiet = {**os.environ, "PYTHONWARNINGS": "ignore"}
                self._pid = os.posix_spawn(sys.executable, command, quiet, setsid=True)
                os.close(reading)
        super().ensure_running()


def _imports_now() -> bool:
    """True where this thread is in the middle of an import."""
    return any(frame.f_globals.get("__name__") == _BOOTSTRAP for frame, _ in traceback.walk_stack(None))


def begin_from_a_server() -> None:
    """Lets processes and pools of `multiprocessing` begin in a server of one thread, as Python 3.14 does.

    Users' functions are called in threads: a process that is forked there has all locks as they are at that moment, and
    waits for ever for one that another thread had. Only the default: a user may set another one, or ask for a context.
    They import no main module, as users' functions are in none: ours would take each of them a second.
    """
    sys.modules["__main__"] = ModuleType("__main__")
    context = _Context()
    # Not set_start_method: after it a user's own would be refused.
    multiprocessing.context._default_context._default_context = context  # type: ignore[attr-defined]
    resource_tracker._resource_tracker.__class__ = _Tracker


def run_and_end_all(work: Callable[[], None]) -> NoReturn:
    """Runs `work` in a child process, and ends as it did, once nothing is left of what the child had started.

    SIGTERM and the death of who started this process end the work. To be called in the main thread of a process that
    has no other.
    """
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # whatever the child leaves is ours, also in a session of its own
    signal.signal(signal.SIGTERM, _end)
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    child = os.fork()
    if child == 0:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _work(work)
    status = _status_of(child)
    end_descendants()
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        os._exit(code)
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    os._exit(1)


def _work(work: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        work()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)  # threads of calls that hang would keep the process


def _status_of(child: int) -> int:
    """The status of its end; what else ends meanwhile is collected, too."""
    while True:
        pid, status = os.wait()
        if pid == child:
            return status


def _end(*_: object) -> NoReturn:
    end_descendants()
    os._exit(1)


def end_descendants() -> None:
    """Kills all children of this process, and those that become its children as these end."""
    begun = time.monotonic()
    while (spent := time.monotonic() - begun) < _END_SECONDS:
        for pid in _children():
            if spent < _TRACKER_SECONDS and _is_tracker(pid):
                continue
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.01)
        except ChildProcessError:
            return


def _is_tracker(pid: int) -> bool:
    try:
        return ResourceTracker.__module__.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _children() -> list[int]:
    parent = str(os.getpid())
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # Behind the name, which may have blanks and brackets: state, parent.
            if (folder / "stat").read_text().rpartition(")")[2].split()[1] == parent:
                found.append(int(folder.name))
    return found
