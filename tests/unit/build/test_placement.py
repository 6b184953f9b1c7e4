"""Actor, critic and coordinator share the run volume, and a node where only one node may mount it."""

from typing import Any

import pytest

from rljob_api import cluster
from rljob_operator.build.scheduling import bounded
from tests.unit.build.jobs import build, changed, quickstart, rich, with_critic

_ACTOR, _COORDINATOR = "Deployment/quickstart-actor", "Deployment/quickstart-coordinator"
_CRITIC = "Deployment/quickstart-critic"
_CLAIM = "PersistentVolumeClaim/quickstart-checkpoints"


def _pod(job: Any, name: str) -> dict[str, Any]:
    return dict(build(job)[name]["spec"]["template"]["spec"])


def _run_volume(pod: dict[str, Any]) -> dict[str, Any]:
    return next(dict(volume) for volume in pod["volumes"] if volume["name"] == "run")


def _near(pod: dict[str, Any]) -> dict[str, str]:
    (term,) = pod["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    return dict(term["labelSelector"]["matchLabels"])


def test_the_first_actor_fits_its_own_affinity_and_the_coordinator_follows_it() -> None:
    template = build(quickstart())[_ACTOR]["spec"]["template"]
    assert _near(template["spec"]).items() <= template["metadata"]["labels"].items()
    near = _near(_pod(quickstart(), _COORDINATOR))
    assert near == {cluster.LABEL_JOB: "quickstart", cluster.LABEL_ROLE: "actor"}
    labels = build(quickstart())[_COORDINATOR]["spec"]["template"]["metadata"]["labels"]
    assert _near(template["spec"]).items() <= labels.items(), "the actor comes back to where the coordinator is"


def test_the_coordinator_tolerates_what_the_actor_tolerates() -> None:
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    job = changed(quickstart(), roles={"actor": {"template": {"spec": {"tolerations": tolerations}}}})
    assert _pod(job, _COORDINATOR)["tolerations"] == bounded(tolerations)


def test_a_critic_follows_the_actor_and_the_actor_comes_back_to_where_it_is() -> None:
    job = with_critic()
    assert _near(_pod(job, _CRITIC)) == {cluster.LABEL_JOB: "quickstart", cluster.LABEL_ROLE: "actor"}
    labels = build(job)[_CRITIC]["spec"]["template"]["metadata"]["labels"]
    assert _near(_pod(job, _ACTOR)).items() <= labels.items()
    for name in (_ACTOR, _COORDINATOR):
        assert _pod(job, name) == _pod(quickstart(), name), "a critic moves no other pod"


def test_a_critic_tolerates_what_the_actor_tolerates_unless_its_template_has_others() -> None:
    actors, own = [{"key": "nvidia.com/gpu", "operator": "Exists"}], [{"key": "critics", "operator": "Exists"}]
    job = changed(with_critic(), roles={"actor": {"template": {"spec": {"tolerations": actors}}}})
    assert _pod(job, _CRITIC)["tolerations"] == bounded(actors)
    job = changed(job, roles={"critic": {"template": {"spec": {"tolerations": own}}}})
    assert _pod(job, _CRITIC)["tolerations"] == bounded(own)


def test_a_critic_in_a_domain_follows_the_actor_too() -> None:
    scheduling = {"topology": {"key": "rack", "rule": "Required"}}
    pod = _pod(changed(with_critic(), scheduling=scheduling), _CRITIC)
    terms = pod["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [term["topologyKey"] for term in terms] == ["kubernetes.io/hostname", "rack"]


def test_shared_storage_binds_no_one_to_a_node() -> None:
    job = changed(with_critic(), checkpoint={"volume": {"accessMode": "ReadWriteMany"}})
    for name in (_ACTOR, _CRITIC, _COORDINATOR):
        assert "affinity" not in _pod(job, name)


@pytest.mark.parametrize("claim", ["mine", pytest.param("quickstart-checkpoints", id="even of that name")])
def test_a_claim_of_the_users_is_mounted_and_none_is_made(claim: str) -> None:
    job = changed(with_critic(), checkpoint={"volume": {"claimName": claim}})
    assert _CLAIM not in build(job)
    for name in (_ACTOR, _CRITIC, _COORDINATOR):
        assert _run_volume(_pod(job, name))["persistentVolumeClaim"] == {"claimName": claim}


def test_coordinator_and_critic_mount_what_the_actors_template_gives() -> None:
    volume = {"name": "run", "nfs": {"server": "files", "path": "/jobs"}}
    job = changed(with_critic(), roles={"actor": {"template": {"spec": {"volumes": [volume]}}}})
    assert _CLAIM not in build(job)
    for name in (_ACTOR, _CRITIC, _COORDINATOR):
        assert _run_volume(_pod(job, name)) == volume
        assert "affinity" not in _pod(job, name)


def test_other_roles_keep_nothing() -> None:
    assert _run_volume(_pod(quickstart(), "Deployment/quickstart-rollout")) == {"name": "run", "emptyDir": {}}


def test_a_memory_limit_bounds_the_shared_memory_and_a_patch_may_state_otherwise() -> None:
    job = changed(quickstart(), roles={"actor": {"resources": {"limits": {"memory": "7Gi"}}}})
    sizes = {
        name: next(volume for volume in _pod(which, name)["volumes"] if volume["name"] == "shm")["emptyDir"]
        for which, name in (
            (job, _ACTOR),
            (job, "Deployment/quickstart-rollout"),
            (rich(), "Deployment/rich-rollout"),
        )
    }
    assert [size["sizeLimit"] for size in sizes.values()] == ["7Gi", "16Gi", "48Gi"]
    assert {size["medium"] for size in sizes.values()} == {"Memory"}


def _budgets_of(pod: dict[str, Any], objects: dict[str, Any]) -> list[int]:
    """What the budgets that select a pod allow to be away."""
    labels, found = pod["metadata"]["labels"], []
    for budget in (each for each in objects.values() if each["kind"] == "PodDisruptionBudget"):
        selector = budget["spec"]["selector"]
        is_left_out = any(labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", ()))
        if selector["matchLabels"].items() <= labels.items() and not is_left_out:
            found.append(budget["spec"]["maxUnavailable"])
    return found


@pytest.mark.parametrize(
    ("access_mode", "of_coordinator"),
    [
        pytest.param("ReadWriteOnce", [0], id="without it the actor beside it could not save: it leaves last"),
        pytest.param("ReadWriteMany", [1], id="it begins again elsewhere while the actor goes on"),
    ],
)
def test_a_drain_takes_no_coordinator_from_beside_its_actor(access_mode: str, of_coordinator: list[int]) -> None:
    """One budget for each pod: the API server evicts no pod that two of them select."""
    job = changed(
        quickstart(),
        checkpoint={"volume": {"accessMode": access_mode}},
        telemetry={"reportTo": ["tensorboard"]},
    )
    objects = build(job)
    pods = {name: each["spec"]["template"] for name, each in objects.items() if "template" in each.get("spec", {})}
    allowed = {name: _budgets_of(pod, objects) for name, pod in pods.items()}
    tracker = "Deployment/quickstart-tracker-tensorboard"
    assert (allowed.pop(_COORDINATOR), allowed.pop(tracker)) == (of_coordinator, [])
    assert set(map(tuple, allowed.values())) == {(1,)}
    assert len(allowed) == 7
