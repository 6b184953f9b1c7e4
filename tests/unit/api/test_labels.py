"""Labels that rewards cannot compare with are named before a job begins."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from rljob_api.row_files.labels import label_problem

NULL = "is null, and the reward compares with it. Write a label, or remove the row."
EMPTY = "is empty, and the reward compares with it. Write a label, or remove the row."


@pytest.mark.parametrize(
    ("label", "kinds", "expected"),
    [
        pytest.param("12", ["exactMatch"], None, id="a text"),
        pytest.param(12, ["mathVerify"], None, id="a number"),
        pytest.param(Decimal("1.5"), ["exactMatch"], None, id="a decimal of a column"),
        pytest.param(
            b"12",
            ["exactMatch"],
            "is of type bytes, and the reward exactMatch compares with a text. Give a text or a number.",
            id="bytes",
        ),
        pytest.param({"answer": "12", "more": 1}, ["exactMatch"], None, id="an answer with more beside it"),
        pytest.param(None, ["exactMatch"], NULL, id="null"),
        pytest.param(float("nan"), ["exactMatch"], NULL, id="not a number, as pandas writes null"),
        pytest.param({"answer": None}, ["exactMatch"], NULL, id="an answer that is null"),
        pytest.param("", ["characterMatch"], EMPTY, id="an empty text"),
        pytest.param(" \n", ["mathVerify"], EMPTY, id="white space"),
        pytest.param("", ["textOverlap"], None, id="a question without an answer, in SQuAD"),
        pytest.param(
            {"value": 1},
            ["exactMatch"],
            "is of type object, and the reward exactMatch compares with a text. Give a text or a number.",
            id="an object without an answer",
        ),
        pytest.param(
            ["1", "2"],
            ["mathVerify"],
            "is of type list, and the reward mathVerify compares with a text. Give a text or a number.",
            id="several labels",
        ),
        pytest.param(["1", "2"], ["textOverlap"], None, id="several for a reward that takes the best"),
        pytest.param(["1", None], ["textOverlap"], NULL, id="several, one null"),
        pytest.param(
            [],
            ["textOverlap"],
            "is of type list, and the reward textOverlap compares with a text. Give a text or a number.",
            id="none of several",
        ),
        pytest.param(
            ["1"],
            ["textOverlap", "exactMatch"],
            "is of type list, and the reward exactMatch and textOverlap compares with a text. Give a text or a number.",
            id="several for two rewards",
        ),
        pytest.param("(B)", ["choice"], None, id="a letter"),
        pytest.param(
            "7",
            ["choice"],
            "is '7', and the reward choice compares with a letter. Give labels such as B.",
            id="a digit",
        ),
    ],
)
def test_labels_of_the_rewards_that_come_with_the_product(label: Any, kinds: list[str], expected: str | None) -> None:
    assert label_problem(label, kinds) == expected
