"""Host copies of a trainer's tensors: what is asked for has been copied, and a copy that failed says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from rljob_workers.devices import HOST
from rljob_workers.trainers.host_staging import HostCopies, HostStaging


def test_a_copy_is_of_the_dtype_that_is_asked_for_and_of_its_own_memory() -> None:
    staging, live = HostStaging(HOST), {"a": torch.ones(3), "b": torch.full((2, 2), 0.1)}
    copies, exact = staging.copy(live, torch.bfloat16), staging.copy(live)
    staging.settle()
    for tensor in live.values():
        tensor.zero_()
    assert list(copies) == ["a", "b"]
    assert {one.dtype for one in copies.values()} == {torch.bfloat16}
    assert torch.equal(exact["b"], torch.full((2, 2), 0.1))
    assert torch.equal(copies["b"], exact["b"].bfloat16())


def test_asking_for_a_tensor_waits_for_it_alone() -> None:
    waited: list[str] = []
    tensors = {name: torch.zeros(1) for name in "ab"}

    def wait_for(name: str) -> Callable[[], None]:
        return lambda: waited.append(name)

    copies = HostCopies(tensors, {name: wait_for(name) for name in tensors})
    assert copies.unfinished["a"] is tensors["a"]
    assert waited == []
    assert copies["b"] is tensors["b"]
    assert waited == ["b"]
    copies.wait()
    assert waited == ["b", "a", "b"]


def test_a_copy_that_failed_raises_what_it_failed_of() -> None:
    def fail() -> None:
        raise RuntimeError("the device is gone")

    copies = HostCopies({"a": torch.zeros(1)}, {"a": fail})
    for read in (copies.wait, lambda: copies["a"]):
        with pytest.raises(RuntimeError, match="the device is gone"):
            read()
