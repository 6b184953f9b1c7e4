"""What a template patch must leave alone is refused in a sentence with field, value and cure."""

from typing import Any

import pytest

from rljob_operator.build import options_problems, template_problems
from rljob_operator.options import WorkloadOptions
from tests.unit.build.jobs import build, changed, quickstart, rich, with_critic

_PATH = "roles.actorFwd.template"


def _worker(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "worker", **fields}]}}


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        pytest.param(
            {"metadata": {"labels": {"rljob.dev/job": "other"}}},
            f"{_PATH}.metadata.labels.rljob.dev/job: belongs to the operator, which knows the pod by it. Remove it.",
            id="labels of the operator",
        ),
        pytest.param(
            {"metadata": {"name": "x"}},
            f"{_PATH}.metadata.name: cannot be patched. Give labels and annotations only.",
            id="a name",
        ),
        pytest.param(
            {"replicas": 3},
            f"{_PATH}.replicas: there is no such field. Give metadata or spec, as in a pod template.",
            id="a field of the Deployment",
        ),
        pytest.param(
            _worker(command=["sh"]),
            f"{_PATH}.spec.containers[worker].command: cannot be patched: the operator starts the program. Remove it.",
            id="the command",
        ),
        pytest.param(
            _worker(env=[{"name": "RLJOB_ROLE", "value": "actor"}]),
            f"{_PATH}.spec.containers[worker].env[RLJOB_ROLE]: belongs to the operator. Choose a name without RLJOB_.",
            id="the environment that tells a pod who it is",
        ),
        pytest.param(
            _worker(env=[{"name": "RLJOB_DEVICES_OF", "value": "others"}]),
            f"{_PATH}.spec.containers[worker].env[RLJOB_DEVICES_OF]: belongs to the operator. Choose a name without"
            " RLJOB_.",
            id="a name that only begins like one that may be set",
        ),
        pytest.param(
            _worker(volumeMounts=[{"name": "mine", "mountPath": "/etc/rljob"}]),
            f"{_PATH}.spec.containers[worker].volumeMounts[/etc/rljob]: would hide what the operator mounts there."
            " Choose another path.",
            id="a mount over the secret",
        ),
        pytest.param(
            _worker(terminationMessagePath="/etc/rljob/secret/said"),
            f"{_PATH}.spec.containers[worker].terminationMessagePath: /etc/rljob/secret/said is where the"
            " operator mounts something. Choose another path.",
            id="a last message over the secret",
        ),
        pytest.param(
            {"spec": {"volumes": [{"name": "secret", "emptyDir": {}}]}},
            f"{_PATH}.spec.volumes[secret]: belongs to the operator, and workers live on it."
            " Give a volume of yours another name.",
            id="the secret's volume",
        ),
        pytest.param(
            {"spec": {"volumes": [{"name": "run", "$patch": "delete"}]}},
            f"{_PATH}.spec.volumes[run]: cannot be deleted: checkpoints and logs lie on it. Give it another source.",
            id="the run volume deleted",
        ),
        pytest.param(
            {"spec": {"containers": [{"name": "worker", "$patch": "delete"}]}},
            f"{_PATH}.spec.containers[worker]: cannot be deleted, since it is what the pod is for. Remove $patch.",
            id="the worker deleted",
        ),
        pytest.param(
            {"spec": {"containers": None}},
            f"{_PATH}.spec.containers: null is not a list. Give a list of objects with name, and"
            " {name: ..., $patch: delete} to delete one.",
            id="all containers deleted",
        ),
        pytest.param(
            {"spec": {"containers": [{"image": "x"}]}},
            f"{_PATH}.spec.containers[0].name: is missing. Entries are merged by it: give one.",
            id="a container without a name",
        ),
        pytest.param(
            _worker(env=["A=1"]),
            f"{_PATH}.spec.containers[0].env[0]: 'A=1' is not an object. Give an object with name.",
            id="a variable that is text",
        ),
        pytest.param(
            {"spec": {"containers": [{"name": "a", "$patch": "replace"}]}},
            f"{_PATH}.spec.containers[0].$patch: 'replace' is not known here. Give delete or leave it out.",
            id="an unknown directive",
        ),
        pytest.param(
            {"spec": {"$patch": "replace"}},
            f"{_PATH}.spec.$patch: belongs into an entry of a list. Give null to delete a field.",
            id="a directive outside a list",
        ),
        pytest.param({"spec": "x"}, f"{_PATH}.spec: 'x' is not an object. Give an object.", id="a spec that is text"),
        pytest.param(
            {"spec": None}, f"{_PATH}.spec: null is not an object. Give an object.", id="null for all there is"
        ),
        pytest.param(
            {"metadata": {"labels": None}},
            f"{_PATH}.metadata.labels: null is not an object. Give an object.",
            id="null for all labels",
        ),
        pytest.param(
            {"metadata": {"labels": ["x"]}},
            f"{_PATH}.metadata.labels: ['x'] is not an object. Give an object.",
            id="labels in a list",
        ),
        pytest.param(
            {"metadata": {"annotations": {"on": True}}},
            f"{_PATH}.metadata.annotations.on: True is not text. Give it in quotes.",
            id="an annotation that is no text",
        ),
        pytest.param(
            _worker(envFrom={"configMapRef": {"name": "a"}}),
            f"{_PATH}.spec.containers[0].envFrom: {{'configMapRef': {{'name': 'a'}}}} is not a list of objects."
            " Give envFrom as in a pod template.",
            id="variables from what is no list",
        ),
        pytest.param(
            {"spec": {"volumes": [{"name": "run", "persistentVolumeClaim": "mine"}]}},
            f"{_PATH}.spec.volumes[0].persistentVolumeClaim: 'mine' is not an object. Give an object.",
            id="a claim that is text",
        ),
        pytest.param(
            _worker(resources="x"),
            f"{_PATH}.spec.containers[0].resources: 'x' is not an object. Give an object.",
            id="resources that are text",
        ),
        pytest.param(
            _worker(resources={"limits": ["x"]}),
            f"{_PATH}.spec.containers[0].resources.limits: ['x'] is not an object. Give an object.",
            id="limits in a list",
        ),
        pytest.param(
            {"spec": {"initContainers": [{"name": "a", "resources": {"requests": 2}}]}},
            f"{_PATH}.spec.initContainers[0].resources.requests: 2 is not an object. Give an object.",
            id="requests that are a number",
        ),
    ],
)
def test_refused(template: dict[str, Any], sentence: str) -> None:
    job = changed(quickstart(), roles={"actorFwd": {"template": template}})
    assert template_problems(job) == [sentence]
    with pytest.raises(ValueError, match=_PATH):
        build(job)


