"""Every place of a spec that names an object is in the table, and no job names there what is the administrator's."""

import re
from collections.abc import Iterator
from enum import StrEnum
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from rljob_api import cluster
from rljob_api.spec import RLJobSpec
from rljob_operator.build.foreign_objects import administrators, foreign_objects
from rljob_operator.build.named_objects import (
    EACH,
    OWN_NAMES,
    POD_PLACES,
    SPEC_PLACES,
    Access,
    Kind,
    Place,
)
from rljob_operator.options import WorkloadOptions
from tests.unit.build.attacks import WORKLOADS
from tests.unit.build.jobs import build, changed, quickstart
from tests.unit.build.reaching_attacks import OBJECTS

_OPTIONS = WorkloadOptions.model_validate(WORKLOADS)
_RESERVED = {
    Kind.SECRET: "secrets",
    Kind.CONFIG_MAP: "configMaps",
    Kind.CLAIM: "persistentVolumeClaims",
    Kind.SERVICE_ACCOUNT: "serviceAccounts",
    Kind.RESOURCE_CLAIM: "resourceClaims",
}

_ON_A_CLUSTER = re.compile(r"(scheduling|infrastructure|telemetry|checkpoint\.volume|transferQueue\.redis)\.|[^.]+$")
"""Parts of the spec that say what pods are like: each of their texts names an object or is one of `_TEXTS`."""
_LIKE_A_NAME = re.compile(
    r"(secret|config_?map|claim|account|volume|class|queue|group|node|Ref|Resource|ObjectName)", re.IGNORECASE
)
_TEXTS = {
    *("image", "transferQueue.redis.image", "scheduling.topology.key"),
    *("checkpoint.volume.size", "transferQueue.redis.persistence.size"),
    *("restartPolicy.failureRules[].podReasons[]",),
}
"""Texts that look so and name no object: images, amounts, a label of nodes, the kubelet's reasons."""
_AMOUNTS = re.compile(r"\.resources\.(requests|limits)$|\.template$|^infrastructure\.template$")


