"""The chart says the same as the code: CRD, version, options with their bounds."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_operator.options import LeaseOptions, OperatorOptions, WorkloadOptions

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm/rljob-operator"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def _keys(values: dict[str, Any], path: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield f"{path}.{name}"
        if isinstance(value, dict) and "properties" in _schema_at(f"{path}.{name}"):
            yield from _keys(value, f"{path}.{name}")


def _schema_at(path: str) -> dict[str, Any]:
    node = SCHEMA
    for name in path.split(".")[1:]:
        node = node["properties"][name]
    return _resolved(node)


def _resolved(node: dict[str, Any]) -> dict[str, Any]:
    return SCHEMA["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node


def _properties(path: str = "") -> Iterator[str]:
    for name in _schema_at(path).get("properties", {}):
        yield f"{path}.{name}"
        if "properties" in _schema_at(f"{path}.{name}"):
            yield from _properties(f"{path}.{name}")


def test_the_chart_carries_the_generated_crd() -> None:
    generated = (ROOT / "crds/rljob.dev_rljobs.yaml").read_text()
    assert (CHART / "files/rljob.dev_rljobs.yaml").read_text() == generated, "run make crd"


def test_the_crd_has_one_head_for_the_template_to_add_to() -> None:
    assert (CHART / "files/rljob.dev_rljobs.yaml").read_text().count("\nmetadata:\n") == 1


def test_the_chart_has_the_version_of_the_code() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)
    assert VALUES["workloads"]["workerImage"].endswith(f":{version}")


def test_values_and_schema_list_the_same() -> None:
    # `global` is what Helm itself adds for charts that contain this one.
    assert {*_keys(VALUES)} == {*_properties()} - {".global"}


def test_the_schema_refuses_what_it_does_not_list() -> None:
    for path in ["", *(path for path in _properties() if "properties" in _schema_at(path))]:
        assert _schema_at(path)["additionalProperties"] is False, path


def test_every_value_has_a_comment() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    for path in _keys(VALUES):
        name = path.rpartition(".")[2]
        indent = "  " * (path.count(".") - 1)
        found = [number for number, line in enumerate(lines) if line.startswith(f"{indent}{name}:")]
        above = [lines[number - 1].strip() for number in found]
        leaf = "properties" not in _schema_at(path)
        assert not leaf or any(line.startswith("#") for line in above), f"{path} has no comment above it"


@pytest.mark.parametrize(
    ("path", "model", "left_out"),
    [
        pytest.param(
            ".workloads",
            WorkloadOptions,
            {"operatorNamespace", "operatorLabels"},
            id="workloads: who asks is the release",
        ),
        pytest.param(".lease", LeaseOptions, {"name", "namespace"}, id="lease: the release names it"),
        pytest.param("", OperatorOptions, {"healthPort", "metricsPort"}, id="operator: ports stand under ports"),
    ],
)
def test_values_are_the_options(path: str, model: type[Any], left_out: set[str]) -> None:
    options = model.model_json_schema(by_alias=True)
    defined = options.get("$defs", {})
    for name, option in options["properties"].items():
        if name in left_out:
            continue
        value = _schema_at(f"{path}.{name}")
        if "properties" in value:
            continue
        if "$ref" in option:
            option = {**option, **defined[option["$ref"].rpartition("/")[2]]}
        for bound in ("minimum", "maximum", "exclusiveMinimum", "enum", "pattern"):
            assert value.get(bound) == option.get(bound), f"{path}.{name}: {bound}"
    if path:
        assert {*options["properties"]} - left_out == {*_schema_at(path)["properties"]}


def test_defaults_are_those_of_the_options() -> None:
    ours = {
        name: VALUES[name]
        for name in ("namespaces", "coordinatorAccess", "concurrency", "jobsPerNamespace", "workloads")
    }
    ours["workloads"] = {**ours["workloads"], "workerImage": WorkloadOptions().worker_image}
    ports = {"healthPort": VALUES["ports"]["health"], "metricsPort": VALUES["ports"]["metrics"]}
    assert OperatorOptions.model_validate({**ours, **ports, "lease": VALUES["lease"]}) == OperatorOptions()
