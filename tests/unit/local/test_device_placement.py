"""Which pod gets which devices, row by row; then that none is given twice, whatever the job."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.names import Role
from rljob_api.spec.roles import RolesSpec
from rljob_operator.local.device_placement import TooFewDevices, place, wanted_devices

EIGHT = tuple(f"fake-{number}" for number in range(8))


def roles_of(**given: dict[str, Any] | None) -> RolesSpec:
    return RolesSpec.model_validate(given)


def placed(roles: RolesSpec, devices: tuple[str, ...] = EIGHT) -> dict[str, str]:
    """Pod -> the numbers of its devices; pods without any left out."""
    found = place(roles, devices, "its driver")
    numbers = {str(pod): "".join(name.removeprefix("fake-") for name in names) for pod, names in found.items()}
    return {pod: names for pod, names in numbers.items() if names}


SHARING = {"gpus": 1, "shareDevicesWith": "actor"}


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        pytest.param(roles_of(), {}, id="a job on the CPU"),
        pytest.param(
            roles_of(rollout={"gpus": 1}, actor={"gpus": 1}, actorFwd={"gpus": 1}, reference={"gpus": 1}),
            {"actor-0": "0", "rollout-0": "1", "actor_fwd-0": "2", "reference-0": "3"},
            id="the fixed order",
        ),
        pytest.param(
            roles_of(rollout={"gpus": 1}, actor={"gpus": 2}, critic={"gpus": 2}, reference={"gpus": 1}),
            {"actor-0": "01", "critic-0": "23", "rollout-0": "4", "reference-0": "5"},
            id="a critic after the actor",
        ),
        pytest.param(
            roles_of(rollout={"gpus": 1}, actor={"gpus": 2}, critic={**SHARING, "replicas": 2}),
            {"actor-0": "01", "critic-0": "0", "critic-1": "1", "rollout-0": "2"},
            id="a critic on the actor's",
        ),
        pytest.param(
            roles_of(actor={"gpus": 1, "replicas": 3}, reference={"gpus": 1, "replicas": 2}),
            {"actor-0": "0", "actor-1": "1", "actor-2": "2", "reference-0": "3", "reference-1": "4"},
            id="pods of a role side by side, and roles without GPUs left out",
        ),
        pytest.param(
            roles_of(actor={"gpus": 1}, rollout=SHARING, actorFwd=SHARING, reference=SHARING),
            {"actor-0": "0", "rollout-0": "0", "actor_fwd-0": "0", "reference-0": "0"},
            id="a whole job on one device",
        ),
        pytest.param(
            roles_of(actor={"gpus": 1, "replicas": 4}, rollout={**SHARING, "replicas": 2}, actorFwd={"gpus": 1}),
            {
                "actor-0": "0",
                "actor-1": "1",
                "actor-2": "2",
                "actor-3": "3",
                "rollout-0": "0",
                "rollout-1": "1",
                "actor_fwd-0": "4",
            },
            id="a role that shares uses some of the actor's",
        ),
    ],
)
def test_placement(roles: RolesSpec, expected: dict[str, str]) -> None:
    assert placed(roles) == expected


def test_too_few_are_refused_with_the_arithmetic() -> None:
    roles = roles_of(
        actor={"gpus": 1, "replicas": 4}, rollout={"gpus": 1, "replicas": 4}, actorFwd=SHARING, reference={"gpus": 1}
    )
    with pytest.raises(TooFewDevices) as refused:
        place(roles, EIGHT, "RLJOB_DEVICES=fake:8")
    assert str(refused.value) == (
        "spec.roles: 9 devices are wanted (actor 4 (4 pods x 1) + rollout 4 (4 pods x 1) + reference 1), but this"
        " machine has 8 by RLJOB_DEVICES=fake:8. Lower replicas or gpus, or let roles use the actor's devices with"
        " shareDevicesWith: actor."
    )


def test_autoscaled_rollouts_have_devices_for_as_many_as_there_may_be() -> None:
    autoscaled = {"gpus": 1, "autoscaling": {"minReplicas": 1, "maxReplicas": 3}}
    assert placed(roles_of(actor={"gpus": 1}, rollout=autoscaled)) == {
        "actor-0": "0",
        "rollout-0": "1",
        "rollout-1": "2",
        "rollout-2": "3",
    }
    with pytest.raises(TooFewDevices) as refused:
        place(roles_of(actor={"gpus": 1}, rollout=autoscaled), EIGHT[:3], "RLJOB_DEVICES=fake:3")
    assert str(refused.value) == (
        "spec.roles: 4 devices are wanted (actor 1 + rollout 3 (3 pods x 1)), but this machine has 3 by"
        " RLJOB_DEVICES=fake:3. Lower replicas, autoscaling.maxReplicas or gpus, or let roles use the actor's devices"
        " with shareDevicesWith: actor."
    )


def test_a_machine_without_devices_is_called_so() -> None:
    with pytest.raises(TooFewDevices, match=r"1 device is wanted \(actor 1\), but this machine has none by its"):
        place(roles_of(actor={"gpus": 1}), (), "its driver")


ROLE = st.builds(
    lambda replicas, gpus: {"replicas": replicas, "gpus": gpus},
    st.integers(1, 5),
    st.integers(0, 8),
)


@st.composite
def jobs(draw: st.DrawFn) -> RolesSpec:
    """Beyond the limits of a single field too."""
    roles = RolesSpec()
    for role in (Role.ACTOR, Role.ROLLOUT, Role.ACTOR_FWD, Role.REFERENCE):
        spec = (roles.of(role) or RolesSpec().actor).model_copy(update=draw(ROLE))
        roles = roles.model_copy(update={role.value: spec})
    return roles


@given(jobs(), st.integers(0, 10))
def test_no_device_is_given_twice_and_each_pod_has_neighbours(roles: RolesSpec, spare: int) -> None:
    total = sum(want.total for want in wanted_devices(roles))
    devices = tuple(f"GPU-{number}" for number in range(total + spare))
    found = place(roles, devices, "its driver")
    given_away = [name for names in found.values() for name in names]
    assert len(given_away) == len(set(given_away)) == total
    assert sorted(given_away, key=devices.index) == list(devices[:total]), "the first ones, without a gap"
    for pod, names in found.items():
        spec = roles.of(pod.role)
        assert spec is not None
        assert len(names) == spec.gpus
        start = devices.index(names[0]) if names else 0
        assert names == devices[start : start + len(names)]
    assert place(roles, devices, "its driver") == found
    if total:
        with pytest.raises(TooFewDevices):
            place(roles, devices[: total - 1], "its driver")
