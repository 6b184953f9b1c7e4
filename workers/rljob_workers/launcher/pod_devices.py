"""The devices of a pod: dealt to its processes, and free of their last incarnations before a new incarnation uses them.

The launcher deals in the parent; the forked child makes it so before anything asks CUDA. A process is known by its
number and its start, written beside the logs, so that a later launcher finds it. Where the driver uses other numbers
(in most containers), no process waits.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rljob_api.machine import nvml
from rljob_api.machine.devices import VISIBLE, are_real, machine_devices
from rljob_api.machine.process_stat import STARTED, stat_of


class CudaBeforeForkError(RuntimeError):
    """CUDA was started in a process that forks others: it would not work in any of them."""


def slice_of(devices: Sequence[str], index: int, num_processes: int) -> tuple[str, ...]:
    """The devices of process `index` of a pod: neighbours, as many for each. None where the pod has none."""
    share, rest = divmod(len(devices), num_processes)
    assert not rest, f"{len(devices)} devices do not go evenly to {num_processes} processes"
    return tuple(devices[index * share : (index + 1) * share])


def see_only(devices: Sequence[str]) -> None:
    """In a forked child: CUDA shows these devices and no others. Of none, it shows none.

    NCCL logs why it fails, unless the pod's template sets something else. Nothing more is set for it: which
    network it uses (NCCL_SOCKET_IFNAME, NCCL_IB_HCA) a template knows, and torch's own watch over collectives is on.
    """
    os.environ[VISIBLE] = ",".join(devices)
    if are_real(devices):
        os.environ.setdefault("NCCL_DEBUG", "WARN")


def require_cuda() -> None:
    """In a forked child that sees devices: ValueError where torch shows none, since no job wants that on the CPU."""
    names = [name for name in os.environ.get(VISIBLE, "").split(",") if name]
    if not are_real(names):
        return
    import torch

    if not torch.cuda.is_available():
        raise ValueError(
            f"gpus: this process was given {', '.join(names)}, but torch {torch.__version__} shows no CUDA device."
            " Install a torch and a driver that do, or set gpus to 0."
        )


def require_no_cuda() -> None:
    """Raises CudaBeforeForkError if CUDA was started in this process. torch need not be imported."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise CudaBeforeForkError(
            "CUDA was started in a process that is to fork others, none of which could use it. Ask for devices after"
            " the fork, in rank or engine."
        )


def container_devices(field: str, gpus: int) -> tuple[str, ...]:
    """The devices of a container that was given `gpus` by the scheduler. `field` names in sentences who asked for them.

    ValueError where fewer are to be seen. Where none are listed, as there is no driver of NVIDIA's, they are numbered.
    """
    if not gpus:
        return ()
    found = machine_devices()
    if not found.devices:
        return tuple(str(number) for number in range(gpus))
    if len(found.devices) < gpus:
        raise ValueError(
            f"{field}: {gpus} devices are wanted, but this container sees {len(found.devices)} by {found.source}."
            " Give the worker's container all of its pod's devices."
        )
    return found.names[:gpus]


FREE_SECONDS = 60.0
"""For the driver to free what a killed process held: seconds where it is well. Shorter than what the core gives a rank
to register, so that the device is named and not the rank."""


POLL_SECONDS = 0.1


_FOLDER = "devices"


_GIB = 1 << 30


class DeviceNotFree(RuntimeError):
    """The last incarnation of this process still holds memory of its devices."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A process, and what it may compute on."""

    pid: int
    started: int
    """When, in the system's ticks since it booted: another process with this number started at another time."""
    devices: str
    """As it saw them in CUDA_VISIBLE_DEVICES; empty: it computes on the CPU."""


def take_over(name: str, devices: Sequence[str], logs: Path) -> None:
    """The process `name` begins on `devices`. Blocks while its last incarnation holds memory of any: DeviceNotFree."""
    record = logs.parent / _FOLDER / f"{name}.json"
    before = _read(record)
    if before is not None and are_real(devices):
        await_free(name, before, nvml.holders, started_at)
    _write(record, Tenant(os.getpid(), started_at(os.getpid()) or 0, os.environ.get(VISIBLE, "")))


def await_free(
    name: str,
    before: Tenant,
    holders: Callable[[], Sequence[nvml.MemoryHolder]],
    started: Callable[[int], int | None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Until no holder is `before`. DeviceNotFree, with its number and what it holds, after FREE_SECONDS."""
    deadline = clock() + FREE_SECONDS
    while left := left_behind(before, holders(), started(before.pid)):
        if clock() >= deadline:
            held = ", ".join(f"{_amount(holder.used_bytes)} of {holder.uuid}" for holder in left)
            raise DeviceNotFree(
                f"{name}: process {before.pid}, its last life, still holds {held} after {FREE_SECONDS:.0f} s. "
                "Look whether the driver hangs (nvidia-smi, dmesg)."
            )
        sleep(POLL_SECONDS)


def left_behind(before: Tenant, holders: Sequence[nvml.MemoryHolder], started: int | None) -> list[nvml.MemoryHolder]:
    """Which of `holders` are what `before` has left. `started`: of the process that has its number now, None if none.

    Pure. A process is gone before the driver has freed what it held: so one that is not there may hold memory.
    """
    if started is not None and started != before.started:
        return []
    return [holder for holder in holders if holder.pid == before.pid]


def started_at(pid: int) -> int | None:
    """When the process started, in the system's ticks; None where there is none."""
    stat = stat_of(pid)
    return None if stat is None else int(stat[STARTED])


def _amount(used_bytes: int | None) -> str:
    return "memory" if used_bytes is None else f"{used_bytes / _GIB:.1f} GiB"


def _read(record: Path) -> Tenant | None:
    try:
        return Tenant(**json.loads(record.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None  # the first incarnation, or one whose machine went down while it wrote


def _write(record: Path, tenant: Tenant) -> None:
    record.parent.mkdir(parents=True, exist_ok=True)
    beside = record.with_suffix(".new")
    beside.write_text(json.dumps(asdict(tenant)))
    beside.replace(record)
