"""Which devices this machine, or this container, has for the processes of a job.

Called by `rljob run` and by the launcher in a pod; asks the environment and the driver, and never starts CUDA. What is
there first counts:

1. `RLJOB_DEVICES=fake:8`: eight devices that are not there, for dry runs and tests; `fake:8:141` says that each has
   141 GiB (80 without). Processes get slices of them, and compute on the CPU, since no CUDA device has such a name.
2. `CUDA_VISIBLE_DEVICES`: what the parent of this process gives it.
3. NVML: all that the driver shows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rljob_api.cluster import PRETENDED_DEVICES as PRETENDED
from rljob_api.machine import nvml

VISIBLE = "CUDA_VISIBLE_DEVICES"


FAKE = "fake-"
"""With this begins the name of a device that is not there."""


_GIB = 1 << 30


_FAKE_GIB = 80


_FAKE_FORM = re.compile(r"fake:(\d{1,4})(?::(\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class Device:
    """A device as CUDA_VISIBLE_DEVICES names it."""

    name: str
    """A number, a UUID (`GPU-...`, `MIG-...`), or `fake-N`."""
    memory_bytes: int | None
    """None where no source on this machine knows it."""


@dataclass(frozen=True, slots=True)
class MachineDevices:
    """The devices, and the source that names them."""

    devices: tuple[Device, ...]
    source: str
    """As part of a sentence: by what they are known."""

    @property
    def names(self) -> tuple[str, ...]:
        """As CUDA_VISIBLE_DEVICES lists them."""
        return tuple(device.name for device in self.devices)


def machine_devices(environment: Mapping[str, str] = os.environ) -> MachineDevices:
    """The devices of this process. ValueError, with a sentence, where the environment names no usable devices."""
    pretended = environment.get(PRETENDED)
    if pretended:
        return MachineDevices(_fakes(pretended), f"{PRETENDED}={pretended}")
    seen = nvml.devices()
    visible = environment.get(VISIBLE)
    if visible is not None:
        return MachineDevices(_visible(visible, seen), f"{VISIBLE}={visible}")
    return MachineDevices(tuple(Device(one.uuid, one.memory_bytes) for one in seen), "its driver")


def are_real(names: Sequence[str]) -> bool:
    """Whether a process with these devices computes on them: there are some, and they are there."""
    return bool(names) and not any(name.startswith(FAKE) for name in names)


def _fakes(given: str) -> tuple[Device, ...]:
    form = _FAKE_FORM.fullmatch(given)
    if form is None:
        raise ValueError(
            f"{PRETENDED}: {given} is not of the right form. Give fake:8 for eight devices that are not there, "
            "or fake:8:141 for eight of 141 GiB."
        )
    memory = int(form[2] or _FAKE_GIB) * _GIB
    return tuple(Device(f"{FAKE}{number}", memory) for number in range(int(form[1])))


def _visible(given: str, seen: Sequence[nvml.NvidiaDevice]) -> tuple[Device, ...]:
    """As CUDA reads the list: up to the first name that is none."""
    known = {str(one.index): one.memory_bytes for one in seen} | {one.uuid: one.memory_bytes for one in seen}
    names: list[str] = []
    for name in (part.strip() for part in given.split(",")):
        if name in ("", "-1"):
            break
        if name in names:
            raise ValueError(f"{VISIBLE}: {given} names device {name} twice, so that CUDA shows none. Name each once.")
        names.append(name)
    return tuple(Device(name, known.get(name)) for name in names)
