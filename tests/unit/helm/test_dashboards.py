"""The chart's dashboards, as they are committed: they ask for what is exported, and every panel says what it shows."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.helm.exported import asked_by, grouped_by, problems

FOLDER = Path(__file__).parents[3] / "helm/rljob-operator/dashboards"
BOARDS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
PANELS = [
    pytest.param(panel, id=f"{name}: {panel['title']}")
    for name, board in BOARDS.items()
    for panel in board["panels"]
    if panel["type"] != "row"
]
BOARD = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)


def expressions(board: dict[str, Any]) -> Iterator[str]:
    yield from (target["expr"] for panel in board["panels"] for target in panel.get("targets") or ())
    yield from (mark["expr"] for mark in board["annotations"].get("list") or ())
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield re.sub(r"^label_values\((.*), (\w+)\)$", r"sum by (\2) (\1)", variable["query"]["query"])


def test_the_dashboards_are_those_that_the_page_names() -> None:
    page = (FOLDER.parents[2] / "docs/monitoring.md").read_text()
    assert BOARDS.keys() == {"fleet", "job", "operator"}
    for board in BOARDS.values():
        assert f"**{board['title']}**" in page, "name it in docs/monitoring.md (Dashboards)"


@BOARD
def test_a_dashboard_asks_for_what_is_exported(board: dict[str, Any]) -> None:
    for expression in expressions(board):
        assert asked_by(expression), expression
        assert problems(expression) == [], expression


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_states_what_it_shows_and_in_which_unit(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"].endswith(".")
    if panel["type"] == "state-timeline":  # its values are yes and no
        return
    properties = [one for each in panel["fieldConfig"]["overrides"] for one in each["properties"]]
    assert "unit" in panel["fieldConfig"]["defaults"] or "unit" in {one["id"] for one in properties}


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_asks_the_prometheus_that_its_reader_chose(panel: dict[str, Any]) -> None:
    assert {one["datasource"]["uid"] for one in [panel, *panel["targets"]]} == {"${datasource}"}
    references = [target["refId"] for target in panel["targets"]]
    assert len({*references}) == len(references)


@pytest.mark.parametrize("panel", PANELS)
def test_a_legend_names_labels_that_its_series_keep(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        named = {*re.findall(r"{{(\w+)}}", target.get("legendFormat", ""))}
        assert named <= grouped_by(target["expr"]), target["expr"]


def test_panels_of_a_role_that_most_jobs_lack_state_that_there_is_none() -> None:
    optional = [panel for panel in BOARDS["job"]["panels"] if "rljob_critic_" in json.dumps(panel.get("targets", []))]
    assert len(optional) == 4
    assert {panel["fieldConfig"]["defaults"].get("noValue") for panel in optional} == {"No step of a critic"}


@BOARD
def test_the_variables_of_a_dashboard_are_its_own(board: dict[str, Any]) -> None:
    known = {variable["name"] for variable in board["templating"]["list"]} | {"__rate_interval"}
    for expression in expressions(board):
        assert {*re.findall(r"\$(\w+)", expression)} <= known, expression


@BOARD
def test_panels_fill_their_rows(board: dict[str, Any]) -> None:
    widths: defaultdict[int, int] = defaultdict(int)
    for panel in board["panels"]:
        widths[panel["gridPos"]["y"]] += panel["gridPos"]["w"]
    assert {*widths.values()} == {24}, widths
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_a_link_leads_to_a_dashboard_that_is_there_and_gives_it_what_it_asks_for() -> None:
    by_uid = {board["uid"]: board for board in BOARDS.values()}
    links = re.findall(r"/d/([\w-]+)/[\w-]*\?([^\"]*)", json.dumps([*BOARDS.values()]))
    assert links
    for uid, query in links:
        variables = {variable["name"] for variable in by_uid[uid]["templating"]["list"]}
        assert {*re.findall(r"var-(\w+)=", query)} == variables - {"datasource"}
