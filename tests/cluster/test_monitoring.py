"""A real Prometheus asks operator and jobs as the chart's and the operator's monitors say: what panels and alerts see.

One job of all six roles trains, while its engine and its actor are killed; one waits for nodes, and fails. By then
every panel has a series, and alerts that can come within minutes have come, by the names of their jobs.
"""

import json
import math
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rljob_workers.dcs.coordinator import metrics as coordinator
from rljob_workers.launcher import probes
from tests.cluster.chart.release import OPERATOR, Release
from tests.cluster.harness.definition import install_definition, install_monitors
from tests.cluster.harness.kubectl import Kubectl, Object
from tests.cluster.harness.machine import REPOSITORY, Cluster, Node
from tests.cluster.harness.processes import Kind
from tests.cluster.harness.prometheus import Prometheus
from tests.cluster.harness.rljob import ClusterJob, make_job, slowed
from tests.cluster.monitoring.scrape_configs import scrape_configs
from tests.unit.helm.test_dashboards import BOARDS, expressions

INTERVAL, WINDOW, WHOLE = "5s", "1m", "15m"
"""Between two scrapes here; Grafana's `$__rate_interval` in a picture; and where what was minutes ago counts, too."""
PICTURE_MINUTES = 4
STRIKES = 4
"""More than three starts of an engine within an hour are an alert."""
ONLY_AFTER_A_FAULT = {
    "RLJobOperatorErrors": "no turn has failed: a counter of errors has no series before the first",
    "RLJobEngineMismatch": "nearly all tokens are of an earlier version than the one that is trained",
    "RLJobOperatorContended": "a namespace has a series only while another release holds it (test_two_releases)",
}
"""Alerts whose series this test cannot have. tests/cluster/test_alerts.py has them with pretended ones."""
NEVER_REPORTED = {
    "rljob_rank_withheld_": "each reason has a counter of its own, from its first time on",
    "rljob_rank_queue_": "as the role has to do with the queue",
    "rljob_mismatch_": "only where tokens are of the version that is trained: mostly of the first step",
    "rljob_staleness_kl_": "only where there are tokens of earlier versions",
    "rljob_kl_in_reward_": "only with algorithm.kl.placement Reward",
    "rljob_optimizer_skipped_steps": "only of steps with such ones",
    "rljob_critic_skipped_steps": "only of steps with such ones",
    "rljob_supervised_": "no job is fine-tuned so",
    "rljob_experts_": "this job's model has none",
    "rljob_critic_experts_": "this job's model has none",
    "rljob_step_metric": "this job's reward names none",
    "rljob_samples_filtered_share": "only with algorithm.sampleFilter",
    "rljob_groups_draws": "only with rollout.dynamicSampling",
    "rljob_groups_last_draw_refused": "only with rollout.dynamicSampling",
    "rljob_evaluation_set_aside_prompts": "only where a prompt has killed engines",
}
SHOWN_SELDOM = ("rljob_mismatch_", "rljob_step_metric")
"""Of these what a panel asks for, and has a sentence or other series instead."""

pytestmark = pytest.mark.timeout(900)


class Stage:
    """Operator, jobs and Prometheus."""

    def __init__(self, kubectl: Kubectl, prometheus: Prometheus, node: Node) -> None:
        self.kubectl = kubectl
        self.prometheus = prometheus
        self.node = node
        self.chosen = {"namespace": kubectl.namespace, "job": "steady", "service": OPERATOR}
        """What a reader of the dashboards has chosen."""
        policy = {"heartbeatTimeoutSeconds": 60, "maxGlobalRestarts": 50, "backoff": {"initialSeconds": 0.1}}
        all_roles: Object = {"reference": {}, "actorFwd": {}, "critic": {}}
        # All evaluations of a job are alike to Prometheus: that of version 0 is enough, and short.
        numbers = {"prompts": "calculator/numbers.jsonl", "labelKey": "prompt"}
        sets = [{"name": "numbers", "data": numbers, "samplesPerPrompt": 2}]
        steady = make_job(
            "steady",
            evaluation={"sets": sets, "everySteps": 4000, "atStart": True},
            algorithm={"advantage": "Gae"},
            rollout={"numRollouts": 4000, "order": "Swap", "partial": {}},
            roles=all_roles,
            restartPolicy=policy,
        )
        self.steady = ClusterJob(kubectl, slowed(steady))
        nowhere = {"template": {"spec": {"nodeSelector": {"nobody": "has-this"}}}}
        roles = ("actor", "actorFwd", "advantages", "reference", "rollout")
        self.waiting = ClusterJob(kubectl, make_job("waiting", roles=dict.fromkeys(roles, nowhere)))

    def in_text(self, expression: str) -> str:
        """What Grafana makes of an expression for the dashboard's reader."""
        for variable, value in {**self.chosen, "__rate_interval": WHOLE}.items():
            expression = expression.replace(f"${variable}", value)
        return expression

    def minutes(self) -> float:
        """Since the job's first step."""
        (first,) = self.prometheus.value('min_over_time(timestamp(rljob_step{job="steady"})[1h:5s])')
        return (time.time() - float(first["value"][1])) / 60

    def alerts(self) -> dict[str, Object]:
        """The rules by name."""
        return {rule["name"]: rule for rule in self.prometheus.rules()}

    def states(self, alert: str) -> dict[str, str]:
        """Job (or nothing) -> how far the alert is: pending or firing."""
        return {one["labels"].get("job", ""): one["state"] for one in self.alerts()[alert]["alerts"]}


