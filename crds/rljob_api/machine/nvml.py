"""Asks NVIDIA's driver about this machine's devices, by its library NVML and without starting CUDA.

Called by `machine_devices` (which devices there are) and by launchers (which process holds memory of a device). A
machine without the library has no such devices: every function answers with nothing. In a container the driver names
processes by the numbers of the host or not at all, so that a process of the container may not find itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_LIBRARY = "libnvidia-ml.so.1"


_SUCCESS = 0


_INSUFFICIENT_SIZE = 7


_UUID_BYTES = 96


_UNKNOWN_BYTES = (1 << 64) - 1
"""The driver's answer where it does not know how much memory a process holds."""


@dataclass(frozen=True, slots=True)
class NvidiaDevice:
    """A device of this machine."""

    index: int
    """In the order of the PCI bus, which CUDA follows only if CUDA_DEVICE_ORDER says so: name devices by `uuid`."""
    uuid: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryHolder:
    """A process that holds memory of a device."""

    uuid: str
    """The device."""
    pid: int
    used_bytes: int | None
    """None where the driver does not know."""


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _ProcessInfo(ctypes.Structure):
    """An entry of `nvmlDeviceGetComputeRunningProcesses_v3`."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def devices() -> list[NvidiaDevice]:
    """All devices that the driver shows to this process."""
    with _library() as nvml:
        return [] if nvml is None else [device for device, _ in _devices(nvml)]


def holders() -> list[MemoryHolder]:
    """Processes that hold memory of any of the devices."""
    with _library() as nvml:
        if nvml is None:
            return []
        return [holder for device, handle in _devices(nvml) for holder in _holders(nvml, device.uuid, handle)]


@contextmanager
def _library() -> Iterator[ctypes.CDLL | None]:
    """NVML, open for one question; None where it is not there or does not work."""
    try:
        nvml = ctypes.CDLL(_LIBRARY)
    except OSError:
        yield None
        return
    if nvml.nvmlInit_v2() != _SUCCESS:
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _devices(nvml: ctypes.CDLL) -> Iterator[tuple[NvidiaDevice, ctypes.c_void_p]]:
    count = ctypes.c_uint()
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != _SUCCESS:
        return
    for index in range(count.value):
        handle, memory, uuid = ctypes.c_void_p(), _Memory(), ctypes.create_string_buffer(_UUID_BYTES)
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != _SUCCESS:
            continue  # one that is lost, or another's
        named = nvml.nvmlDeviceGetUUID(handle, uuid, _UUID_BYTES) == _SUCCESS
        if named and nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == _SUCCESS:
            yield NvidiaDevice(index, uuid.value.decode(), int(memory.total)), handle


def _holders(nvml: ctypes.CDLL, uuid: str, handle: ctypes.c_void_p) -> list[MemoryHolder]:
    room = 64
    while True:
        count, found = ctypes.c_uint(room), (_ProcessInfo * room)()
        answer = nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), found)
        if answer != _INSUFFICIENT_SIZE:
            break
        room = 2 * max(room, count.value)
    if answer != _SUCCESS:
        return []
    return [
        MemoryHolder(uuid, info.pid, None if info.used_bytes == _UNKNOWN_BYTES else int(info.used_bytes))
        for info in found[: count.value]
    ]
