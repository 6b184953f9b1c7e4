"""Fields of ours that the pages for newcomers name exist, with their values; events and metrics are ours."""

import re
from pathlib import Path

import pytest

from rljob_api.generate.crd import enum_values
from rljob_api.other_names.absent import ABSENT
from rljob_api.other_names.tables import TABLES
from rljob_api.overrides import Override, _schema_at, overridden

ROOT = Path(__file__).parents[3]
NEWCOMERS = ROOT / "docs/coming-from.md"
TROUBLE = ROOT / "docs/troubleshooting.md"
SECTIONS = "model|data|algorithm|rollout|training|roles|transferQueue|checkpoint|restartPolicy|evaluation|telemetry"
_FIELD = re.compile(rf"`((?:(?:{SECTIONS})(?:\.[\w\[\]]+)+|metadata\.name|seed)(?:: \w+)?)`")
_FIRST_CELL = re.compile(r"^\| (`[^|]+`) \|", re.MULTILINE)


def of_the_table() -> list[str]:
    return [cell.strip("`") for cell in _FIRST_CELL.findall(NEWCOMERS.read_text())]


def of_the_text() -> list[str]:
    """Not of the first page, on which verl's names look like ours."""
    return [field for page in (TROUBLE, ROOT / "docs/python.md") for field in _FIELD.findall(page.read_text())]


def test_the_page_for_newcomers_has_the_tables_of_the_hints() -> None:
    page = NEWCOMERS.read_text()
    for table in TABLES:
        assert f"## {table.heading}\n" in page
        assert table.markdown in page
    for each in ABSENT:
        assert each.markdown in page
    assert page.count("\n| ") - page.count("\n| here |") - page.count("\n| what |") == len(ABSENT) + sum(
        len(table.rows) for table in TABLES
    )


def test_the_pages_name_fields() -> None:
    assert len(of_the_table()) > 60
    assert len(of_the_text()) > 30


@pytest.mark.parametrize("named", sorted({*of_the_table(), *of_the_text()}))
def test_a_field_that_a_page_names_is_there_and_takes_its_value(named: str) -> None:
    path, _, value = named.partition(": ")
    override = Override.parse(f"{path}={value or 'null'}")
    overridden({}, [override])
    schema = _schema_at(override.place, {})
    allowed = enum_values(schema)
    if value and allowed:
        assert value in allowed
    elif value and "pattern" in schema:
        assert re.search(schema["pattern"], value)


def test_a_field_that_is_not_there_would_be_found() -> None:
    assert _FIELD.findall("`rollout.batchSizes`") == ["rollout.batchSizes"]
    with pytest.raises(ValueError, match="there is no such field"):
        overridden({}, [Override.parse("rollout.batchSizes=null")])


def test_events_and_metrics_of_the_page_of_troubles_are_ours() -> None:
    known = (ROOT / "docs/monitoring.md").read_text() + (ROOT / "docs/metrics.md").read_text()
    text = TROUBLE.read_text()
    events = set(re.findall(r"`((?:[A-Z][a-z]+){2,})`", text))
    metrics = set(re.findall(r"`((?:reward|groups|policy|response_length)/\w+)`", text))
    assert len(events) > 8
    assert len(metrics) >= 4
    assert {name for name in events | metrics if f"`{name}`" not in known} == set()
