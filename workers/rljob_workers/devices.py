"""The device that a process computes on: the one place that decides between CUDA and the CPU.

Called by trainers, forward models and the torch engine, in the process that computes and never before a fork: to ask
CUDA whether it is there is to start it, and a CUDA that was started does not outlive a fork. Which devices a process
sees is decided before (CUDA_VISIBLE_DEVICES: its own, or none for a pod without GPUs), so the first one is its own.
"""

from __future__ import annotations

import torch

HOST = torch.device("cpu")


def own_device() -> torch.device:
    """The first CUDA device that this process sees, else the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else HOST


def group_backend(device: torch.device) -> str:
    """The backends of torch.distributed for ranks on `device`: one more for device tensors beside that for the host's.

    What ranks agree on lies on the host, whatever they compute on.
    """
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A host tensor on `device`; on the CPU itself.

    The copy comes by pinned memory, in the order of what is computed next; the CPU does not wait, and the caller may
    change `tensor` at once.
    """
    if device.type == "cpu":
        return tensor
    if tensor.numel() == 0:
        return tensor.to(device)  # there is nothing to pin
    return tensor.pin_memory().to(device, non_blocking=True)
