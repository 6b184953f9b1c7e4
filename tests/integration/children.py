"""What tests start dies with them, however they end: a killed test run leaves no server and no job behind."""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
"""Loaded before any fork: a child between fork and exec must not load libraries."""


def die_with_tests() -> None:
    """`preexec_fn` of a process; its parent's thread must outlive it, as the main thread does."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
