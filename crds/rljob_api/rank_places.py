"""Where each rank of a model that ranks share stands, and what a pipeline's stages wait for. Pure arithmetic.

The order of ranks is Megatron-core's ("tp-cp-ep-dp-pp" in its `parallel_state`), and so are the schedules: 1F1B and
interleaved (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters"). For plans.
"""

from __future__ import annotations

from dataclasses import dataclass

from rljob_api.spec.parallelism import ParallelismSpec


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Numbers from 0. Ranks that differ in `data` alone hold the same part of the model, but for experts."""

    data: int
    tensor: int
    pipeline: int
    """The stage."""
    context: int
    expert: int
    """Which of the groups of experts of its stage it has."""


def place_of(rank: int, num_ranks: int, parallelism: ParallelismSpec) -> RankPlace:
    """Place of a rank in a gang of `num_ranks`, whose models are data-parallel. Tensor ranks lie next to each other."""
    beside, tensor = divmod(rank, parallelism.tensor)
    beside, context = divmod(beside, parallelism.context)
    pipeline, data = divmod(beside, num_ranks // parallelism.ranks_per_model)
    within_stage = rank % (num_ranks // parallelism.pipeline)
    expert = within_stage // parallelism.expert_tensor % parallelism.expert
    return RankPlace(data, tensor, pipeline, context, expert)


def passes_under_way(stage: int, micro_batches: int, parallelism: ParallelismSpec) -> int:
    """Forward passes whose activations a stage keeps at most, each of one of its pieces of layers.

    The first stage goes ahead of the last one by a pass for each stage behind it; with pieces by two, and by a round of
    all stages for each piece but the last.
    """
    behind, pieces = parallelism.pipeline - 1 - stage, parallelism.virtual_pipeline
    ahead = behind if pieces == 1 else 2 * behind + (pieces - 1) * parallelism.pipeline
    return min(ahead + 1, micro_batches * pieces)


def bubble_share(micro_batches: int, parallelism: ParallelismSpec) -> float:
    """The part of a schedule's time in which a stage has nothing to do: (p - 1) / (v m + p - 1)."""
    idle = parallelism.pipeline - 1
    return idle / (parallelism.virtual_pipeline * micro_batches + idle)
