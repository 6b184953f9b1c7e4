"""Lines, functions, docstrings, comments and messages of small sources."""

import pytest

from tests.ratchets.source import Text, read

SOURCE = '''\
"""Of the module."""

import os  # what for

LIMIT = 3
"""Below the field."""


class Box:
    """A box."""

    def open(self) -> str:
        # The first line,
        # and the second.
        def inner() -> str:
            return f"the box {self} is not closed at all"

        return inner() or "a short one"
'''


def test_a_file_is_taken_apart() -> None:
    source = read(SOURCE)
    assert source.code_lines == 7
    assert [(each.name, each.code_lines) for each in source.functions] == [("open", 4), ("inner", 2)]
    assert source.classes == ("Box",)
    assert [each.text for each in source.docstrings] == ["Of the module.", "Below the field.", "A box."]
    assert source.comments == (Text(3, "what for"), Text(13, "The first line, and the second."))
    assert [each.text for each in source.messages] == ["the box {} is not closed at all"]


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        pytest.param("", 0, id="nothing"),
        pytest.param("# a comment\n\n", 0, id="a comment alone"),
        pytest.param('"""A docstring."""\n', 0, id="a docstring alone"),
        pytest.param('x = """\ntext\n"""\n', 3, id="a text that is a value"),
        pytest.param("x = (\n    1,\n\n    2,\n)\n", 4, id="an expression of several lines, one of them empty"),
    ],
)
def test_lines_of_code(code: str, lines: int) -> None:
    assert read(code).code_lines == lines


def test_parts_of_a_message_are_one() -> None:
    assert [each.text for each in read('raise ValueError(f"{a} is not " "what {b} asks" " for")\n').messages] == [
        "{} is not what {b} asks for"
    ]


def test_two_comments_with_code_between_them_are_two() -> None:
    texts = [each.text for each in read("# one\nx = 1  # two\n# three\n# four\n").comments]
    assert texts == ["one", "two", "three four"]
