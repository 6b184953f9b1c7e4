"""Where a process computes, and how its ranks meet."""

import pytest
import torch

from rljob_workers.devices import group_backend, own_device


@pytest.mark.parametrize("is_there", [True, False])
def test_a_process_computes_on_the_first_device_that_it_sees(monkeypatch: pytest.MonkeyPatch, is_there: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: is_there)
    assert own_device() == torch.device("cuda:0" if is_there else "cpu")


def test_host_tensors_meet_over_gloo_whatever_the_device() -> None:
    assert group_backend(torch.device("cpu")) == "gloo"
    assert group_backend(torch.device("cuda", 0)) == "cpu:gloo,cuda:nccl"
