"""How a pod's devices are dealt to its processes, and what a container's are."""

import os
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.launcher.pod_devices import (
    CudaBeforeForkError,
    container_devices,
    require_cuda,
    require_no_cuda,
    see_only,
    slice_of,
)

FIELD = "spec.roles.actor.gpus"


@given(num_processes=st.integers(1, 8), share=st.integers(0, 8))
def test_each_device_goes_to_one_process_in_their_order(num_processes: int, share: int) -> None:
    devices = [f"GPU-{number}" for number in range(num_processes * share)]
    slices = [slice_of(devices, index, num_processes) for index in range(num_processes)]
    assert [name for part in slices for name in part] == devices
    assert {len(part) for part in slices} == {share}


@pytest.mark.parametrize(("devices", "seen"), [((), ""), (("GPU-a", "GPU-b"), "GPU-a,GPU-b")])
def test_cuda_shows_the_slice_and_no_more(monkeypatch: pytest.MonkeyPatch, devices: tuple[str, ...], seen: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    see_only(devices)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen


def test_a_process_that_started_cuda_forks_no_one(monkeypatch: pytest.MonkeyPatch) -> None:
    started = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True))
    monkeypatch.setitem(sys.modules, "torch", started)
    with pytest.raises(CudaBeforeForkError):
        require_no_cuda()
    started.cuda.is_initialized = lambda: False
    require_no_cuda()
    monkeypatch.delitem(sys.modules, "torch")
    require_no_cuda()


@pytest.mark.parametrize("seen", ["", "fake-0,fake-1"])
def test_a_process_without_devices_needs_no_cuda(monkeypatch: pytest.MonkeyPatch, seen: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    require_cuda()
    assert "torch" not in sys.modules


def test_a_process_with_devices_that_torch_does_not_show_states_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a")
    none = SimpleNamespace(__version__="2.0", cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", none)
    with pytest.raises(ValueError, match=r"^gpus: this process was given GPU-a, but torch 2\.0 shows no CUDA device"):
        require_cuda()
    none.cuda.is_available = lambda: True
    require_cuda()


def test_a_container_uses_as_many_as_the_scheduler_gave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c")
    assert container_devices(FIELD, 0) == ()
    assert container_devices(FIELD, 2) == ("GPU-a", "GPU-b")
    with pytest.raises(ValueError, match=r"^spec\.roles\.actor\.gpus: 4 devices are wanted, but this container sees 3"):
        container_devices(FIELD, 4)


def test_devices_that_no_one_lists_are_numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLJOB_DEVICES", "fake:0")
    assert container_devices(FIELD, 2) == ("0", "1")
