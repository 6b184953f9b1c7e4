"""What a template would do to others' pods and nodes is refused, and what it asks of its own job's is not."""

from typing import Any

import pytest

from rljob_operator.build import template_problems
from rljob_operator.build.reach import reach_problems
from rljob_operator.options import ForeignPods, ReachOptions
from tests.unit.build.jobs import changed, quickstart
from tests.unit.build.reaching_attacks import REACHES

param = pytest.param

_RULE = "requiredDuringSchedulingIgnoredDuringExecution"
_OWN = {"labelSelector": {"matchLabels": {"rljob.dev/job": "quickstart"}}, "topologyKey": "kubernetes.io/hostname"}
_OTHERS = {**_OWN, "labelSelector": {"matchLabels": {"app": "web"}}}


def _of(reach: ReachOptions | None = None, **template: Any) -> list[str]:
    return reach_problems(changed(quickstart(), roles={"rollout": {"template": template}}), reach or ReachOptions())


def _apart(term: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {"podAntiAffinity": {_RULE: [term]}}}


@pytest.mark.parametrize("name", REACHES)
def test_each_attack_is_refused_whatever_the_administrator_has(name: str) -> None:
    job = changed(quickstart(), **REACHES[name])
    assert template_problems(job) or reach_problems(job, ReachOptions())


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        param(
            {"spec": {"terminationGracePeriodSeconds": 86400}},
            "roles.rollout.template.spec.terminationGracePeriodSeconds: 86400 is more than 3600 (the operator's"
            " workloads.reach.maxGracePeriodSeconds): a node that is drained would wait so long. Give less.",
            id="a day of grace",
        ),
        param(
            {"spec": {"containers": [{"name": "worker", "lifecycle": {"preStop": {"sleep": {"seconds": 4000}}}}]}},
            "roles.rollout.template.spec.containers[worker].lifecycle.preStop.sleep.seconds: 4000 is more than 3600"
            " (the operator's workloads.reach.maxGracePeriodSeconds): a node that is drained would wait so long. Give"
            " less.",
            id="a long sleep",
        ),
        param(
            {"spec": _apart(_OTHERS)},
            f"roles.rollout.template.spec.affinity.podAntiAffinity.{_RULE}[0]: keeps pods of others off the nodes of"
            " this one. Give labelSelector: {matchLabels: {rljob.dev/job: quickstart}} and no namespaces, or make it a"
            " preference.",
            id="web servers elsewhere",
        ),
        param(
            {"spec": {"topologySpreadConstraints": [{**_OTHERS, "maxSkew": 1}]}},
            "roles.rollout.template.spec.topologySpreadConstraints[kubernetes.io/hostname]: counts pods of others. Give"
            " labelSelector: {matchLabels: {rljob.dev/job: quickstart}}, or whenUnsatisfiable: ScheduleAnyway.",
            id="spread over web servers",
        ),
        param(
            {"metadata": {"labels": {"app.kubernetes.io/name": "web"}}},
            "roles.rollout.template.metadata.labels.app.kubernetes.io/name: others may choose pods by it (the"
            " operator's workloads.reach.refusedLabels has *kubernetes.io/). Choose another key.",
            id="a label of Services",
        ),
        param(
            {"spec": {"workloadRef": {"name": "w"}}},
            "roles.rollout.template.spec.workloadRef: puts the pod into a group of others. Remove it; a job's own is"
            " scheduling.gang.",
            id="a group by a field",
        ),
    ],
)
def test_what_is_refused_is_named_with_its_cure(template: dict[str, Any], sentence: str) -> None:
    assert _of(**template) == [sentence]


@pytest.mark.parametrize(
    "template",
    [
        param({"metadata": {"labels": {"app": "mine", "team.example.org/name": "a", "k8s-app": "b"}}}, id="labels"),
        param({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "research"}}}, id="a queue of Kueue"),
        param({"metadata": {"annotations": {"prometheus.io/scrape": "true", "note": "x"}}}, id="annotations"),
        param({"spec": {"terminationGracePeriodSeconds": 3600}}, id="the longest grace period"),
        param({"spec": {"terminationGracePeriodSeconds": None, "affinity": None}}, id="fields taken away"),
        param({"spec": _apart(_OWN)}, id="rollouts apart from each other"),
        param(
            {"spec": _apart({**_OWN, "namespaces": [], "namespaceSelector": None})}, id="the same, with empty fields"
        ),
        param({"spec": {"topologySpreadConstraints": [{**_OWN, "maxSkew": 1}]}}, id="spread over the job's own"),
        param(
            {"spec": {"topologySpreadConstraints": [{**_OTHERS, "whenUnsatisfiable": "ScheduleAnyway"}]}},
            id="a preference to spread",
        ),
        param(
            {"spec": {"affinity": {"podAntiAffinity": {f"preferred{_RULE[8:]}": [{"podAffinityTerm": _OTHERS}]}}}},
            id="a preference to be apart",
        ),
        param({"spec": {"affinity": {"podAffinity": {_RULE: [_OTHERS]}}}}, id="beside the web servers"),
        param(
            {"spec": {"containers": [{"name": "worker", "lifecycle": {"preStop": {"exec": {"command": ["sync"]}}}}]}},
            id="a command before the end",
        ),
    ],
)
def test_what_a_job_may_ask_for(template: dict[str, Any]) -> None:
    assert _of(**template) == []


def test_the_administrator_decides_how_far_jobs_reach() -> None:
    wide = ReachOptions(
        foreign_pods=ForeignPods.ALLOWED,
        max_grace_period_seconds=86400,
        refused_labels=["example.org/", "*team"],
        refused_annotations=[],
    )
    labels = {"app.kubernetes.io/name": "web"}
    spec = {"terminationGracePeriodSeconds": 86400, **_apart(_OTHERS)}
    assert _of(wide, metadata={"labels": labels, "annotations": {"scheduling.k8s.io/group-name": "g"}}, spec=spec) == []
    for key in ("example.org/a", "my-team", "a.team/b"):
        (sentence,) = _of(wide, metadata={"labels": {key: "x"}})
        assert sentence.startswith(f"roles.rollout.template.metadata.labels.{key}: others may choose pods by it")
