"""Megatron's groups of one gang, and where a rank stands in them.

Megatron has them per process, so that a process holds one model. `rljob_api.rank_places` has its order of ranks.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from torch import distributed
from torch.distributed import HashStore  # type: ignore[attr-defined] # exported without saying so

from rljob_api.rank_places import place_of
from rljob_workers.devices import group_backend, own_device
from rljob_workers.trainers.megatron import cpu
from rljob_workers.trainers.megatron.passes import longest_wait
from rljob_workers.trainers.mesh import Mesh

if TYPE_CHECKING:
    from rljob_api.spec.parallelism import ParallelismSpec
    from rljob_workers.trainers.data_parallel import DataParallelGroup


@dataclass(frozen=True, slots=True)
class Place:
    """Which part of a stage's tensors one rank holds.

    Experts are dealt to `expert` ranks and cut over `expert_tensor` of them; all else is cut over `tensor` ranks.
    """

    tensor: int = 1
    tensor_rank: int = 0
    expert: int = 1
    expert_rank: int = 0
    expert_tensor: int = 1
    expert_tensor_rank: int = 0


def mesh_of(parallelism: ParallelismSpec, gang: DataParallelGroup) -> Mesh:
    """Which ranks of the gang share a model; a collective of it."""
    return Mesh.of(gang, [place_of(rank, gang.world, parallelism).data for rank in range(gang.world)])


def start_groups(parallelism: ParallelismSpec, gang: DataParallelGroup, *, timeout_seconds: float) -> Place:
    """Makes the groups; a collective of the gang, once in a process.

    Their deadline is `timeout_seconds`, and between stages a multiple of it: Megatron's own, of half an hour, would not
    follow that of the gang.
    """
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    device = own_device()
    _quieten()
    if device.type == "cpu":
        cpu.install()
    if not distributed.is_initialized():  # a gang of one has joined none
        alone = HashStore()
        timeout = timedelta(seconds=timeout_seconds)
        distributed.init_process_group(group_backend(device), store=alone, rank=0, world_size=1, timeout=timeout)
    with gang.collective("the groups of Megatron"):
        parallel_state.initialize_model_parallel(
            parallelism.tensor,
            parallelism.pipeline,
            parallelism.virtual_pipeline if parallelism.virtual_pipeline > 1 else None,
            context_parallel_size=parallelism.context,
            expert_model_parallel_size=parallelism.expert,
            expert_tensor_parallel_size=parallelism.expert_tensor,
            distributed_timeout_minutes=timeout_seconds / 60,
            create_gloo_process_groups=False,
        )
    if parallelism.pipeline > 1:
        _give_stages_time(longest_wait(parallelism) * timeout_seconds)
    if device.type == "cuda":
        model_parallel_cuda_manual_seed(0)  # nothing is drawn, but every pass asks for the states
    return Place(
        parallel_state.get_tensor_model_parallel_world_size(),
        parallel_state.get_tensor_model_parallel_rank(),
        parallel_state.get_expert_model_parallel_world_size(),
        parallel_state.get_expert_model_parallel_rank(),
        parallel_state.get_expert_tensor_parallel_world_size(),
        parallel_state.get_expert_tensor_parallel_rank(),
    )


def _give_stages_time(timeout_seconds: float) -> None:
    """Stages wait for more than one pass of each other, and Megatron has one deadline for all groups that it makes.

    A group's deadline holds from its start: what is sent from rank to rank does not follow a later one.
    """
    from megatron.core import parallel_state

    ranks = distributed.get_process_group_ranks(parallel_state.get_pipeline_model_parallel_group())
    parallel_state._PIPELINE_MODEL_PARALLEL_GROUP = distributed.new_group(
        ranks, timeout=timedelta(seconds=timeout_seconds), use_local_synchronization=True
    )


def _quieten() -> None:
    """No lists of settings and parameters in a rank's log, and no warnings of defaults, which users cannot act on.

    The last line of a dead rank's log stands in the sentence of its restart.
    """
    logging.getLogger("megatron.core").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module=r"megatron\.core")
