"""What only a cluster refuses: the same in Python and in CEL, in one sentence, and never of a job that has begun."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.cluster_rules import cluster_problems, cluster_validations
from rljob_api.generate.crd import crd
from rljob_api.rule import VALIDATIONS
from rljob_api.spec import RLJobSpec
from tests.unit.api.api_server import broken_rules, defaulted
from tests.unit.api.manifests import changed

SCHEMA = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
OF_CLUSTER = [entry for entry in SCHEMA[VALIDATIONS] if "fieldPath" in entry]


def by_python(manifest: dict[str, Any], *, has_begun: bool) -> list[str]:
    return sorted(cluster_problems(RLJobSpec.model_validate(manifest["spec"]), has_begun=has_begun))


def by_cel(manifest: dict[str, Any], *, has_begun: bool) -> list[str]:
    given = {**manifest, "spec": defaulted(SCHEMA["properties"]["spec"], manifest["spec"])}
    given |= {"status": {"phase": "Running"}} if has_begun else {}
    own = {**SCHEMA, VALIDATIONS: OF_CLUSTER, "properties": {}}
    return sorted(f"{broken.field.removeprefix('.')}: {broken.sentence}" for broken in broken_rules(own, given, ""))


TWO_PODS: dict[str, Any] = {"spec.roles.actor": {"replicas": 2}, "spec.training.microBatchSize": 1}
CRITIC: dict[str, Any] = {"spec.algorithm.advantage": "Gae"}
WITHOUT_LOGIN: list[dict[str, Any]] = [{}, {"reportTo": []}, {"reportTo": ["tensorboard"]}]
SHARED = {"gpus": 1, "shareDevicesWith": "actor"}


@pytest.mark.parametrize(
    ("changes", "sentences"),
    [
        pytest.param({}, [], id="one pod writes to a volume of one node"),
        pytest.param(
            TWO_PODS,
            [
                "spec.checkpoint.volume.accessMode: ReadWriteOnce lets one node mount the volume, but the actor has 2"
                " pods, all of which write checkpoints to it. Give ReadWriteMany and a class of storage that all nodes"
                " share, or one pod with more gpus or ranksPerPod."
            ],
            id="two pods write to a volume of one node",
        ),
        pytest.param({"spec.telemetry": {"reportTo": []}}, [], id="no tracker"),
        pytest.param({"spec.telemetry": {"reportTo": ["tensorboard"]}}, [], id="a tracker"),
        pytest.param(
            {"spec.telemetry": {"reportTo": ["tensorboard", "wandb"], "keysFrom": {"secretName": "keys"}}},
            [],
            id="keys for a tracker that logs in",
        ),
        *(
            pytest.param(
                {"spec.telemetry": {**given, "keysFrom": {"secretName": "keys"}}},
                [
                    "spec.telemetry.keysFrom: names a Secret for trackers that log in, but telemetry.reportTo has"
                    " neither wandb nor trackio. Remove it, or add the tracker."
                ],
                id=f"keys that no tracker wants: {given}",
            )
            for given in WITHOUT_LOGIN
        ),
        pytest.param({**CRITIC, "spec.roles.critic": {}}, [], id="an actor's pod and a critic's write to one volume"),
        pytest.param(
            {**CRITIC, "spec.roles.critic": {"replicas": 4}},
            [
                "spec.checkpoint.volume.accessMode: ReadWriteOnce lets one node mount the volume, but the critic has 4"
                " pods, all of which write checkpoints to it. Give ReadWriteMany and a class of storage that all nodes"
                " share, or one pod with more gpus or ranksPerPod."
            ],
            id="four pods of a critic write to a volume of one node",
        ),
        pytest.param(
            {
                **CRITIC,
                "spec.roles.critic": {"replicas": 4},
                "spec.checkpoint": {"volume": {"accessMode": "ReadWriteMany"}},
            },
            [],
            id="four pods of a critic on a volume of all nodes",
        ),
        pytest.param(
            {
                **CRITIC,
                "spec.roles.actor": {"gpus": 1},
                "spec.roles.rollout": {"gpus": 1},
                "spec.roles.reference": {"gpus": 0},
                "spec.roles.critic": {},
            },
            [
                "spec.roles.critic: has no gpus, but another role has gpus: its model would be computed on the CPU, and"
                " on a cluster a device belongs to one pod alone. Give gpus, or gpus: 0 for the CPU."
            ],
            id="a critic on the CPU beside an actor on GPUs",
        ),
        pytest.param(
            {**TWO_PODS, "spec.checkpoint": {"volume": {"accessMode": "ReadWriteMany"}}}, [], id="a volume of all nodes"
        ),
        pytest.param(
            {**TWO_PODS, "spec.checkpoint": {"volume": {"claimName": "mine"}}}, [], id="a claim of the user's"
        ),
        pytest.param(
            {"spec.roles.actor": {"ranksPerPod": 2}, "spec.training.microBatchSize": 1}, [], id="two ranks in one pod"
        ),
        pytest.param(
            {
                "spec.scheduling": {"gang": "PodGroup", "minRollouts": 3},
                "spec.roles.rollout": {"replicas": 2},
                "spec.checkpoint": {"volume": {"accessMode": "ReadWriteMany"}},
            },
            [
                "spec.scheduling.minRollouts: 3 is more than the 2 rollouts that the job begins with. Give at most as"
                " many."
            ],
            id="a gang of more rollouts than there are",
        ),
        pytest.param(
            {
                "spec.scheduling": {"gang": "PodGroup", "minRollouts": 2},
                "spec.roles.rollout": {"autoscaling": {"minReplicas": 2, "maxReplicas": 4}},
                "spec.checkpoint": {"volume": {"accessMode": "ReadWriteMany"}},
            },
            [],
            id="a gang of all rollouts that an autoscaled job begins with",
        ),
        pytest.param(
            {
                "spec.scheduling": {"gang": "PodGroup", "minRollouts": 3},
                "spec.roles.rollout": {"autoscaling": {"minReplicas": 2, "maxReplicas": 4}},
                "spec.checkpoint": {"volume": {"accessMode": "ReadWriteMany"}},
            },
            [
                "spec.scheduling.minRollouts: 3 is more than the 2 rollouts that the job begins with. Give at most as"
                " many."
            ],
            id="a gang of more rollouts than an autoscaled job begins with",
        ),
        pytest.param(
            {
                "spec.scheduling": {"gang": "PodGroup", "minRollouts": 2},
                "spec.roles.rollout": {"replicas": 2},
                "spec.checkpoint": {"volume": {"accessMode": "ReadWriteMany"}},
            },
            [],
            id="a gang of all rollouts",
        ),
        pytest.param(
            {"spec.scheduling": {"gang": "PodGroup"}},
            [
                "spec.scheduling.gang: PodGroup needs storage that all nodes share, but checkpoint.volume.accessMode is"
                " ReadWriteOnce: the coordinator would have to follow the actor to its node, and a gang's pods are"
                " placed in no order. Give ReadWriteMany and a class of such storage, or remove gang."
            ],
            id="a gang on a volume of one node",
        ),
        pytest.param(
            {"spec.roles.actor": {"gpus": 1}, "spec.roles.rollout": SHARED, "spec.roles.reference": {"gpus": 0}},
            [
                "spec.roles.rollout.shareDevicesWith: actor is for rljob run on one machine: a cluster gives a device"
                " to one pod alone. Remove it."
            ],
            id="devices that are shared",
        ),
        pytest.param(
            {"spec.roles.actor": {"gpus": 1}, "spec.roles.rollout": {"gpus": 1}},
            [
                "spec.roles.reference: has no gpus, but the actor has gpus: its model would be computed on the CPU, and"
                " on a cluster a device belongs to one pod alone. Give gpus, or gpus: 0 for the CPU."
            ],
            id="a reference on the CPU beside an actor on GPUs",
        ),
        pytest.param(
            {"spec.roles.rollout": {"gpus": 1}},
            [
                "spec.roles.actor: has no gpus, but another role has gpus: its model would be computed on the CPU, and"
                " on a cluster a device belongs to one pod alone. Give gpus, or gpus: 0 for the CPU."
            ],
            id="an actor on the CPU beside rollouts on GPUs",
        ),
        pytest.param(
            {"spec.roles.actor": {"gpus": 1}, "spec.roles.rollout": {"gpus": 1}, "spec.roles.reference": {"gpus": 0}},
            [],
            id="a reference that is said to be on the CPU",
        ),
    ],
)
def test_the_sentences(changes: dict[str, Any], sentences: list[str]) -> None:
    manifest = changed(changes)
    assert by_python(manifest, has_begun=False) == sentences
    assert by_cel(manifest, has_begun=False) == sentences


def test_the_crd_has_them() -> None:
    assert [entry["fieldPath"] for entry in OF_CLUSTER] == [entry["fieldPath"] for entry in cluster_validations()]


def test_a_job_that_began_before_the_rule_goes_on() -> None:
    manifest = changed(TWO_PODS)
    assert by_python(manifest, has_begun=True) == by_cel(manifest, has_begun=True) == []


ROLE = st.fixed_dictionaries({}, optional={"gpus": st.just(1), "shareDevicesWith": st.sampled_from(["actor", None])})
VOLUME = st.fixed_dictionaries(
    {},
    optional={"claimName": st.just("mine"), "accessMode": st.sampled_from(["ReadWriteOnce", "ReadWriteMany"])},
)


@given(
    replicas=st.integers(1, 3),
    roles=st.fixed_dictionaries({name: st.one_of(st.none(), ROLE) for name in ("actorFwd", "reference")}),
    rollout=ROLE,
    critic=st.one_of(st.none(), st.integers(1, 3)),
    volume=VOLUME,
    has_begun=st.booleans(),
)
def test_python_and_cel_state_the_same(
    replicas: int,
    roles: dict[str, Any],
    rollout: dict[str, Any],
    critic: int | None,
    volume: dict[str, Any],
    has_begun: bool,
) -> None:
    manifest = changed(
        {
            "spec.training.microBatchSize": 1,
            "spec.training.globalBatchSize": 6,
            "spec.rollout.samplesPerPrompt": 3,
            "spec.algorithm.kl.coefficient": 0,
            "spec.checkpoint": {"volume": volume},
        }
    )
    named = {name: role for name, role in {**roles, "rollout": rollout}.items() if role is not None}
    given = {name: {**role, "gpus": 1} for name, role in named.items()}
    manifest["spec"]["roles"] = {**roles, **given, "actor": {"replicas": replicas, "gpus": 1}}
    if critic is not None:
        manifest["spec"]["algorithm"]["advantage"] = "Gae"
        manifest["spec"]["roles"]["critic"] = {"replicas": critic}
    assert by_python(manifest, has_begun=has_begun) == by_cel(manifest, has_begun=has_begun)


def test_a_spec_that_an_operator_would_not_keep_is_refused_unless_its_job_has_begun() -> None:
    """Objects cannot say it in CEL: the operator refuses it, and `rljob validate` says so beforehand."""
    env = [{"name": f"E{index}", "value": "x" * 100} for index in range(2000)]
    template = {"spec": {"containers": [{"name": "coordinator", "env": env}]}}
    large = changed({"spec.infrastructure": {"template": template}})
    (sentence,) = by_python(large, has_begun=False)
    assert sentence.startswith("spec: is ")
    assert "of which infrastructure.template" in sentence
    assert "a cluster takes 128 KiB. Put what is long into a ConfigMap" in sentence
    assert by_python(large, has_begun=True) == []