@pytest.fixture(scope="module")
def stage(cluster: Cluster, module_kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    if cluster.node is None:
        pytest.skip("the cluster of KUBECONFIG is not this machine's: its network cannot be entered")
    install_monitors()
    install_definition(cluster.kubeconfig)
    scraper = module_kubectl.within(f"scraper-{uuid.uuid4().hex[:6]}")
    scraper("create", "namespace", scraper.namespace)
    release = Release(module_kubectl, tmp_path_factory.mktemp("release"))
    may = f"networkPolicy.scraperNamespace={scraper.namespace},workloads.scraperNamespace={scraper.namespace}"
    try:
        release.install(may, "replicas=1")
        prometheus = Prometheus(scraper, cluster.node, tmp_path_factory.mktemp("targets"))
        stage = Stage(module_kubectl, prometheus, cluster.node)
        for job in (stage.steady, stage.waiting):
            job.apply()
        module_kubectl.wait("two PodMonitors", lambda: len(module_kubectl.all("podmonitors")) == 2)
        monitors = [each for kind in ("servicemonitors", "podmonitors") for each in module_kubectl.all(kind)]
        (rules,) = module_kubectl.all("prometheusrules")
        prometheus.start(scrape_configs(monitors, INTERVAL), rules["spec"], INTERVAL)
        stage.steady.wait_true("Ready")
        yield stage
    finally:
        release.gone()
        scraper("delete", "namespace", scraper.namespace, "--wait=false")


def test_everybody_whom_a_monitor_means_is_reached(stage: Stage) -> None:
    def reached() -> bool:
        stage.prometheus.discover(stage.kubectl)
        reported = stage.prometheus.targets()
        names = [(target["labels"].get("container"), target["health"]) for target in reported]
        # Of the job that trains a coordinator and six roles.
        of_steady = [target for target in reported if target["labels"]["job"].endswith("/steady")]
        return names.count(("operator", "up")) == 1 and [one["health"] for one in of_steady] == ["up"] * 7

    stage.kubectl.wait("all targets to be up", reached)


def test_series_of_a_job_have_its_name_and_namespace(stage: Stage) -> None:
    for name in ("rljob_epoch", "rljob_pod_ranks", "rljob_operator_job_phase"):
        found = stage.prometheus.value(f'{name}{{job="steady"}}')
        assert {one["metric"]["namespace"] for one in found} == {stage.kubectl.namespace}, name
    assert not stage.prometheus.value('{__name__=~"rljob_.*",exported_job!=""}')


def test_every_panel_has_a_series(stage: Stage) -> None:
    """After a killed actor, a killed engine and a refused object, of which there are panels, too."""
    kubectl, job = stage.kubectl, stage.steady
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}}
    kubectl.apply({**quota, "spec": {"hard": {"count/poddisruptionbudgets.policy": "0"}}})
    # The operator makes a deleted object again at once, maybe before a new quota is in force.
    kubectl.wait_for("resourcequota", "none", "to be in force", lambda quota: quota.get("status", {}).get("hard"))
    kubectl.delete("poddisruptionbudget", "steady")
    job.process("actor").kill()
    job.wait_epoch_ready(2)
    for number in range(STRIKES):
        job.process("rollout", Kind.ENGINE).kill()
        job.wait_event("EngineExited", number + 1)
    every = {stage.in_text(expression) for board in BOARDS.values() for expression in expressions(board)}
    asked = {one for one in every if not any(f"({name}" in one for name in SHOWN_SELDOM)}

    def empty() -> list[str]:
        return [expression for expression in sorted(asked) if not _numbers(stage.prometheus.value(expression))]

    def all_there() -> bool:
        asked.intersection_update(empty())
        return not asked

    try:
        kubectl.wait("a series for every panel", all_there)
    except AssertionError as error:
        raise AssertionError(f"without a series: {json.dumps(sorted(asked), indent=1)}\n{error}") from None


