"""What is read of the driver's library, with a library of two devices that is called as C is."""

import ctypes
from ctypes import CFUNCTYPE, POINTER, c_char, c_int, c_uint, c_ulonglong, c_void_p
from types import SimpleNamespace
from typing import Any

import pytest

from rljob_api.machine import nvml
from rljob_api.machine.nvml import MemoryHolder, NvidiaDevice

GIB = 1 << 30
UUIDS = {1: b"GPU-a", 2: b"GPU-b"}
PROCESSES = {1: [(40, 3 * GIB), (41, (1 << 64) - 1)], 2: [(42 + n, GIB) for n in range(100)]}
"""More on the second device than fit into the first answer."""


def library(initialises: bool = True) -> SimpleNamespace:
    def count(found: Any) -> int:
        found[0] = 2
        return 0

    def by_index(index: int, handle: Any) -> int:
        handle[0] = index + 1
        return 0

    def uuid(handle: int, text: Any, length: int) -> int:
        ctypes.memmove(text, UUIDS[handle] + b"\0", len(UUIDS[handle]) + 1)
        return 0 if length > len(UUIDS[handle]) else 7

    def memory(handle: int, sizes: Any) -> int:
        sizes[0], sizes[1], sizes[2] = 80 * GIB * handle, 1, 2
        return 0

    def processes(handle: int, room: Any, found: Any) -> int:
        known = PROCESSES[handle]
        fits, room[0] = room[0] >= len(known), len(known)
        if not fits:
            return 7
        for number, (pid, used) in enumerate(known):
            found[number].pid, found[number].used_bytes = pid, used
        return 0

    return SimpleNamespace(
        nvmlInit_v2=CFUNCTYPE(c_int)(lambda: 0 if initialises else 9),
        nvmlShutdown=CFUNCTYPE(c_int)(lambda: 0),
        nvmlDeviceGetCount_v2=CFUNCTYPE(c_int, POINTER(c_uint))(count),
        nvmlDeviceGetHandleByIndex_v2=CFUNCTYPE(c_int, c_uint, POINTER(c_void_p))(by_index),
        nvmlDeviceGetUUID=CFUNCTYPE(c_int, c_void_p, POINTER(c_char), c_uint)(uuid),
        nvmlDeviceGetMemoryInfo=CFUNCTYPE(c_int, c_void_p, c_void_p)(
            lambda handle, sizes: memory(handle, ctypes.cast(sizes, POINTER(c_ulonglong)))
        ),
        nvmlDeviceGetComputeRunningProcesses_v3=CFUNCTYPE(c_int, c_void_p, POINTER(c_uint), c_void_p)(
            lambda handle, room, found: processes(handle, room, ctypes.cast(found, POINTER(nvml._ProcessInfo)))
        ),
    )


def test_devices_and_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library())
    assert nvml.devices() == [NvidiaDevice(0, "GPU-a", 80 * GIB), NvidiaDevice(1, "GPU-b", 160 * GIB)]


def test_who_holds_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library())
    found = nvml.holders()
    assert found[:2] == [MemoryHolder("GPU-a", 40, 3 * GIB), MemoryHolder("GPU-a", 41, None)]
    assert found[2:] == [MemoryHolder("GPU-b", 42 + n, GIB) for n in range(100)]


def test_a_driver_that_does_not_work_shows_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library(initialises=False))
    assert nvml.devices() == []
    assert nvml.holders() == []
