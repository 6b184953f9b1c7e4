"""Which texts begin without subject and verb, and where a page has paragraphs."""

import pytest

from tests.ratchets.openings import openers, paragraphs, sentence_openers
from tests.ratchets.source import Text


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        pytest.param("Of the job.", True, id="of"),
        pytest.param("What a rank holds.", True, id="what"),
        pytest.param("Whose turn it is.", True, id="whose"),
        pytest.param("That is all.", True, id="that"),
        pytest.param("Those of the actor.", True, id="those"),
        pytest.param("By name.", True, id="by"),
        pytest.param("**Of Kueue a part is used.**", True, id="behind emphasis"),
        pytest.param("\n    of the queue", True, id="a small letter, after white space"),
        pytest.param("Offers of the coordinator.", False, id="a longer one that begins alike"),
        pytest.param("The job's own.", False, id="a subject"),
        pytest.param("That's all.", False, id="a subject and its verb in one"),
        pytest.param("`of` is an option.", False, id="a name"),
        pytest.param("", False, id="nothing"),
    ],
)
def test_a_text_counts_by_how_it_begins(text: str, counts: bool) -> None:
    assert bool(openers([Text(1, text)])) is counts


def test_a_message_counts_where_it_begins_a_sentence() -> None:
    texts = [Text(1, "of which none is left"), Text(2, "Of these none is left")]
    assert sentence_openers(texts) == (texts[1],)


def test_paragraphs_of_a_page() -> None:
    page = """\
# What is kept

Of the first
of its second line

- By an item
  of two lines
- another

| what | of |
|---|---|

```yaml
of: no prose
```
    of code

1. Those of a list
"""
    found = [(each.line, each.text) for each in paragraphs(page)]
    assert found == [
        (1, "What is kept"),
        (3, "Of the first"),
        (6, "By an item"),
        (8, "another"),
        (18, "Those of a list"),
    ]
