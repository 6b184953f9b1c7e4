"""How recordings are compared: texts, the first difference, differences that are applied, renames."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recorded.canonical import Json, first_difference, text_of
from tests.recorded.deltas import applied, delta
from tests.recorded.renames import renamed, renamed_within

VALUES: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=12,
)
param = pytest.param


@pytest.mark.parametrize(
    ("recorded", "replayed", "expected"),
    [
        param({"a": 1, "b": 2}, {"b": 2, "a": 1}, None, id="the order of keys is no difference"),
        param({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, "a[1].b was 2, and is 3", id="a value within a list"),
        param({"a": 1}, {"a": 1.0}, "a was 1, and is 1.0", id="a number of another kind"),
        param({"a": True}, {"a": 1}, "a was true, and is 1", id="a flag and a number"),
        param({"a": 1}, {}, "a was 1, and is (absent)", id="a field that is gone"),
        param({}, {"a": None}, "a was (absent), and is null", id="a field that is new"),
        param([1], [1, 2], "[1] was (absent), and is 2", id="an entry that is new"),
        param({"b": 1, "a": 1}, {"b": 2, "a": 2}, "a was 1, and is 2", id="the first by name"),
        param([], {}, "the whole was [], and is {}", id="another kind of value"),
    ],
)
def test_the_first_difference(recorded: Json, replayed: Json, expected: str | None) -> None:
    found = first_difference(recorded, replayed)
    assert (None if found is None else str(found)) == expected


@given(VALUES, VALUES)
def test_there_is_a_difference_wherever_texts_differ(recorded: Json, replayed: Json) -> None:
    assert (first_difference(recorded, replayed) is None) == (text_of(recorded) == text_of(replayed))


@given(VALUES, VALUES)
def test_a_difference_that_is_applied_gives_the_value_that_it_was_made_for(before: Json, after: Json) -> None:
    assert text_of(applied(before, delta(before, after))) == text_of(after)


def test_a_rename_applies_to_keys_and_to_whole_values_and_to_no_part_of_a_sentence() -> None:
    value: Json = {"life": [{"reason": "life"}], "message": "a life is over"}
    renamed_value = {"incarnation": [{"reason": "incarnation"}], "message": "a life is over"}
    assert renamed(value, {"life": "incarnation"}) == renamed_value


def test_a_rename_within_applies_to_parts_of_names_and_to_no_part_of_those() -> None:
    value: Json = {
        "GET /v1/life": {"$ref": "#/$defs/life"},
        "lines": ["HSET dcs:life life-0 JSON | x.life: int", "alife"],
    }
    assert renamed_within(value, {"life": "run"}) == {
        "GET /v1/run": {"$ref": "#/$defs/run"},
        "lines": ["HSET dcs:run life-0 JSON | x.run: int", "alife"],
    }
