"""Bounds fall with their figures, and rise by a named capability alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ratchets.bounds import NotRatchets, above, lowered, parse, text_of, unmatched

TEXT = """
[ways.sample]
files = 88

[sizes.file]
largest = 400

[code_lines]
cli = {lines = 100, raised = [{by = 20, why = "Jobs are cloned"}, {by = 5, why = "Jobs are named anew"}]}
"""
AT_BOUNDS = {"sizes.file.largest": 400, "code_lines.cli": 125}


def test_figures_at_their_bounds_are_within_them() -> None:
    assert above(AT_BOUNDS, parse(TEXT)) == []
    assert unmatched(AT_BOUNDS, parse(TEXT)) == []


def test_a_figure_above_its_bound_is_named_with_its_cure() -> None:
    (sentence,) = above(AT_BOUNDS | {"sizes.file.largest": 401}, parse(TEXT))
    assert sentence == (
        "sizes.file.largest is 401 and may be 400 at most (tests/ratchets.toml): split the file that has grown by its "
        "subjects; `scripts/ratchets --worst` names the largest."
    )


def test_what_was_raised_counts() -> None:
    (sentence,) = above(AT_BOUNDS | {"code_lines.cli": 126}, parse(TEXT))
    assert sentence.startswith("code_lines.cli is 126 and may be 125 at most (tests/ratchets.toml): delete what is not")


def test_a_figure_without_a_bound_and_a_bound_without_a_figure_are_named() -> None:
    assert unmatched({"sizes.file.largest": 1, "recurring.class_names": 2}, parse(TEXT)) == [
        "recurring.class_names is 2 and has no bound: `scripts/ratchets --write` gives it one in tests/ratchets.toml.",
        "code_lines.cli has a bound in tests/ratchets.toml and is not measured: `scripts/ratchets --write` deletes it.",
    ]


def test_a_fall_takes_in_what_was_raised() -> None:
    bounds = lowered(AT_BOUNDS | {"code_lines.cli": 120}, parse(TEXT))
    assert bounds.bound_of("code_lines.cli") == 120
    assert not bounds.raised
    assert bounds.ways == {"sample": {"files": 88}}


@given(st.integers(0, 500), st.integers(0, 500))
def test_no_bound_rises(largest: int, lines: int) -> None:
    before = parse(TEXT)
    figures = {"sizes.file.largest": largest, "code_lines.cli": lines}
    after = lowered(figures, before)
    for name, figure in figures.items():
        assert after.bound_of(name) == min(figure, AT_BOUNDS[name])


def test_the_text_states_the_same_again() -> None:
    bounds = parse(TEXT)
    assert parse(text_of(bounds)) == bounds


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param(
            '[sizes]\nfile = "small"', "sizes.file: a figure is a whole number, and this is 'small'", id="text"
        ),
        pytest.param(
            "[code_lines]\ncli = {lines = 1, raised = [{by = 2}]}",
            "code_lines.cli: raised has {'by': 2}; give `by`, a number of lines, and `why`, the "
            "capability they are for",
            id="a raise without a reason",
        ),
        pytest.param(
            '[code_lines]\ncli = {lines = 1, raised = [{by = 2, why = "needed"}]}',
            "code_lines.cli: raised has {'by': 2, 'why': 'needed'}; give `by`, a number of lines, and `why`, the "
            "capability they are for",
            id="a reason that names none",
        ),
    ],
)
def test_what_no_ratchet_can_be_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(NotRatchets) as refused:
        parse(text)
    assert str(refused.value) == sentence
