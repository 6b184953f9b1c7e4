"""Who holds the devices of a rank or engine: its next life waits until its last one has let go of their memory.

Called by `ranks` and `engine_keeper` in the forked child, before anything asks CUDA. A process is known by its number
and its start, written down beside the logs when it begins: so it is found again by a launcher that knows nothing of it,
too. A driver that names processes by other numbers (in most containers) names none of ours, and nobody is waited for.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rljob_api import nvml
from rljob_api.machine_devices import VISIBLE, are_real
from rljob_api.process_stat import STARTED, stat_of

FREE_SECONDS = 60.0
"""For the driver to free what a killed process held: seconds where it is well. Shorter than what the core gives a rank
to register, so that the device is named and not the rank."""
POLL_SECONDS = 0.1

_FOLDER = "devices"
_GIB = 1 << 30


class DeviceNotFree(RuntimeError):
    """The last life of this process still holds memory of its devices."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A process, and what it may compute on."""

    pid: int
    started: int
    """When, in the system's ticks since it booted: another process with this number started at another time."""
    devices: str
    """As it saw them in CUDA_VISIBLE_DEVICES; empty: it computes on the CPU."""


def take_over(name: str, devices: Sequence[str], logs: Path) -> None:
    """The process `name` begins on `devices`. Blocks while its last life holds memory of any; raises DeviceNotFree."""
    record = logs.parent / _FOLDER / f"{name}.json"
    before = _read(record)
    if before is not None and are_real(devices):
        await_free(name, before, nvml.holders, started_at)
    _write(record, Tenant(os.getpid(), started_at(os.getpid()) or 0, os.environ.get(VISIBLE, "")))


def await_free(
    name: str,
    before: Tenant,
    holders: Callable[[], Sequence[nvml.Holder]],
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


def left_behind(before: Tenant, holders: Sequence[nvml.Holder], started: int | None) -> list[nvml.Holder]:
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
        return None  # the first life, or one whose machine went down while it wrote


def _write(record: Path, tenant: Tenant) -> None:
    record.parent.mkdir(parents=True, exist_ok=True)
    beside = record.with_suffix(".new")
    beside.write_text(json.dumps(asdict(tenant)))
    beside.replace(record)
