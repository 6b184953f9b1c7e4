"""What a forked process is made into: as near to a new interpreter as one is that has its imports behind it.

Called by `server` and by `supervised`, in the child, right after the fork.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import importlib
import os
import random
import runpy
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import rljob_api.failpoints
from rljob_workers.launcher.forking import die_with_parent

MARK = "RLJOB_TEST_RUN"
MARK_CHARACTERS = 32


def _place_of_mark() -> int | None:
    """Where this process's first environment has it, which is what /proc shows whatever is set later."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    place: int | None = getenv(MARK.encode())
    return place


_PLACE_OF_MARK = _place_of_mark()


@dataclass(frozen=True, slots=True)
class Image:
    """`python -m PROGRAM ARGUMENTS`, or `python PROGRAM ARGUMENTS`, with this environment and these descriptors."""

    program: str
    """A module, or the path of a file."""
    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    fds: Mapping[int, int]
    """The number that it has in the new process: the number that it has here."""


def become(image: Image, parent: int) -> NoReturn:
    """Ends with the exit code of the program; dies with `parent`."""
    code: object = 1
    try:
        die_with_parent(parent)
        gc.freeze()  # what the parent had is never collected: its sockets' numbers may be others' here
        asyncio.set_event_loop(None)
        _reset_signals()
        _take(image.fds)
        os.chdir(image.folder)
        _surround(image.environment)
        random.seed()
        importlib.reload(rljob_api.failpoints)
        sys.argv = [image.program, *image.arguments]
        if image.program.endswith(".py"):
            runpy.run_path(image.program, run_name="__main__")
        else:
            runpy.run_module(image.program, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as leaving:
        code = leaving.code
    except BaseException:
        traceback.print_exc()
    finally:
        _leave(code)


def _leave(code: object) -> NoReturn:
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0 if code is None else code if isinstance(code, int) else 1)  # the stack above is the parent's


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _take(fds: Mapping[int, int]) -> None:
    """These descriptors under these numbers, and no other."""
    free = max(*fds, *fds.values()) + 1
    copies = {wanted: free + place for place, wanted in enumerate(fds)}
    for wanted, here in fds.items():
        os.dup2(here, copies[wanted])
    for wanted, copy in copies.items():
        os.dup2(copy, wanted)  # inheritable
    following = 0
    for wanted in (*sorted(fds), os.sysconf("SC_OPEN_MAX")):
        if wanted > following:  # an empty range would be taken for all
            os.closerange(following, wanted)
        following = wanted + 1


def _surround(environment: Mapping[str, str]) -> None:
    """Also in the memory that /proc shows: that is where a test finds the processes of its job."""
    os.environ.clear()
    os.environ.update(environment)
    mark = environment.get(MARK)
    if mark is not None and _PLACE_OF_MARK is not None:
        assert len(mark) == MARK_CHARACTERS
        ctypes.memmove(_PLACE_OF_MARK, mark.encode(), MARK_CHARACTERS)
