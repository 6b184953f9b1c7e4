"""How many pods each part has: what the status says, and none once the job is suspended or over."""

from typing import Any

import pytest

from rljob_api.status import ConditionType
from tests.unit.build.jobs import build, changed, make_status, quickstart

_ALL = {"rollout": 2, "actor": 1, "actor_fwd": 1, "reference": 1, "advantages": 1}
_SPEC = (1, 1, 1, 2)
"""Pods of rollout (as the spec has it), of the coordinator, of the control Redis, of storage."""


@pytest.mark.parametrize(
    ("fields", "conditions", "roles", "expected"),
    [
        pytest.param({}, (), {}, _SPEC, id="a new job has what its spec says"),
        pytest.param({}, (), _ALL, (2, 1, 1, 2), id="a running one what its status says"),
        pytest.param(
            {"roles": {"rollout": {"replicas": 5}}}, (), _ALL, (2, 1, 1, 2), id="also when the spec wants more"
        ),
        pytest.param({"suspend": True}, (), {}, (0, 0, 0, 0), id="created suspended, it has nothing"),
        pytest.param({"suspend": True}, (), _ALL, (2, 1, 1, 2), id="it drains before it is suspended"),
        pytest.param({"suspend": True}, (ConditionType.SUSPENDED,), _ALL, (0, 0, 0, 0), id="suspended"),
        pytest.param({}, (ConditionType.SUSPENDED,), _ALL, (0, 0, 0, 0), id="not yet resumed"),
        pytest.param({}, (ConditionType.SUCCEEDED,), _ALL, (0, 0, 0, 0), id="succeeded"),
        pytest.param({}, (ConditionType.FAILED,), _ALL, (0, 0, 0, 0), id="failed"),
        pytest.param(
            {"cleanPodPolicy": "Workers"}, (ConditionType.FAILED,), _ALL, (0, 1, 1, 2), id="Redis may be asked"
        ),
        pytest.param({"cleanPodPolicy": "None"}, (ConditionType.FAILED,), _ALL, (2, 1, 1, 2), id="all stay"),
        pytest.param({"transferQueue": {"storageUnits": 7}}, (), _ALL, (2, 1, 1, 7), id="storage units"),
    ],
)
def test_replicas(
    fields: dict[str, Any],
    conditions: tuple[ConditionType, ...],
    roles: dict[str, int],
    expected: tuple[int, int, int, int],
) -> None:
    objects = build(changed(quickstart(), **fields), make_status(*conditions, **roles))
    parts = (
        "Deployment/quickstart-rollout",
        "Deployment/quickstart-coordinator",
        "StatefulSet/quickstart-control",
        "StatefulSet/quickstart-storage",
    )
    assert tuple(objects[name]["spec"]["replicas"] for name in parts) == expected


def test_a_role_that_comes_later_starts_with_what_the_spec_states() -> None:
    status = make_status(rollout=1, actor=1)
    assert build(quickstart(), status)["Deployment/quickstart-reference"]["spec"]["replicas"] == 1


def test_a_role_that_the_job_does_not_have_has_no_object() -> None:
    fields: dict[str, Any] = {"roles": {"reference": None}, "algorithm": {"kl": {"coefficient": 0}}}
    assert "Deployment/quickstart-reference" not in build(changed(quickstart(), **fields))
    assert "Deployment/quickstart-actor-fwd" not in build(changed(quickstart(), roles={"actorFwd": None}))
