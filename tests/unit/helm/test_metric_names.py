"""Pages name every metric that is exported, and no other."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.helm.exported import EXPORTED, base

ROOT = Path(__file__).parents[3]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
KNOWN = {base(series) for series in EXPORTED}

_HEAD = re.compile(r"^\|[^|]*`(rljob_\w*)`[^|]*\|")
_ROW = re.compile(r"^\|([^|]*)\|")
_CODE = re.compile(r"`([a-zA-Z_]+)`")
_WHOLE = re.compile(r"\brljob_[a-z]\w+\b(?![./*]|\s*\()")


def of_tables(page: str) -> Iterator[str]:
    """Names of tables of metrics: their first head cell has the prefix of all names below it."""
    prefix = None
    for line in page.splitlines():
        if head := _HEAD.match(line):
            prefix = head[1]
        elif row := _ROW.match(line):
            if prefix is not None:
                yield from (prefix + name for name in _CODE.findall(row[1]))
        else:
            prefix = None


def of_text(page: str) -> set[str]:
    """Names that stand in full, without those of our packages."""
    packages = {"rljob_api", "rljob_operator", "rljob_workers", "rljob_cli", "rljob_pod", "rljob_transfer_queue"}
    return {name for name in _WHOLE.findall(page) if name not in packages and not name.endswith("_")}


def meant(name: str) -> set[str]:
    """What a name on a page stands for; a word in capitals is one of several."""
    pattern = re.sub(r"[A-Z]{2,}", r"\\w+", name)
    return {known for known in KNOWN if re.fullmatch(pattern, known)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_is_exported(page: Path) -> None:
    text = page.read_text()
    named = {*of_tables(text), *(base(name) for name in of_text(text))}
    unknown = {name for name in named if not meant(name)}
    assert unknown == set(), "no process of ours exports these"


def test_what_is_exported_stands_on_a_page() -> None:
    texts = [page.read_text() for page in PAGES]
    named = {name for text in texts for name in (*of_tables(text), *of_text(text))}
    missing = KNOWN - {one for name in named for one in meant(name)}
    assert missing == set(), "add them to the tables of docs/monitoring.md (Metrics) or docs/queue.md (Metrics)"


def test_a_name_that_does_not_exist_is_found() -> None:
    assert meant("rljob_rank_withheld_REASON_total") > {"rljob_rank_withheld_staleness_total"}
    assert meant("rljob_rewards") == set()
