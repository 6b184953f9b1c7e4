"""A template patch means what it means to kubectl."""

from typing import Any

import pytest

from rljob_operator.build.template_patch import patched


@pytest.mark.parametrize(
    ("original", "patch", "expected"),
    [
        pytest.param({"a": 1, "b": 2}, {"b": 3}, {"a": 1, "b": 3}, id="a value is replaced"),
        pytest.param({"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}, id="maps are merged by key"),
        pytest.param({"a": 1, "b": 2}, {"a": None}, {"b": 2}, id="null deletes"),
        pytest.param({"a": {"x": 1, "y": 2}}, {"a": {"x": None}}, {"a": {"y": 2}}, id="null deletes further in"),
        pytest.param({}, {"a": {"x": None, "y": 1}}, {"a": {"y": 1}}, id="null in what is new is nothing"),
        pytest.param({}, {"future": {"field": [1]}}, {"future": {"field": [1]}}, id="an unknown field passes"),
        pytest.param(
            {"containers": [{"name": "a", "image": "1"}, {"name": "b"}]},
            {"containers": [{"name": "b", "image": "2"}, {"name": "c"}]},
            {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}, {"name": "c"}]},
            id="containers are merged by name and new ones come last",
        ),
        pytest.param(
            {"volumeMounts": [{"mountPath": "/a", "name": "x"}]},
            {"volumeMounts": [{"mountPath": "/a", "name": "y"}, {"mountPath": "/b", "name": "x"}]},
            {"volumeMounts": [{"mountPath": "/a", "name": "y"}, {"mountPath": "/b", "name": "x"}]},
            id="mounts are merged by path",
        ),
        pytest.param(
            {"ports": [{"containerPort": 1, "name": "a"}]},
            {"ports": [{"containerPort": 1, "hostPort": 2}]},
            {"ports": [{"containerPort": 1, "name": "a", "hostPort": 2}]},
            id="ports are merged by their number",
        ),
        pytest.param(
            {"tolerations": [{"key": "a"}]},
            {"tolerations": [{"key": "b"}]},
            {"tolerations": [{"key": "b"}]},
            id="tolerations are replaced, as the types of Kubernetes say",
        ),
        pytest.param(
            {"command": ["a", "b"]}, {"command": ["c"]}, {"command": ["c"]}, id="a list of plain values is replaced"
        ),
        pytest.param(
            {"topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 1}]},
            {"topologySpreadConstraints": [{"topologyKey": "node", "maxSkew": 2}]},
            {
                "topologySpreadConstraints": [
                    {"topologyKey": "zone", "maxSkew": 1},
                    {"topologyKey": "node", "maxSkew": 2},
                ]
            },
            id="spread constraints are merged by their topology",
        ),
        pytest.param(
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
            {"env": [{"name": "A", "$patch": "delete"}, {"name": "never-there", "$patch": "delete"}]},
            {"env": [{"name": "B", "value": "2"}]},
            id="$patch: delete deletes an entry",
        ),
        pytest.param(
            {"env": [{"name": "A", "value": "1"}]},
            {"env": [{"name": "A", "valueFrom": {"fieldRef": {}}}]},
            {"env": [{"name": "A", "valueFrom": {"fieldRef": {}}}]},
            id="a variable from elsewhere takes the place of a value",
        ),
        pytest.param(
            {"volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]},
            {"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}]},
            {"volumes": [{"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}]},
            id="the same source of a volume is merged",
        ),
        pytest.param(
            {"volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]},
            {"volumes": [{"name": "v", "nfs": {"server": "s", "path": None}}]},
            {"volumes": [{"name": "v", "nfs": {"server": "s"}}]},
            id="another source of a volume takes the place of the first",
        ),
    ],
)
def test_patch(original: dict[str, Any], patch: dict[str, Any], expected: dict[str, Any]) -> None:
    before = repr(original), repr(patch)
    assert patched(original, patch) == expected
    assert (repr(original), repr(patch)) == before, "neither is changed"
