"""The alert rules, as the chart renders them, before the real promtool: when each comes, and when it does not."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.chart.helm import objects, only, render
from tests.cluster.harness.machine import prometheus_programs
from tests.unit.helm.exported import asked_by

# Bringing the cluster up puts helm on the path.
pytestmark = pytest.mark.usefixtures("cluster")

SCENARIOS = Path(__file__).parent / "monitoring/alerts.test.yaml"


def _rules() -> dict[str, Any]:
    rendered = render("--set", "monitoring.prometheusRule.create=Always")
    spec: dict[str, Any] = only(objects(rendered), "PrometheusRule")["spec"]
    return spec


def _promtool(*arguments: str) -> str:
    command = [str(prometheus_programs() / "promtool"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


def test_alerts_come_and_do_not_come_as_the_scenarios_state(tmp_path: Path) -> None:
    rules = _rules()
    for group in rules["groups"]:
        for rule in group["rules"]:
            del rule["annotations"]["description"]  # a scenario reports the summary alone
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    shutil.copy(SCENARIOS, tmp_path)
    _promtool("test", "rules", str(tmp_path / SCENARIOS.name))


def test_nothing_is_left_of_the_arguments_that_the_template_replaces(tmp_path: Path) -> None:
    rules = _rules()
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    assert "SUCCESS" in _promtool("check", "rules", str(tmp_path / "rules.yaml"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            for asked in asked_by(rule["expr"]):
                assert not {"OPERATOR", "RELEASE"} & {*asked.selector.split(",")}, rule["alert"]