def _texts(kind: Any, path: str = "") -> Iterator[str]:
    """Paths of all fields that hold a text that is free."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        yield from _texts(arguments[0], path)
    elif origin in (Union, UnionType):
        for each in arguments:
            yield from _texts(each, path)
    elif origin in (list, tuple):
        for each in arguments:
            yield from _texts(each, f"{path}{EACH}")
    elif origin is dict:
        yield from _texts(arguments[1], path)
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            yield from _texts(field.annotation, f"{path}.{field.alias or name}".lstrip("."))
    elif kind is str or (isinstance(kind, type) and issubclass(kind, str) and not issubclass(kind, StrEnum)):
        yield path


def _named(path: tuple[str, ...]) -> str:
    return ".".join(path).replace(f".{EACH}", EACH)


def test_every_field_of_a_spec_that_names_an_object_is_in_the_table() -> None:
    known = {re.sub(r"^roles\[\]", "roles.*", _named(place.path)) for place in SPEC_PLACES}
    found = {re.sub(r"^roles\.\w+", "roles.*", path) for path in _texts(RLJobSpec)}
    candidates = {path for path in found if _ON_A_CLUSTER.match(path) or _LIKE_A_NAME.search(path.rpartition(".")[2])}
    left = {path for path in candidates - known - _TEXTS if not _AMOUNTS.search(path)}
    assert left == set(), "add a row to named_objects.SPEC_PLACES, or say here that it names no object"
    assert known <= found, "a row for a field that is not there"


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_of_the_administrators_is_named_in_the_sentence(name: str) -> None:
    found = foreign_objects(changed(quickstart(), **OBJECTS[name]), _OPTIONS)
    assert found
    for sentence in found:
        assert re.match(
            r"(roles\.(rollout|actor)\.template|infrastructure\.template|telemetry|checkpoint)\.\S+: the \w+ \S+ is one"
            r" that the operator's workloads\.(podTemplate|pullSecrets|reservedObjects) names\. Name another one\.$",
            sentence,
        )


def _nested(path: tuple[str, ...], name: str, entry: str) -> Any:
    """A template with `name` at `path`; entries of lists are called `entry`."""
    made: Any = name
    for part in reversed(path):
        made = [{"name": entry, **made}] if part == EACH else {part: made}
    return made


_OPEN = [place for place in POD_PLACES if place.access in (Access.OPEN, Access.LISTED) and place.path[-2] != EACH]


@pytest.mark.parametrize("place", _OPEN, ids=lambda place: _named(place.path))
def test_a_name_of_the_administrators_is_refused_at_each_place(place: Place) -> None:
    reserved = {_RESERVED[place.kind]: ["his"]} if place.kind in _RESERVED else {}
    given = {} if reserved else {"podTemplate": _nested(place.path, "his", "theirs")}
    if place.access is Access.LISTED and not reserved:
        return  # the administrator lists what jobs may name: no name is his
    options = WorkloadOptions.model_validate({"reservedObjects": reserved, **given})
    job = changed(quickstart(), roles={"rollout": {"template": _nested(place.path, "his", "mine")}})
    (sentence,) = foreign_objects(job, options)
    assert sentence.startswith("roles.rollout.template.")
    assert f": the {place.kind} his is one that the operator's workloads." in sentence
    others = changed(quickstart(), roles={"rollout": {"template": _nested(place.path, "mine", "mine")}})
    assert foreign_objects(others, options) == []


@pytest.mark.parametrize("place", _OPEN, ids=lambda place: _named(place.path))
def test_what_the_administrators_template_names_is_his_at_each_place(place: Place) -> None:
    admin = administrators(WorkloadOptions.model_validate({"podTemplate": _nested(place.path, "his", "theirs")}))
    assert ((place.kind, "his") in admin.named) is (place.access is Access.OPEN)


def test_variables_that_a_job_repeats_stay_the_administrators_and_are_taken() -> None:
    """`envFrom` is one value: a job that adds to it repeats what is there."""
    his = {"secretRef": {"name": "team"}}
    options = {"podTemplate": {"spec": {"containers": [{"name": "worker", "envFrom": [his]}]}}}
    workloads = WorkloadOptions.model_validate(options)

    def taken(name: str, key: str = "containers") -> bool:
        spec = {key: [{"name": name, "envFrom": [his, {"secretRef": {"name": "mine"}}]}]}
        return not foreign_objects(changed(quickstart(), roles={"rollout": {"template": {"spec": spec}}}), workloads)

    assert taken("worker")
    assert not taken("mine")
    nothing = {"podTemplate": {"spec": {"containers": [{"name": "worker", "envFrom": None}]}}}
    template = {"spec": {"containers": [{"name": "worker", "envFrom": [his]}]}}
    job = changed(quickstart(), roles={"rollout": {"template": template}})
    assert foreign_objects(job, WorkloadOptions.model_validate(nothing)) == []
    assert not taken("worker", "initContainers")


@pytest.mark.parametrize(
    ("pattern", "name", "is_his"),
    [("site", "site", True), ("site", "site-2", False), ("*-tls", "a-tls", True), ("*-tls", "tls", False)],
)
def test_a_reserved_name_may_begin_with_anything(pattern: str, name: str, is_his: bool) -> None:
    options = WorkloadOptions.model_validate({"reservedObjects": {"secrets": [pattern]}})
    job = changed(quickstart(), telemetry={"reportTo": ["wandb"], "keysFrom": {"secretName": name}})
    assert bool(foreign_objects(job, options)) is is_his


def test_a_job_names_its_own_objects_where_those_of_other_jobs_are_reserved() -> None:
    options = WorkloadOptions.model_validate({"reservedObjects": {"secrets": ["*-secret"]}})

    def naming(name: str) -> list[str]:
        volumes = [{"name": "keys", "secret": {"secretName": name}}]
        template = {"spec": {"volumes": volumes}}
        return foreign_objects(changed(quickstart(), roles={"rollout": {"template": template}}), options)

    assert naming("quickstart-secret") == []
    assert naming(cluster.secret_copy_name("quickstart")) == []
    assert len(naming(cluster.secret_copy_name("victim"))) == 1
    assert naming("other-secret") == [
        "roles.rollout.template.spec.volumes[keys].secret.secretName: the Secret other-secret is one that the"
        " operator's workloads.reservedObjects names. Name another one."
    ]


_BY_PROJECTION = [{"name": "v", "projected": {"sources": [{"$patch": "delete", "secret": {"name": "site-secret"}}]}}]


@pytest.mark.parametrize(
    ("spec", "is_named"),
    [
        (
            {
                "containers": [
                    {"name": "worker", "envFrom": [{"$patch": "delete", "secretRef": {"name": "site-secret"}}]}
                ]
            },
            True,
        ),
        ({"volumes": _BY_PROJECTION}, True),
        ({"volumes": [{"name": "v", "$patch": "delete", "secret": {"secretName": "site-secret"}}]}, False),
    ],
    ids=["a list of variables that is replaced", "sources of a volume", "a volume that is deleted"],
)
def test_a_directive_hides_a_name_only_in_a_list_that_is_merged(spec: Any, is_named: bool) -> None:
    options = WorkloadOptions.model_validate({"reservedObjects": {"secrets": ["*-secret"]}})
    job = changed(quickstart(), roles={"rollout": {"template": {"spec": spec}}})
    assert bool(foreign_objects(job, options)) is is_named


def test_images_may_be_pulled_by_what_all_pods_have_anyway() -> None:
    def pulling(name: str) -> list[str]:
        template = {"spec": {"imagePullSecrets": [{"name": name}]}}
        return foreign_objects(changed(quickstart(), roles={"rollout": {"template": template}}), _OPTIONS)

    assert pulling("site-pull") == []
    assert pulling("registry") == []
    assert pulling("site-tls")


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("Secret", {"secret": {"secretName": "quickstart-secret"}}),
        ("Secret", {"secret": {"secretName": "quickstart.copy-secret"}}),
        ("ConfigMap", {"configMap": {"name": "quickstart-job"}}),
        ("PersistentVolumeClaim", {"persistentVolumeClaim": {"claimName": "quickstart-checkpoints"}}),
        ("PersistentVolumeClaim", {"persistentVolumeClaim": {"claimName": "data-quickstart-control-0"}}),
    ],
    ids=["Secret", "its copy", "ConfigMap", "checkpoints", "control Redis"],
)
def test_a_job_whose_own_object_would_be_the_administrators_needs_another_name(kind: str, source: Any) -> None:
    spec = {"volumes": [{"name": "his", **source}]}
    (sentence,) = foreign_objects(quickstart(), WorkloadOptions.model_validate({"podTemplate": {"spec": spec}}))
    assert sentence.startswith(f"metadata.name: the {kind} ")
    assert sentence.endswith("is one that the operator's workloads.podTemplate names. Give the job another name.")


@pytest.mark.parametrize(("pattern", "is_his"), [("quickstart-secret", True), ("*-secret", False)])
def test_a_reserved_name_is_no_jobs_and_a_pattern_leaves_each_job_its_own(pattern: str, is_his: bool) -> None:
    options = WorkloadOptions.model_validate({"reservedObjects": {"secrets": [pattern]}})
    found = foreign_objects(quickstart(), options)
    assert [sentence.partition(",")[0] for sentence in found] == (
        ["metadata.name: the Secret quickstart-secret"] if is_his else []
    )


def test_the_names_of_own_objects_are_those_that_are_built() -> None:
    made = build(quickstart())
    names = {(kind, f"{before}quickstart{after}") for kind, before, after in OWN_NAMES}
    assert {("ConfigMap", "quickstart-job"), ("PersistentVolumeClaim", "quickstart-checkpoints")} <= names
    assert {f"{kind}/{name}" for kind, name in names} & made.keys() == {
        "ConfigMap/quickstart-job",
        "PersistentVolumeClaim/quickstart-checkpoints",
        "PersistentVolumeClaim/data-quickstart-control-0",
    }


def test_only_what_the_options_name_is_refused() -> None:
    assert (
        foreign_objects(changed(quickstart(), **OBJECTS["a pull secret as a tracker's keys"]), WorkloadOptions()) == []
    )