@pytest.mark.parametrize(
    "template",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"metadata": {"labels": {"env": "prod", "ports": "none"}}}, id="labels named as lists are"),
        pytest.param(
            {"metadata": {"labels": {"spec": "a"}}, "spec": {"nodeSelector": {"env": "prod"}}}, id="others so"
        ),
        pytest.param(_worker(resources={"limits": {"cpu": "2"}, "requests": None}), id="limits without requests"),
        pytest.param({"spec": {"nodeSelector": {"resources": "many", "limits": "none"}}}, id="labels named as amounts"),
        pytest.param(_worker(image="other", env=[{"name": "A", "value": "RLJOB_"}]), id="image and environment"),
        pytest.param({"spec": {"containers": [{"name": "sidecar", "command": ["sh"]}]}}, id="a sidecar's command"),
        pytest.param(
            _worker(volumeMounts=[{"name": "m", "mountPath": "/etc/rljob-mine"}]), id="a path that begins alike"
        ),
    ],
)
def test_allowed(template: dict[str, Any]) -> None:
    job = changed(quickstart(), roles={"actorFwd": {"template": template}})
    assert template_problems(job) == []
    build(job)


def test_a_critic_writes_to_the_actors_volume() -> None:
    job = with_critic(template={"spec": {"volumes": [{"name": "run", "emptyDir": {}}]}})
    assert template_problems(job) == [
        "roles.critic.template.spec.volumes[run]: the critic writes to the folder that the actor writes to. Give the"
        " volume in roles.actor.template, for both."
    ]


def test_a_critic_is_not_sent_where_the_actor_is_not() -> None:
    job = with_critic(template={"spec": {"nodeSelector": {"pool": "a100"}}})
    assert template_problems(job) == []
    job = changed(job, roles={"actor": {"template": {"spec": {"nodeSelector": {"pool": "h100"}}}}})
    assert template_problems(job) == [
        "roles.critic.template.spec.nodeSelector.pool: 'a100' is where the actor is not (its template has 'h100'), and"
        " checkpoint.volume.accessMode ReadWriteOnce keeps the critic on the actor's node. Give ReadWriteMany and a"
        " class of storage that all nodes share, or leave this out."
    ]
    assert template_problems(changed(job, checkpoint={"volume": {"accessMode": "ReadWriteMany"}})) == []


def test_rich_manifest_has_no_problem() -> None:
    assert template_problems(rich()) == []


def test_the_operators_patch_is_held_to_the_same() -> None:
    patch = {"spec": {"containers": [{"name": "redis", "args": []}], "volumes": [{"name": "run", "emptyDir": {}}]}}
    assert options_problems(WorkloadOptions(pod_template=patch)) == [
        "workloads.podTemplate.spec.volumes[run]: belongs to the operator, and workers live on it."
        " Give a volume of yours another name.",
        "workloads.podTemplate.spec.containers[redis].args: cannot be patched: the operator starts the program."
        " Remove it.",
    ]
