"""Which parts make a weight: of one epoch, weight, count and layout; in any order, reported twice, late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.names import Lineage, Stream, WeightVersion
from rljob_api.wire.identity import WeightId
from rljob_api.wire.weights import Probe, WeightPart
from rljob_workers.dcs.coordinator.records import Gathering
from rljob_workers.dcs.coordinator.weights import gathered


def make_part(index: int = 0, *, version: int = 1, lineage: int = 1, count: int = 3, layout: str = "a") -> WeightPart:
    return WeightPart(
        stream=Stream.POLICY,
        id=WeightId(lineage=Lineage(lineage), version=WeightVersion(version)),
        index=index,
        count=count,
        layout=layout,
        num_bytes=10,
        chunk_bytes=4,
        digest=f"{version}/{index}",
        address=f"host:{index}",
    )


def report(before: Gathering | None, part: WeightPart, *, epoch: int = 1, owner: str = "o") -> Gathering | None:
    return gathered(before, part, owner, epoch)


@pytest.mark.parametrize(
    ("reported", "there"),
    [
        pytest.param([make_part(0)], [0], id="one of three"),
        pytest.param([make_part(0), make_part(0)], [0], id="one of three told twice"),
        pytest.param([make_part(2), make_part(0)], [0, 2], id="in any order"),
        pytest.param([make_part(2), make_part(0), make_part(1)], [0, 1, 2], id="all"),
        pytest.param([make_part(0), make_part(1), make_part(2, version=2)], [2], id="a newer version begins anew"),
        pytest.param([make_part(0), make_part(1, version=0, lineage=2)], [1], id="a later lineage begins anew"),
    ],
)
def test_parts_come_together(reported: list[WeightPart], there: list[int]) -> None:
    gathering: Gathering | None = None
    for part in reported:
        gathering = report(gathering, part)
    assert gathering is not None
    assert sorted(gathering.parts) == there
    assert gathering.is_whole == (len(there) == 3)
    assert gathering.first.id == reported[-1].id


def test_a_part_of_an_older_weight_is_history() -> None:
    assert report(report(None, make_part(0, version=2)), make_part(1, version=1)) is None


def test_parts_of_two_epochs_never_make_a_weight() -> None:
    gathering = report(report(None, make_part(0, count=2)), make_part(1, count=2), epoch=2)
    assert gathering is not None
    assert sorted(gathering.parts) == [1]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(make_part(1, layout="b"), id="another layout"),
        pytest.param(make_part(1, count=2), id="another count"),
        pytest.param(make_part(3), id="an index beyond the count"),
    ],
)
def test_what_cannot_belong_together_is_refused(other: WeightPart) -> None:
    with pytest.raises(ValueError, match=r"part \d of"):
        report(report(None, make_part(0)), other)


def test_a_probe_comes_with_any_of_the_parts() -> None:
    probe = Probe(tokens=[1, 2], log_probs=[-0.5])
    gathering: Gathering | None = None
    for index in range(3):
        part = make_part(index)
        gathering = report(gathering, part.model_copy(update={"probe": probe}) if index == 1 else part)
    assert gathering is not None
    assert gathering.offer().probe == probe


@given(order=st.lists(st.integers(0, 2), max_size=8))
def test_a_weight_is_whole_when_and_only_when_every_part_was_reported(order: list[int]) -> None:
    gathering: Gathering | None = None
    for index in order:
        gathering = report(gathering, make_part(index), owner=f"owner of {index}")
    assert (gathering is not None and gathering.is_whole) == (set(order) == {0, 1, 2})
    if gathering is not None and gathering.is_whole:
        offer = gathering.offer()
        assert [part.index for part in offer.parts] == [0, 1, 2]
        assert [part.owner for part in offer.parts] == ["host:0", "host:1", "host:2"]
        assert offer.num_bytes == 30
