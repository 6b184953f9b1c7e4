"""What the queue's benchmark concludes from its values, and that it would notice wrong contents."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.bench.queue import workloads
from tests.bench.queue.contestants import OurQueue, chosen, contestants
from tests.bench.queue.figures import Figure, Unit, as_rows
from tests.bench.queue.workloads import make_columns, rows_between, wrong_rows


def _figure(unit: Unit, **values: float) -> Figure:
    figure = Figure("w0", "a figure", unit, aim=2.0)
    for side, value in values.items():
        for each in (value, value, 100 * value):  # an outlier moves no median
            figure.add(side.replace("_", " "), each)
    return figure


@pytest.mark.parametrize(
    ("figure", "best", "ratios"),
    [
        pytest.param(
            _figure(Unit.MILLISECONDS, ours_tcp=4.0, ours_unix=2.0, peer_1=20.0, peer_2=16.0),
            "peer 2",
            {"ours tcp": 4.0, "ours unix": 8.0},
            id="of times the peer's least counts",
        ),
        pytest.param(
            _figure(Unit.REQUESTS_PER_SECOND, ours_tcp=400.0, peer_1=50.0, peer_2=100.0),
            "peer 2",
            {"ours tcp": 4.0},
            id="of rates the peer's greatest counts",
        ),
        pytest.param(
            _figure(Unit.GIGABYTES_PER_SECOND, ours_tcp=3.0, loopback=4.0), None, {}, id="without a peer no ratio"
        ),
    ],
)
def test_ratios_are_to_the_peers_best_side(figure: Figure, best: str | None, ratios: dict[str, float]) -> None:
    assert figure.best_peer() == best
    assert figure.ratios() == pytest.approx(ratios)
    assert as_rows([figure])[0]["best_peer"] == best


def test_a_name_stands_for_all_sides_that_begin_with_it_unless_it_is_one_of_them() -> None:
    sides = contestants()
    assert [one.name for one in chosen(sides, ["peer 2", "ours"])] == ["peer 2", "ours tcp", "ours unix"]
    with pytest.raises(ValueError, match="'theirs' is no side"):
        chosen(sides, ["theirs"])


def test_our_sides_are_named_after_their_server() -> None:
    sides = [one for one in contestants({"valkey": Path("/v")}) if isinstance(one, OurQueue)]
    assert [(one.name, one.program) for one in sides] == [
        ("ours tcp valkey", Path("/v")),
        ("ours unix valkey", Path("/v")),
    ]


@pytest.mark.parametrize("workload", [workloads.jagged(), workloads.tiny()], ids=lambda one: one.name)
def test_rows_are_found_by_their_number_in_any_order(workload: workloads.Workload) -> None:
    source = make_columns(workload)
    part = {field: rows_between(column, 8, 16).select([3, 1, 7]).rows() for field, column in source.items()}
    assert wrong_rows(source, part) == []


@pytest.mark.parametrize("field", workloads.jagged().fields)
def test_one_wrong_element_is_noticed(field: str) -> None:
    source = make_columns(workloads.jagged())
    part = {name: [row.clone() for row in rows_between(column, 0, 8).rows()] for name, column in source.items()}
    part[field][5][-1] += 1
    assert [line.partition(":")[0] for line in wrong_rows(source, part)] == [f"row 5, field {field}"]


def test_a_row_of_another_type_is_noticed() -> None:
    source = make_columns(workloads.tiny())
    part = {name: rows_between(column, 0, 2).rows() for name, column in source.items()}
    part["rewards"] = [row.to(torch.float64) for row in part["rewards"]]
    assert len(wrong_rows(source, part)) == 2
