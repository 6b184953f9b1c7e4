"""Amounts of resources: a text or a whole number in the manifest, one text for every reader, and sums of them."""

from decimal import Decimal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.manifest import parse_manifest, render_manifest
from rljob_api.quantity import value, written
from rljob_api.spec.infrastructure import ResourcesSpec
from tests.unit.api.manifests import changed


def test_a_whole_number_is_taken_and_read_as_its_text() -> None:
    given = changed({"spec.roles.actor": {"resources": {"requests": {"cpu": 4, "memory": "8Gi"}}}})
    job = parse_manifest(yaml.safe_dump(given), "job.yaml")
    assert job.spec.roles.actor.resources.requests == {"cpu": "4", "memory": "8Gi"}
    assert parse_manifest(render_manifest(job), "job.yaml") == job


@pytest.mark.parametrize("wrong", [True, 1.5, -1, "2 cores", None, [1]])
def test_what_is_no_amount_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="requests"):
        ResourcesSpec.model_validate({"requests": {"cpu": wrong}})


@pytest.mark.parametrize(
    ("amount", "number"),
    [
        ("500m", "0.5"),
        ("2", "2"),
        (2, "2"),
        ("1.5Gi", "1610612736"),
        ("1Ki", "1024"),
        ("3k", "3000"),
        ("1e3", "1000"),
        ("100u", "0.0001"),
        ("2Ei", "2305843009213693952"),
    ],
)
def test_an_amount_is_a_number(amount: str | int, number: str) -> None:
    assert value(amount) == Decimal(number)


@pytest.mark.parametrize("text", ["", "Gi", "much", "1 2", "Infinity", "-Infinity", "NaN", "sNaN", "InfinityGi"])
def test_what_is_none_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is no amount"):
        value(text)


@given(st.integers(0, 10**18), st.sampled_from(["", "m", "u", "n"]))
def test_what_is_written_is_at_least_the_number_and_less_than_a_thousandth_more(number: int, suffix: str) -> None:
    amount = value(f"{number}{suffix}")
    again = value(written(amount))
    assert amount <= again < amount + Decimal("0.001")