def test_every_metric_of_a_job_is_reported(stage: Stage) -> None:
    found = stage.prometheus.value('count by (__name__) ({__name__=~"rljob_.*",job="steady"})')
    reported = {one["metric"]["__name__"] for one in found}
    declared = {*coordinator.FAMILIES, *probes.FAMILIES}
    assert {name for name in declared - reported if not name.startswith(tuple(NEVER_REPORTED))} == set()


def test_the_last_evaluation_stands_in_the_wide_table(stage: Stage) -> None:
    (found,) = stage.prometheus.value('rljob_evaluation_reward_mean{job="steady",set="numbers",source=""}')
    (reported,) = stage.steady.status()["evaluation"]["sets"]
    assert reported == {
        "name": "numbers",
        "metric": "mean@2",
        "value": pytest.approx(float(found["value"][1]), rel=1e-3),
    }
    table = stage.kubectl("get", "rljob", "steady", "--output=wide")
    assert f"numbers {reported['value']:.2f} @ 0" in table


@pytest.mark.parametrize(
    ("alert", "job", "state"),
    [
        pytest.param("RLJobEngineRestarts", "steady", "firing", id="a job whose engine was killed four times"),
        pytest.param("RLJobWaits", "waiting", "pending", id="a job that no node has room for"),
        pytest.param("RLJobOperatorRefusedByApi", "", "pending", id="a quota that refuses an object"),
    ],
)
def test_an_alert_comes_by_the_name_of_its_job(stage: Stage, alert: str, job: str, state: str) -> None:
    what = f"{alert} of {job or 'the operator'} to be {state}"
    stage.kubectl.wait(what, lambda: stage.states(alert).get(job) == state)


def test_a_job_that_fails_is_an_alert_at_once_and_no_other_alert_comes(stage: Stage) -> None:
    stage.waiting.change({"activeDeadlineSeconds": 1})
    failed = {"waiting": "firing"}
    stage.kubectl.wait("the alert", lambda: stage.states("RLJobFailed") == failed)
    firing = {name for name, rule in stage.alerts().items() if rule["state"] == "firing"}
    assert firing == {"RLJobFailed", "RLJobEngineRestarts"}


def test_every_rule_is_evaluated_and_its_series_are_there(stage: Stage) -> None:
    rules = stage.alerts()
    assert {name: rule.get("lastError") for name, rule in rules.items() if rule["health"] != "ok"} == {}
    for name, rule in rules.items():
        assert name in ONLY_AFTER_A_FAULT or stage.prometheus.value(_looked_at(rule["query"])), rule["query"]


@pytest.mark.parametrize("name", BOARDS)
def test_the_panels_can_be_drawn(stage: Stage, name: str, tmp_path: Path) -> None:
    """For the pages: RLJOB_DRAW_PANELS=docs gives them the pictures of this run, after some minutes."""
    folder = os.environ.get("RLJOB_DRAW_PANELS")
    if folder:
        time.sleep(max(0.0, 60 * (PICTURE_MINUTES - stage.minutes())))
    script, board = REPOSITORY / "scripts/draw_panels.py", REPOSITORY / f"helm/rljob-operator/dashboards/{name}.json"
    chosen = [argument for pair in stage.chosen.items() for argument in ("--set", "=".join(pair))]
    command = [sys.executable, str(script), str(board), "--prometheus", stage.prometheus.address, *chosen]
    command += ["--minutes", f"{stage.minutes():.1f}", "--window", WINDOW]
    done = subprocess.run(stage.node.within(*command), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    picture = Path(folder or tmp_path) / f"dashboard-{name}.svg"
    picture.write_text(done.stdout)
    texts = {text for element in ElementTree.fromstring(done.stdout).iter() if (text := element.text)}
    assert {panel["title"] for panel in BOARDS[name]["panels"]} <= texts
    assert "no data" not in texts


def _numbers(found: list[Object]) -> list[float]:
    """Values of series, but for those that are none: of a quantile of nothing."""
    return [value for one in found if not math.isnan(value := float(one["value"][1]))]


def _looked_at(expression: str) -> str:
    """What a rule looks at, whether it is wrong or not: without limits, and without the words for what is wrong."""
    compared = re.sub(r"\s*(?:[<>]=?|==)\s*[\d.]+\s*(?=$|\n|\)|\b(?:or|and|unless)\b)", " ", expression)
    whole = re.sub(r'\b(?:phase|condition|code|cause)(?:=~|!~|=)"[^"]*",?', "", compared)
    absent = re.fullmatch(r"absent\((.*)\)", whole.strip())
    return absent[1] if absent else whole
