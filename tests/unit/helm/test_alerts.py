"""The alert rules ask for what is exported, name the job or the release, and are each tested both ways."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api.names import Scope
from rljob_api.status import Phase
from rljob_operator.kube.operator_metrics import CONDITIONS
from tests.unit.helm.exported import asked_by, grouped_by, of_operator, problems

ROOT = Path(__file__).parents[3]
GROUPS = yaml.safe_load((ROOT / "helm/rljob-operator/files/alerts.yaml").read_text())["groups"]
RULES = [pytest.param(rule, id=rule["alert"]) for group in GROUPS for rule in group["rules"]]
OF_JOBS = [
    pytest.param(rule, id=rule["alert"]) for group in GROUPS if group["name"] == "rljob-jobs" for rule in group["rules"]
]
SCENARIOS = yaml.safe_load((ROOT / "tests/cluster/monitoring/alerts.test.yaml").read_text())["tests"]
VALUES: dict[str, set[str]] = {"phase": set(Phase), "scope": set(Scope), "condition": set(CONDITIONS)}


@pytest.mark.parametrize("rule", RULES)
def test_an_alert_asks_for_series_that_are_exported(rule: dict[str, Any]) -> None:
    assert asked_by(rule["expr"])
    assert problems(rule["expr"]) == []


@pytest.mark.parametrize("rule", RULES)
def test_an_alert_asks_for_the_operator_of_this_release_alone(rule: dict[str, Any]) -> None:
    for asked in asked_by(rule["expr"]):
        if asked.name in of_operator():
            text = "RELEASE" if asked.name.startswith("rljob_operator_job_") else "OPERATOR"
            assert asked.selector.split(",")[0] == text, f"{asked.name} would count other operators too"


@pytest.mark.parametrize("rule", RULES)
def test_texts_of_an_alert_are_the_code_s(rule: dict[str, Any]) -> None:
    for asked in asked_by(rule["expr"]):
        for label, text in re.findall(r'(\w+)=~?"([^"]*)"', asked.selector):
            assert {*text.split("|")} <= VALUES.get(label, {*text.split("|")}), text


@pytest.mark.parametrize("rule", RULES)
def test_an_alert_states_what_is_the_matter_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["annotations"].keys() == {"summary", "description"}
    assert rule["labels"]["severity"] in ("critical", "warning")


@pytest.mark.parametrize("rule", OF_JOBS)
def test_an_alert_of_a_job_names_the_job(rule: dict[str, Any]) -> None:
    assert grouped_by(rule["expr"]) == {"namespace", "job"}
    assert "{{ $labels.namespace }}/{{ $labels.job }}" in rule["annotations"]["summary"]


@pytest.mark.parametrize("rule", RULES)
def test_a_window_has_room_for_a_gap_of_scrapes(rule: dict[str, Any]) -> None:
    """Of 30 s between two scrapes, and of some that do not come."""
    windows = re.findall(r"\[(\d+)([smh])\]", rule["expr"])
    assert all(int(number) * {"s": 1, "m": 60, "h": 3600}[unit] >= 300 for number, unit in windows)


@pytest.mark.parametrize("rule", RULES)
def test_an_alert_has_a_scenario_in_which_it_comes_and_one_in_which_it_does_not(rule: dict[str, Any]) -> None:
    asked = [one for scenario in SCENARIOS for one in scenario["alert_rule_test"] if one["alertname"] == rule["alert"]]
    cure = f"add them for {rule['alert']} to tests/cluster/monitoring/alerts.test.yaml"
    assert any(one["exp_alerts"] for one in asked), f"nothing shows when it comes: {cure}"
    assert any(not one["exp_alerts"] for one in asked), f"nothing shows when it does not: {cure}"


def test_the_page_names_the_alerts_and_no_other() -> None:
    page = (ROOT / "docs/monitoring.md").read_text()
    section = page.split("\n## Alerts\n")[1].split("\n## ")[0]
    assert {*re.findall(r"`(RLJob[A-Z]\w+)`", section)} == {rule.id for rule in RULES}, (
        "mend docs/monitoring.md (Alerts)"
    )
