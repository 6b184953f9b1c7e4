"""Whatever JSON a template has, the build makes objects or refuses it in sentences: anything else would be silent."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_operator.build import Platform, options_problems, overridden, warnings
from rljob_operator.build.template_patch import MERGE_KEYS
from rljob_operator.options import OperatorOptions, WorkloadOptions
from tests.unit.build.attacks import ADMINISTRATORS
from tests.unit.build.jobs import build, changed, quickstart

Json = dict[str, Any]

_NAMES = (
    "worker",
    "coordinator",
    "redis",
    "mesh",
    "node",
    "run",
    "tmp",
    "shm",
    "TEAM",
    "FOLDER",
    "/models",
    "$(FOLDER)",
)
_FIELDS = (
    *MERGE_KEYS,
    *("labels", "annotations", "matchLabels", "nodeSelector", "tolerations", "affinity", "securityContext"),
    *("name", "mountPath", "devicePath", "containerPort", "topologyKey", "ip", "$patch", "$retainKeys", "team"),
    *("envFrom", "resources", "limits", "requests", "claims", "cpu", "command", "image", "terminationMessagePath"),
    *("value", "valueFrom", "fieldRef", "fieldPath", "secretKeyRef", "fileKeyRef", "secretRef", "volumeName"),
    *("persistentVolumeClaim", "claimName", "projected", "sources", "secret", "secretName", "csi", "driver"),
    *("ephemeral", "volumeClaimTemplate", "dataSource", "emptyDir", "hostPath", "serviceAccountName"),
)
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 2**40)
    | st.floats(allow_nan=False)
    | st.sampled_from(("delete", *_NAMES)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_FIELDS), inner, max_size=4),
    max_leaves=12,
)


def _entries(key: str) -> st.SearchStrategy[Any]:
    """Of a list that is merged: mostly such that its entries come as far as to the build."""
    named = st.fixed_dictionaries({MERGE_KEYS[key]: st.sampled_from(_NAMES)})
    rest = st.dictionaries(st.sampled_from(_FIELDS), _VALUES, max_size=3)
    return st.lists(st.builds(lambda fields, name: {**fields, **name}, rest, named), max_size=3)


_CONTAINER = st.builds(
    lambda fields, lists, name: {**fields, **lists, "name": name},
    st.dictionaries(st.sampled_from(_FIELDS), _VALUES, max_size=3),
    st.fixed_dictionaries({}, optional={key: _entries(key) for key in ("env", "volumeMounts", "volumeDevices")}),
    st.sampled_from(_NAMES),
)
_POD = st.fixed_dictionaries(
    {},
    optional={
        "containers": st.lists(_CONTAINER, max_size=3) | _VALUES,
        "initContainers": st.lists(_CONTAINER, max_size=2) | _VALUES,
        "volumes": _entries("volumes") | _VALUES,
        "resourceClaims": _entries("resourceClaims"),
        "nodeSelector": _VALUES,
        "tolerations": _VALUES,
        "affinity": _VALUES,
        "securityContext": _VALUES,
    },
)
_METADATA = st.fixed_dictionaries(
    {}, optional={kind: st.dictionaries(st.sampled_from(_FIELDS), _VALUES) for kind in ("labels", "annotations")}
)
_TEMPLATES = st.fixed_dictionaries({}, optional={"metadata": _METADATA | _VALUES, "spec": _POD | _VALUES})

_GIVEN = [
    pytest.param({}, id="without a template of the administrator's"),
    pytest.param({"podTemplate": ADMINISTRATORS, "pullSecrets": ["registry"]}, id="with the administrator's template"),
]
_GANG = {"scheduling": {"gang": "PodGroup"}}


def _built(template: Json, options: OperatorOptions) -> None:
    roles = {"roles": {role: {"template": template} for role in ("actor", "rollout")}}
    for fields in (roles, {**roles, **_GANG}, {"infrastructure": {"template": template}}):
        job = changed(quickstart(), **fields)
        with suppress(ValueError):
            made = build(job, options=options, platform=Platform(pod_groups=True))
            overridden(options, made.values())
            warnings(job)


@pytest.mark.parametrize("workloads", _GIVEN)
@settings(max_examples=60, deadline=None)
@given(template=_TEMPLATES)
def test_nothing_but_a_refusal_comes_of_what_no_pod_template_is(workloads: Json, template: Json) -> None:
    _built(template, OperatorOptions.model_validate({"workloads": workloads}))


@pytest.mark.parametrize("workloads", _GIVEN)
@pytest.mark.parametrize(
    "template",
    [
        {"metadata": {"labels": {"env": [1]}}},
        {"metadata": {"annotations": {"env": [{"name": [1]}]}}},
        {"spec": {"containers": [{"name": "worker", "envFrom": 5}]}},
        {"spec": {"volumes": [{"name": "run", "persistentVolumeClaim": "x"}]}},
        {
            "spec": {
                "volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": {"metadata": {"labels": {"env": [1]}}}}}]
            }
        },
    ],
    ids=str,
)
def test_what_no_pod_template_is_has_its_sentence(workloads: Json, template: Json) -> None:
    job = changed(quickstart(), roles={"actor": {"template": template}})
    with pytest.raises(ValueError, match=r"^roles\.actor\.template\..* is not "):
        build(job, options=OperatorOptions.model_validate({"workloads": workloads}))


@settings(max_examples=60, deadline=None)
@given(template=_TEMPLATES)
def test_an_administrators_template_is_refused_at_the_start_or_can_be_built_with(template: Json) -> None:
    if options_problems(WorkloadOptions(pod_template=template)):
        return
    _built({}, OperatorOptions.model_validate({"workloads": {"podTemplate": template}}))
