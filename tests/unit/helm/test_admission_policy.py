"""The administrator's policy judges every template that a job may have."""

from collections.abc import Iterator
from typing import Any

from rljob_api.generate.crd import spec_schema


def templates(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Fields that are a patch of a pod template."""
    for name, part in schema.get("properties", {}).items():
        where = f"{path}{name}"
        if name == "template" and part.get("x-kubernetes-preserve-unknown-fields"):
            yield where
        yield from templates(part, f"{where}.")


def test_templates_are_where_the_policy_looks() -> None:
    found = set(templates(spec_schema()))
    assert "infrastructure.template" in found
    roles = {path for path in found if path.startswith("roles.")}
    assert len(roles) == len(spec_schema()["properties"]["roles"]["properties"])
    assert found == roles | {"infrastructure.template"}, "the policy of the chart must see it, too"
