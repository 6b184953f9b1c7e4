"""The more specific wins: a template patch, the spec's fields, the administrator's template, the defaults."""

from typing import Any

import pytest

from rljob_operator.build import overridden
from rljob_operator.options import OperatorOptions
from tests.unit.build.jobs import build, changed, container, quickstart


def _options(name: str = "worker", spec: dict[str, Any] | None = None, **fields: Any) -> OperatorOptions:
    template = {"spec": {"containers": [{"name": name, **fields}], **(spec or {})}}
    return OperatorOptions.model_validate({"workloads": {"podTemplate": template}})


def _limits(requests: dict[str, Any], limits: dict[str, Any]) -> dict[str, Any]:
    return {name: found for name, found in (("requests", requests), ("limits", limits)) if found}


ADMINISTRATORS = {"requests": {"cpu": "20m", "memory": "2Gi"}, "limits": {"memory": "4Gi"}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({}, ADMINISTRATORS, id="a job that says nothing has the administrator's"),
        pytest.param(
            {"requests": {"cpu": "8", "memory": "3Gi"}},
            _limits({"cpu": "8", "memory": "3Gi"}, {"memory": "4Gi"}),
            id="a job's requests win, below the administrator's limit",
        ),
        pytest.param(
            {"requests": {"memory": "64Gi"}},
            _limits({"cpu": "20m", "memory": "64Gi"}, {}),
            id="a limit gives way to a job that asks for more",
        ),
        pytest.param(
            {"limits": {"memory": "1Gi"}},
            _limits({"cpu": "20m"}, {"memory": "1Gi"}),
            id="a request gives way to a job's limit, which may be lower",
        ),
        pytest.param(
            {"requests": {"memory": "8Gi"}, "limits": {"memory": "16Gi", "cpu": "4"}},
            _limits({"memory": "8Gi"}, {"memory": "16Gi", "cpu": "4"}),
            id="a job that says all",
        ),
    ],
)
def test_resources_of_a_role_win_over_the_administrators(given: dict[str, Any], expected: dict[str, Any]) -> None:
    job = changed(quickstart(), roles={"actor": {"resources": given}})
    objects = build(job, options=_options(resources=ADMINISTRATORS))
    assert container(objects["Deployment/quickstart-actor"], "worker")["resources"] == expected
    assert container(objects["Deployment/quickstart-rollout"], "worker")["resources"] == ADMINISTRATORS


@pytest.mark.parametrize(
    ("fields", "options", "sentences"),
    [
        pytest.param({}, _options(resources=ADMINISTRATORS), [], id="nothing differs"),
        pytest.param(
            {"roles": {role: {"resources": {"limits": {"memory": "8Gi"}}} for role in ("actor", "rollout")}},
            _options(resources={"limits": {"memory": "4Gi"}}),
            [
                "roles.rollout and roles.actor: spec.containers[worker].resources.limits.memory: the job has 8Gi, where"
                " the operator's workloads.podTemplate has 4Gi. What the job says counts."
            ],
            id="the same of two roles is one sentence",
        ),
        pytest.param(
            {"infrastructure": {"control": {"resources": {"limits": {"memory": "8Gi"}}}}},
            _options("redis", resources={"limits": {"memory": "4Gi"}, "requests": {"memory": "1Gi"}}),
            [
                "control: spec.containers[redis].resources.limits.memory: the job has 8Gi, where the operator's"
                " workloads.podTemplate has 4Gi. What the job says counts.",
                "control: spec.containers[redis].resources.requests.memory: the job has none, where the operator's"
                " workloads.podTemplate has 1Gi. What the job says counts.",
            ],
            id="of the control Redis, and not of the storage units",
        ),
        pytest.param(
            {
                "image": "mine:1",
                "roles": {"actor": {"template": {"spec": {"containers": [{"name": "worker", "image": "its:2"}]}}}},
            },
            _options(image="all:1"),
            [
                "roles.rollout and roles.advantages: spec.containers[worker].image: the job has mine:1, where the"
                " operator's workloads.podTemplate has all:1. What the job says counts.",
                "roles.actor: spec.containers[worker].image: the job has its:2, where the operator's"
                " workloads.podTemplate has all:1. What the job says counts.",
            ],
            id="an image of the job, and one of a role",
        ),
        pytest.param(
            {
                "roles": {"actor": {"template": {"spec": {"tolerations": [{"key": "a"}]}}}},
                "scheduling": {"schedulerName": "mine"},
            },
            _options("mesh", spec={"tolerations": [{"key": "a"}], "schedulerName": "mine"}),
            [],
            id="tolerations that the operator adds to are no difference",
        ),
    ],
)
def test_what_the_job_states_otherwise_is_stated(
    fields: dict[str, Any], options: OperatorOptions, sentences: list[str]
) -> None:
    fields = {"algorithm": {"kl": {"coefficient": 0}}, **fields}
    few = {"reference": None, "actorFwd": None}
    job = changed(quickstart(), **{**fields, "roles": {**few, **fields.get("roles", {})}})
    assert sorted(overridden(options, build(job, options=options).values())) == sorted(sentences)


def test_a_scheduler_of_the_job_wins_over_the_administrators() -> None:
    options = _options(spec={"schedulerName": "all"})
    objects = build(changed(quickstart(), scheduling={"schedulerName": "mine"}), options=options)
    assert objects["Deployment/quickstart-actor"]["spec"]["template"]["spec"]["schedulerName"] == "mine"
