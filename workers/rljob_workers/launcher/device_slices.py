"""The devices of a pod, dealt to its processes: which each one sees.

Called by the launcher, in the parent to deal and in the child, before anything could ask CUDA, to make it so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rljob_api.machine_devices import VISIBLE, are_real, machine_devices


class CudaBeforeForkError(RuntimeError):
    """CUDA was started in a process that forks others: it would not work in any of them."""


def slice_of(devices: Sequence[str], index: int, num_processes: int) -> tuple[str, ...]:
    """The devices of process `index` of a pod: neighbours, as many for each. None where the pod has none."""
    share, rest = divmod(len(devices), num_processes)
    assert not rest, f"{len(devices)} devices do not go evenly to {num_processes} processes"
    return tuple(devices[index * share : (index + 1) * share])


def see_only(devices: Sequence[str]) -> None:
    """In a forked child: CUDA shows these devices and no others. Of none, it shows none.

    NCCL says in the log why it fails, unless the pod's template says something else. Nothing more is set for it: which
    network it uses (NCCL_SOCKET_IFNAME, NCCL_IB_HCA) a template knows, and torch's own watch over collectives is on.
    """
    os.environ[VISIBLE] = ",".join(devices)
    if are_real(devices):
        os.environ.setdefault("NCCL_DEBUG", "WARN")


def require_cuda() -> None:
    """In a forked child that sees devices: ValueError where torch shows none, since nobody wants that on the CPU."""
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
    """The devices of a container that was given `gpus` by the scheduler. `field` says in sentences who asked for them.

    ValueError where fewer are to be seen. Where nobody lists any, as there is no driver of NVIDIA's, they are numbered.
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
