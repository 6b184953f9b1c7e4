"""The CRD is what a cluster accepts: structural, pruned, and the committed file is what the models say."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api.cluster_rules import CLUSTER_ONLY, given_cluster_fields
from rljob_api.generate.crd import Schema, crd, crd_text, spec_schema
from rljob_api.spec import RLJobSpec
from tests.unit.api.api_server import defaulted
from tests.unit.api.manifests import GOOD, changed

ROOT = Path(__file__).parents[3]
VERSION = crd()["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]


def _nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from _nodes(part, f"{path}.{name}")
    if "items" in schema:
        yield from _nodes(schema["items"], f"{path}[]")


def test_the_committed_file_is_what_the_models_state() -> None:
    assert (ROOT / "crds/rljob.dev_rljobs.yaml").read_text() == crd_text(), "run make crd"


def test_the_text_is_the_definition() -> None:
    assert yaml.safe_load(crd_text()) == crd()


def test_the_schema_is_structural() -> None:
    for path, node in _nodes(SCHEMA):
        assert bool(node.get("type")) != node.get("x-kubernetes-int-or-string", False), path
        assert not node.keys() & {"$ref", "$defs", "anyOf", "oneOf", "allOf", "title", "const"}, path
        # Kubernetes forbids both, and OpenAPI v3.0 has exclusive bounds as booleans.
        assert not {"properties", "additionalProperties"} <= node.keys(), path
        assert node.get("exclusiveMinimum", True) is True, path
        assert node.get("exclusiveMaximum", True) is True, path


def test_every_field_of_the_spec_is_described() -> None:
    for path, node in _nodes(SCHEMA["properties"]["spec"]):
        assert node.get("description") or path.endswith("[]"), path


def test_defaults_of_the_cluster_are_those_of_the_models() -> None:
    on_cluster = defaulted(spec_schema(), GOOD["spec"])
    assert RLJobSpec.model_validate(on_cluster) == RLJobSpec.model_validate(GOOD["spec"])


def test_every_field_path_of_a_rule_exists() -> None:
    for path, node in _nodes(SCHEMA):
        for rule in node.get("x-kubernetes-validations", ()):
            inner = node
            for name in rule.get("fieldPath", "").split(".")[1:]:
                inner = inner["properties"][name]
            assert len(rule.get("message", "")) <= 2048, path


def test_bounds_are_whole_numbers_of_an_api_server() -> None:
    # It compares a value without a point by them as int64, and one that is larger becomes the smallest there is.
    for path, node in _nodes(SCHEMA):
        assert all(abs(node[bound]) < 2**63 for bound in ("minimum", "maximum") if bound in node), path


def test_no_message_adds_strings() -> None:
    # The API server estimates a sum of strings of unknown length as too dear, and refuses the whole definition.
    for path, node in _nodes(SCHEMA):
        for rule in node.get("x-kubernetes-validations", ()):
            assert " + '" not in rule.get("messageExpression", ""), path


def test_every_text_that_a_rule_reads_is_bounded() -> None:
    spec = spec_schema()["properties"]
    assert spec["model"]["properties"]["config"]["properties"]["tokenizer"]["properties"]["alphabet"]["maxLength"]


def test_subresources_and_columns_point_at_fields_that_exist() -> None:
    scale = VERSION["subresources"]["scale"]
    columns = [column["jsonPath"] for column in VERSION["additionalPrinterColumns"]]
    plain = [path for path in columns if "[" not in path and not path.startswith(".metadata")]
    for path in [*scale.values(), *plain]:
        node = SCHEMA
        for name in path.split(".")[1:]:
            node = node["properties"][name]


def test_the_columns_are_these() -> None:
    columns = VERSION["additionalPrinterColumns"]
    plain = [column["name"] for column in columns if not column.get("priority")]
    wide = [column["name"] for column in columns if column.get("priority") == 1]
    assert plain == ["PHASE", "READY", "STEP", "REWARD", "RESTARTS", "REASON", "AGE"]
    assert wide == [
        "EPOCH",
        "ROLLOUTS",
        "WANTED",
        "WEIGHTS",
        "CHECKPOINT",
        "SAMPLES/S",
        "STALENESS",
        "EVALUATION",
        "QUEUE",
    ]


def test_every_list_states_how_it_is_merged() -> None:
    for path, node in _nodes(SCHEMA):
        if node.get("type") == "array":
            assert node["x-kubernetes-list-type"] in ("atomic", "map"), path


def test_conditions_are_a_map_by_type() -> None:
    conditions = SCHEMA["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    assert "type" in conditions["items"]["required"]


def test_parameters_of_a_dataset_are_not_pruned() -> None:
    gym = spec_schema()["properties"]["data"]["properties"]["reasoningGym"]
    assert gym["properties"]["parameters"]["x-kubernetes-preserve-unknown-fields"] is True


def _stated_to_be_of_a_cluster(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    for name, part in schema.get("properties", {}).items():
        if "On a cluster only." in " ".join(part["description"].split()):
            yield f"{path}{name}"
        else:
            yield from _stated_to_be_of_a_cluster(part, f"{path}{name}.")


def test_no_rule_makes_a_text_of_a_number() -> None:
    """The API server expects the longest text of it, and refuses the definition for what comparing that may cost."""
    rules = [entry["rule"] for _, node in _nodes(SCHEMA) for entry in node.get("x-kubernetes-validations", ())]
    assert len(rules) > 100
    assert not [rule for rule in rules if re.search(r"(?<!sub)(?<!quantity\()string\(", rule)]


def test_fields_of_a_cluster_are_those_that_state_it() -> None:
    assert sorted(CLUSTER_ONLY) == sorted(_stated_to_be_of_a_cluster(spec_schema()))


def test_fields_of_a_cluster_are_found_where_they_are_given() -> None:
    spec = RLJobSpec.model_validate(
        changed({"spec.image": "i", "spec.roles.actor": {"gpuResource": "amd.com/gpu"}})["spec"]
    )
    assert given_cluster_fields(spec) == ["roles.actor.gpuResource", "image"]
    assert given_cluster_fields(RLJobSpec.model_validate(GOOD["spec"])) == []


def test_no_default_names_a_field_that_the_release_before_would_refuse() -> None:
    """The API server writes defaults into every job that it reads, also for an operator that is older than they are."""
    commit = git("log", "--format=%H", "--max-count=1", "--grep", "^Release 0[.]2[.]0:").strip()
    if not commit:
        pytest.skip("this checkout's history lacks the release: fetch the whole history (not a shallow clone)")
    file = git("show", f"{commit}:crds/rljob.dev_rljobs.yaml")
    release = yaml.safe_load(file)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    rollout = {"reward": {"custom": {"function": "a:b"}}}
    filled = defaulted(spec_schema(), {"model": {"config": {}}, "data": {}, "rollout": rollout, "training": {}})
    assert unknown(release, filled) == []


def unknown(schema: Schema, value: object) -> list[str]:
    if not isinstance(value, dict) or "properties" not in schema:
        return []
    known = schema["properties"]
    inner = [name for key in value if key in known for name in unknown(known[key], value[key])]
    return [*(key for key in value if key not in known), *inner]


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout


REPLACED = {
    "algorithm": ["correction.mask", "gae"],
    "checkpoint": ["keepBest"],
    "data": ["chatTemplate", "reasoningGym"],
    "evaluation": [""],
    "infrastructure": [""],
    "model": ["config"],
    "restartRequest": [""],
    "roles": [
        "actor.parallelism",
        "actor.template",
        "actorFwd",
        "advantages",
        "critic",
        "reference",
        "rollout.autoscaling",
        "rollout.engine",
        "rollout.template",
    ],
    "rollout": [
        "curriculum",
        "dynamicSampling",
        "function",
        "partial",
        "reward.characterMatch",
        "reward.choice",
        "reward.custom",
        "reward.exactMatch",
        "reward.format",
        "reward.judge",
        "reward.mathVerify",
        "reward.onFailure",
        "reward.overlong",
        "reward.remote",
        "reward.shorter",
        "reward.tags",
        "reward.textOverlap",
    ],
    "scheduling": [""],
    "simulation": [""],
    "stopWhen": [""],
    "telemetry": ["keysFrom"],
    "training": ["experts"],
}
"""Objects of the spec that who applies them replaces as a whole, by their section."""


def _objects(schema: Schema, path: str = "spec") -> Iterator[tuple[str, Schema, Schema]]:
    """Each object below a node, with the node; what is inside one that is replaced, or inside a list, apart."""
    for name, part in schema.get("properties", {}).items():
        if part.get("type") == "object":
            yield f"{path}.{name}", schema, part
        if "x-kubernetes-map-type" not in part:
            yield from _objects(part, f"{path}.{name}")


def test_objects_that_are_replaced_as_a_whole_are_these() -> None:
    """New optional objects are among them; never roles, nor roles.rollout: autoscalers own `replicas` there."""
    found = sorted(path for path, _, part in _objects(spec_schema()) if part.get("x-kubernetes-map-type") == "atomic")
    assert found == sorted(
        ".".join(filter(None, ("spec", section, path))) for section, paths in REPLACED.items() for path in paths
    )


def test_an_object_of_fields_of_its_own_is_always_there() -> None:
    """A manager that takes all of its fields away has the API server store null: no object may mean something by it."""
    for path, above, part in _objects(spec_schema()):
        if "x-kubernetes-map-type" not in part:
            assert "default" in part or path.rpartition(".")[2] in above["required"], path
            assert not part.get("nullable"), path


def test_what_is_replaced_as_a_whole_is_stored_as_it_was_applied() -> None:
    """A default inside would be a conflict for the second manager that applies the same."""

    def inner(schema: Schema) -> Iterator[Schema]:
        for _, node in _nodes(schema):
            if node.get("x-kubernetes-list-type") == "atomic":
                yield node["items"]
            if node.get("x-kubernetes-map-type") == "atomic":
                yield from node.get("properties", {}).values()

    nodes = [node for part in inner(spec_schema()) for _, node in _nodes(part)]
    assert len(nodes) > 100
    assert not [node for node in nodes if "default" in node]


_READ = re.compile(r"(?<![\w.])self(?:\.\w+\b(?!\())+")


def test_rules_read_no_field_that_may_be_absent_without_a_test() -> None:
    """CEL has no value for one, and the API server refuses the object with a sentence that does not help."""
    for path, node in _nodes(SCHEMA):
        for entry in node.get("x-kubernetes-validations", ()):
            rule = entry["rule"]
            for read in _READ.findall(rule):
                assert not [at for at in _may_be_absent(read, node) if f"has({at})" not in rule], f"{path}: {rule}"


def _may_be_absent(read: str, node: Schema) -> Iterator[str]:
    at = "self"
    for name in read.split(".")[1:]:
        at, above, node = f"{at}.{name}", node, node["properties"].get(name, {})
        if not node or at == "self.metadata":
            return
        if "default" not in node and name not in above.get("required", ()):
            yield at
