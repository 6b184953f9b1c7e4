"""The plan of a run has ranks where Megatron's own groups have them."""

import warnings
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rljob_api.rank_places import place_of
from rljob_api.spec.parallelism import ParallelismSpec


@pytest.fixture(scope="module")
def rank_generator() -> Any:
    """Megatron's class; its import warns of libraries of a GPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.parallel_state import RankGenerator
    return RankGenerator


SMALL = st.integers(1, 3)


@given(tensor=SMALL, context=SMALL, pipeline=SMALL, data=SMALL, expert=st.integers(1, 9), expert_tensor=SMALL)
def test_ranks_stand_where_megatron_has_them(
    rank_generator: Any, tensor: int, context: int, pipeline: int, data: int, expert: int, expert_tensor: int
) -> None:
    of_stage = tensor * context * data
    assume(of_stage % (expert * expert_tensor) == 0)
    order = "tp-cp-ep-dp-pp"
    dense = rank_generator(tp=tensor, ep=1, dp=data, pp=pipeline, cp=context, order=order)
    beside = of_stage // (expert * expert_tensor)
    of_experts = rank_generator(tp=expert_tensor, ep=expert, dp=beside, pp=pipeline, cp=1, order=order)
    own = ParallelismSpec(
        tensor=tensor, context=context, pipeline=pipeline, expert=expert, expert_tensor=expert_tensor, sequence=None
    )
    places = [place_of(rank, of_stage * pipeline, own) for rank in range(of_stage * pipeline)]
    for generator, letters, name in (
        (dense, "tp", "tensor"),
        (dense, "cp", "context"),
        (dense, "dp", "data"),
        (dense, "pp", "pipeline"),
        (of_experts, "ep", "expert"),
    ):
        for group in generator.get_ranks(letters):
            assert [getattr(places[rank], name) for rank in group] == list(range(len(group)))
