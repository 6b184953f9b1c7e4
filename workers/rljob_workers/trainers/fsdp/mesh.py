"""The mesh that a model is sharded over: all ranks of the actor's group, in one line.

torch's process group belongs to `data_parallel`, except that a single rank has none: it gets one of its own here, since
a sharded model cannot do without, even where every shard is whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import distributed
from torch.distributed import HashStore  # type: ignore[attr-defined] # exported without saying so

from rljob_workers.devices import group_backend

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from rljob_workers.trainers.data_parallel import DataParallelGroup


def mesh_of(group: DataParallelGroup, device: torch.device) -> DeviceMesh:
    """The mesh of `group`, whose ranks compute on devices of this kind; a collective."""
    from torch.distributed.device_mesh import init_device_mesh

    if not distributed.is_initialized():
        assert group.world == 1, "a group of several ranks has joined before"
        store = HashStore()
        distributed.init_process_group(group_backend(device), store=store, rank=0, world_size=1)
    with group.collective("the mesh of the sharded model"):
        return init_device_mesh(device.type, (group.world,))
