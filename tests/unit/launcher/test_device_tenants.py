"""A process waits for what its last incarnation held of its devices, and says by name what is never freed."""

import os
from pathlib import Path

import pytest

from rljob_api.machine import nvml
from rljob_api.machine.nvml import MemoryHolder
from rljob_workers.launcher import pod_devices
from rljob_workers.launcher.pod_devices import DeviceNotFree, Tenant, await_free, left_behind, started_at, take_over

BEFORE = Tenant(pid=40, started=1000, devices="GPU-a")
OWN, OTHER = MemoryHolder("GPU-a", 40, 3 << 30), MemoryHolder("GPU-a", 41, 1 << 30)


@pytest.mark.parametrize(
    ("holders", "started", "expected"),
    [
        pytest.param([], None, [], id="nobody holds anything"),
        pytest.param([OTHER], None, [], id="another process has a part of the device"),
        pytest.param([OWN, OTHER], None, [OWN], id="gone, and its memory is not free yet"),
        pytest.param([OWN], 1000, [OWN], id="killed, and not gone yet"),
        pytest.param([OWN], 2000, [], id="its number is another's by now"),
    ],
)
def test_what_the_last_incarnation_has_left(
    holders: list[MemoryHolder], started: int | None, expected: list[MemoryHolder]
) -> None:
    assert left_behind(BEFORE, holders, started) == expected


class Machine:
    """A clock that sleeping moves, and a driver that frees the memory at some time."""

    def __init__(self, frees_at: float) -> None:
        self.now = 0.0
        self._frees_at = frees_at

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def holders(self) -> list[MemoryHolder]:
        return [OTHER] if self.now >= self._frees_at else [OWN, OTHER]


def test_it_waits_no_longer_than_until_the_memory_is_free() -> None:
    machine = Machine(frees_at=2.0)
    await_free("actor-0.0", BEFORE, machine.holders, lambda _: None, machine.clock, machine.sleep)
    assert 2.0 <= machine.now < 2.0 + 2 * pod_devices.POLL_SECONDS


def test_memory_that_is_never_freed_has_a_name() -> None:
    machine = Machine(frees_at=1e9)
    with pytest.raises(DeviceNotFree) as failed:
        await_free("actor-0.0", BEFORE, machine.holders, lambda _: None, machine.clock, machine.sleep)
    assert str(failed.value) == (
        "actor-0.0: process 40, its last life, still holds 3.0 GiB of GPU-a after 60 s. "
        "Look whether the driver hangs (nvidia-smi, dmesg)."
    )


def test_a_process_is_known_by_its_start() -> None:
    assert started_at(os.getpid()) == started_at(os.getpid()) != started_at(1)
    assert started_at(1 << 22) is None


def test_incarnations_take_over_from_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[Tenant] = []
    monkeypatch.setattr(pod_devices, "await_free", lambda name, before, *_: waited.append(before))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a")
    take_over("actor-0.0", ("GPU-a",), tmp_path / "logs")
    assert waited == []
    take_over("actor-0.0", ("GPU-a",), tmp_path / "logs")
    take_over("actor-0.1", ("GPU-b",), tmp_path / "logs")
    assert waited == [Tenant(os.getpid(), started_at(os.getpid()) or 0, "GPU-a")]


def test_no_one_waits_for_devices_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "holders", lambda: pytest.fail("the driver was asked"))
    for devices in ((), ("fake-0",), ("fake-0",)):
        take_over("actor-0.0", devices, tmp_path / "logs")
