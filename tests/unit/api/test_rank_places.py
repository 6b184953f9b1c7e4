"""Where ranks stand in their model, which passes a stage keeps, and how long it waits: row by row."""

import pytest

from rljob_api.rank_places import RankPlace, bubble_share, passes_under_way, place_of
from rljob_api.spec.parallelism import ParallelismSpec

OF_SIXTEEN = ParallelismSpec(tensor=2, context=2, pipeline=2, expert=4, expert_tensor=2)
"""Two models, each on eight ranks."""


@pytest.mark.parametrize(
    ("rank", "expected"),
    [
        pytest.param(0, RankPlace(data=0, tensor=0, pipeline=0, context=0, expert=0), id="the first"),
        pytest.param(1, RankPlace(data=0, tensor=1, pipeline=0, context=0, expert=0), id="tensor ranks are neighbours"),
        pytest.param(2, RankPlace(data=0, tensor=0, pipeline=0, context=1, expert=1), id="then context"),
        pytest.param(5, RankPlace(data=1, tensor=1, pipeline=0, context=0, expert=2), id="then data"),
        pytest.param(8, RankPlace(data=0, tensor=0, pipeline=1, context=0, expert=0), id="then stages"),
        pytest.param(15, RankPlace(data=1, tensor=1, pipeline=1, context=1, expert=3), id="the last"),
    ],
)
def test_place(rank: int, expected: RankPlace) -> None:
    assert place_of(rank, 16, OF_SIXTEEN) == expected


@pytest.mark.parametrize(
    ("parallelism", "stage", "micro_batches", "expected"),
    [
        pytest.param({}, 0, 8, 1, id="one stage"),
        pytest.param({"pipeline": 4}, 0, 8, 4, id="the first of four, which goes ahead by three"),
        pytest.param({"pipeline": 4}, 3, 8, 1, id="the last, which turns each around"),
        pytest.param({"pipeline": 4}, 0, 2, 2, id="there are no more than two"),
        pytest.param({"pipeline": 4, "virtual_pipeline": 2}, 0, 8, 11, id="pieces: 2 x 3 ahead, a round of 4, and one"),
        pytest.param({"pipeline": 4, "virtual_pipeline": 2}, 3, 8, 5, id="the last with pieces"),
        pytest.param({"pipeline": 4, "virtual_pipeline": 2}, 0, 4, 8, id="two pieces of four"),
    ],
)
def test_passes_under_way(parallelism: dict[str, int], stage: int, micro_batches: int, expected: int) -> None:
    assert passes_under_way(stage, micro_batches, ParallelismSpec(**parallelism)) == expected


@pytest.mark.parametrize(
    ("parallelism", "micro_batches", "expected"),
    [
        pytest.param({}, 5, 0.0, id="nothing waits for itself"),
        pytest.param({"pipeline": 2}, 1, 1 / 2, id="one micro-batch keeps one stage of two busy"),
        pytest.param({"pipeline": 4}, 9, 3 / 12, id="three idle passes beside nine"),
        pytest.param({"pipeline": 4, "virtual_pipeline": 3}, 9, 3 / 30, id="of a third of the length"),
    ],
)
def test_bubbles(parallelism: dict[str, int], micro_batches: int, expected: float) -> None:
    assert bubble_share(micro_batches, ParallelismSpec(**parallelism)) == expected
