"""The chart's admission policy has the operator's own tables, and the pages say the same."""

from pathlib import Path

import yaml

from helm.policy_table import policy_table
from rljob_api.spec.infrastructure import InfrastructureSpec
from rljob_operator.build.parts import CONTAINERS, INFRASTRUCTURE_CONTAINERS, ROLE_CONTAINERS
from rljob_operator.options import ReachOptions, ReservedObjects

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm/rljob-operator"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


def test_the_chart_carries_the_operators_table() -> None:
    assert (CHART / "files/policy-table.yaml").read_text() == policy_table(), "run make policy-table"


def test_the_page_names_the_operators_own_containers() -> None:
    page = (ROOT / "docs/installing.md").read_text()
    names = [f"`{name}`" for name in INFRASTRUCTURE_CONTAINERS]
    assert f"`{ROLE_CONTAINERS[0]}` of a role, {', '.join(names[:-1])} and {names[-1]} of the infrastructure" in page
    assert len(CONTAINERS) == 1 + len(names)


def test_the_reference_names_the_containers_of_the_infrastructure() -> None:
    assert InfrastructureSpec.model_fields["template"].description is not None
    for name in INFRASTRUCTURE_CONTAINERS:
        assert f"`{name}`" in InfrastructureSpec.model_fields["template"].description


def test_the_values_are_the_operators_defaults() -> None:
    assert VALUES["workloads"]["reach"] == ReachOptions().model_dump(mode="json")
    assert VALUES["workloads"]["reservedObjects"] == ReservedObjects().model_dump(mode="json")
