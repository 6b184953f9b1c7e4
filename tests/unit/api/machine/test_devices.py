"""Which devices there are, by the environment and the driver; and that a machine without a driver has none."""

import re

import pytest

from rljob_api.machine import nvml
from rljob_api.machine.devices import Device, are_real, machine_devices

GIB = 1 << 30
TWO = [nvml.NvidiaDevice(0, "GPU-a", 80 * GIB), nvml.NvidiaDevice(1, "GPU-b", 40 * GIB)]


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "devices", lambda: TWO)


A, B = Device("GPU-a", 80 * GIB), Device("GPU-b", 40 * GIB)
VISIBLE, PRETENDED = "CUDA_VISIBLE_DEVICES", "RLJOB_DEVICES"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        pytest.param({}, [A, B], id="all that the driver shows"),
        pytest.param({VISIBLE: ""}, [], id="none are visible"),
        pytest.param({VISIBLE: "1"}, [Device("1", 40 * GIB)], id="a number"),
        pytest.param({VISIBLE: "GPU-b, 0"}, [B, Device("0", 80 * GIB)], id="in their order"),
        pytest.param({VISIBLE: "MIG-x"}, [Device("MIG-x", None)], id="a part of a device"),
        pytest.param({VISIBLE: "0,-1,1"}, [Device("0", 80 * GIB)], id="up to the first that is none"),
        pytest.param(
            {PRETENDED: "fake:1:141", VISIBLE: "1"}, [Device("fake-0", 141 * GIB)], id="pretended ones come first"
        ),
        pytest.param(
            {PRETENDED: "fake:2"}, [Device(f"fake-{n}", 80 * GIB) for n in (0, 1)], id="pretended ones have 80 GiB"
        ),
        pytest.param({PRETENDED: "fake:0"}, [], id="a pretended machine without any"),
        pytest.param({PRETENDED: ""}, [A, B], id="an empty word says nothing"),
    ],
)
def test_devices(environment: dict[str, str], expected: list[Device]) -> None:
    assert list(machine_devices(environment).devices) == expected


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        pytest.param(
            {"RLJOB_DEVICES": "8"},
            "RLJOB_DEVICES: 8 is not of the right form. Give fake:8 for eight devices that are not there,"
            " or fake:8:141 for eight of 141 GiB.",
            id="a number alone",
        ),
        pytest.param(
            {"CUDA_VISIBLE_DEVICES": "0,0"},
            "CUDA_VISIBLE_DEVICES: 0,0 names device 0 twice, so that CUDA shows none. Name each once.",
            id="a device twice",
        ),
    ],
)
def test_what_no_one_can_mean_is_refused(environment: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(sentence) + "$"):
        machine_devices(environment)


def test_who_computes_on_its_devices() -> None:
    assert are_real(("GPU-a",))
    assert not are_real(())
    assert not are_real(("fake-0",))


def test_a_machine_without_the_drivers_library_has_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(nvml, "_LIBRARY", "libnot-there.so.1")
    assert nvml.devices() == []
    assert nvml.holders() == []
