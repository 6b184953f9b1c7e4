"""Rules that hold for a job on a cluster only, its fields, and the pods that a gang is placed with.

Pure. The API server enforces the rules through the CRD, the operator and `rljob render --kubernetes` through
`rljob_operator.build`. The models of the spec do not know them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from rljob_api.names import Role
from rljob_api.revision import given
from rljob_api.roles import FORWARD_ROLES, LEADING_ROLE, SAVING_ROLES, SCALED_ROLE, TRAITS, field_name
from rljob_api.rule import Derived, Rule, rules_beside
from rljob_api.spec import TRACKERS_WITH_KEYS, RLJobSpec
from rljob_api.spec_size import size_problem

_ROLLOUT = f"roles.{field_name(SCALED_ROLE)}"


def _all_its_pods_write(role: Role) -> Callable[[RLJobSpec], bool]:
    def holds(spec: RLJobSpec) -> bool:
        given, volume = spec.roles.of(role), spec.checkpoint.volume
        is_alone = given is None or given.replicas == 1
        return is_alone or volume.claim_name is not None or volume.access_mode.value == "ReadWriteMany"

    return holds


def _volume_for_all(role: Role) -> Rule:
    """One pod of each role that saves is placed with the volume (`rljob_operator.build.scheduling`)."""
    name = field_name(role)
    absent = "" if role is LEADING_ROLE else f"!has(self.roles.{name}) || "  # every job has a leading role
    return Rule(
        field="checkpoint.volume.accessMode",
        holds=_all_its_pods_write(role),
        sentence=f"{{checkpoint.volume.accessMode}} lets one node mount the volume, but the {name} has "
        f"{{roles.{name}.replicas}} pods, all of which write checkpoints to it. Give ReadWriteMany and a class of "
        "storage that all nodes share, or one pod with more gpus or ranksPerPod.",
        cel=f"{absent}self.roles.{name}.replicas == 1 || has(self.checkpoint.volume.claimName) || "
        "self.checkpoint.volume.accessMode == 'ReadWriteMany'",
    )


def _has_devices_of_its_own(role: Role) -> Callable[[RLJobSpec], bool]:
    def holds(spec: RLJobSpec) -> bool:
        given = spec.roles.of(role)
        return given is None or given.share_devices_with is None

    return holds


def _no_sharing(role: Role) -> Rule:
    above = f"roles.{field_name(role)}"
    field = f"{above}.shareDevicesWith"
    return Rule(
        field=field,
        holds=_has_devices_of_its_own(role),
        sentence=f"{{{field}}} is for rljob run on one machine: a cluster gives a device to one pod alone. Remove it.",
        cel=f"!has(self.{above}) || !has(self.{field})",
    )


def _takes_devices(role: Role) -> Iterator[Role]:
    """Roles whose GPUs mean that `role` must say where it computes itself."""
    if role in FORWARD_ROLES:
        return iter((LEADING_ROLE,))
    return (other for other in Role if TRAITS[other].loads_model and other is not role)


def _names_its_device(role: Role) -> Callable[[RLJobSpec], bool]:
    def holds(spec: RLJobSpec) -> bool:
        given = spec.roles.of(role)
        is_left_open = role in FORWARD_ROLES and role.value not in spec.roles.model_fields_set
        if given is None or is_left_open or "gpus" in given.model_fields_set:
            return True
        others = (spec.roles.of(other) for other in _takes_devices(role))
        return not any(other is not None and other.gpus for other in others)

    return holds


def _where_it_computes(role: Role) -> Rule:
    above = f"self.roles.{field_name(role)}"
    names = [f"self.roles.{field_name(other)}" for other in _takes_devices(role)]
    others = " || ".join(f"(has({name}) && has({name}.gpus) && {name}.gpus > 0)" for name in names)
    who = "the actor has gpus" if role in FORWARD_ROLES else "another role has gpus"
    return Rule(
        field=f"roles.{field_name(role)}",
        holds=_names_its_device(role),
        sentence=f"has no gpus, but {who}: its model would be computed on the CPU, and on a cluster a device belongs "
        "to one pod alone. Give gpus, or gpus: 0 for the CPU.",
        cel=f"!has({above}) || has({above}.gpus) || !({others})",
    )


def _has_its_rollouts(spec: RLJobSpec) -> bool:
    given = spec.scheduling.min_rollouts
    return given is None or given <= spec.roles.rollout.first_replicas


_FIRST_ROLLOUTS = Derived(
    lambda spec: spec.roles.rollout.first_replicas,
    f"(has(self.{_ROLLOUT}.autoscaling) ? self.{_ROLLOUT}.autoscaling.minReplicas : self.{_ROLLOUT}.replicas)",
)


_ENOUGH_ROLLOUTS = Rule(
    field="scheduling.minRollouts",
    holds=_has_its_rollouts,
    sentence="{scheduling.minRollouts} is more than the {firstRollouts} rollouts that the job begins with. Give at "
    "most as many.",
    cel="!has(self.scheduling) || !has(self.scheduling.minRollouts) || "
    f"self.scheduling.minRollouts <= {_FIRST_ROLLOUTS.cel}",
    derived={"firstRollouts": _FIRST_ROLLOUTS},
)


def _is_placed_in_no_order(spec: RLJobSpec) -> bool:
    return spec.scheduling.gang is None or spec.checkpoint.volume.access_mode.value == "ReadWriteMany"


_NO_ORDER = Rule(
    field="scheduling.gang",
    holds=_is_placed_in_no_order,
    sentence="{scheduling.gang} needs storage that all nodes share, but checkpoint.volume.accessMode is "
    "{checkpoint.volume.accessMode}: the coordinator would have to follow the actor to its node, and a gang's pods are "
    "placed in no order. Give ReadWriteMany and a class of such storage, or remove gang.",
    cel="!has(self.scheduling) || !has(self.scheduling.gang) || self.checkpoint.volume.accessMode == 'ReadWriteMany'",
)


def _has_whom_keys_are_for(spec: RLJobSpec) -> bool:
    given = spec.telemetry
    return given.keys_from is None or any(tracker in TRACKERS_WITH_KEYS for tracker in given.report_to or ())


_KEYS_FOR_A_TRACKER = Rule(
    field="telemetry.keysFrom",
    holds=_has_whom_keys_are_for,
    sentence="names a Secret for trackers that log in, but telemetry.reportTo has neither wandb nor trackio. Remove "
    "it, or add the tracker.",
    cel="!has(self.telemetry) || !has(self.telemetry.keysFrom) || (has(self.telemetry.reportTo) && "
    "self.telemetry.reportTo.exists(tracker, tracker != 'tensorboard'))",
)


ALWAYS: tuple[Rule, ...] = (
    *(_no_sharing(role) for role in Role),
    *(_where_it_computes(role) for role in Role if TRAITS[role].loads_model),
    _ENOUGH_ROLLOUTS,
    _NO_ORDER,
    _KEYS_FOR_A_TRACKER,
)


UNTIL_BEGUN: tuple[Rule, ...] = tuple(_volume_for_all(role) for role in SAVING_ROLES)
"""Not for a job that has begun: one that was stored before this rule has all its pods on one node, where they stay."""


def cluster_problems(spec: RLJobSpec, *, has_begun: bool, refused: frozenset[str] = frozenset()) -> list[str]:
    """A sentence for each rule that does not hold and depends on no field that was refused."""
    rules = rules_beside(ALWAYS if has_begun else (*ALWAYS, *UNTIL_BEGUN), "spec", refused)
    too_large = None if has_begun else size_problem(dict(given(spec)))
    return [
        *([] if too_large is None else [too_large]),
        *(f"spec.{rule.field}: {rule.text(spec)}" for rule in rules if not rule.holds(spec)),
    ]


SEEN = "(has(self.status) && has(self.status.phase))"
"""CEL: the operator has written the status. One that the API server fills in has no phase."""


def cluster_validations() -> list[dict[str, str]]:
    """The same as entries of x-kubernetes-validations of the whole resource. One that has a status has begun."""
    return [
        *(_of_resource(rule, "") for rule in ALWAYS),
        *(_of_resource(rule, f"{SEEN} || ") for rule in UNTIL_BEGUN),
    ]


def _of_resource(rule: Rule, unless: str) -> dict[str, str]:
    entry = {name: text.replace("self.", "self.spec.") for name, text in rule.validation().items()}
    cel = f"({entry['rule']})" if unless else entry["rule"]
    return {**entry, "rule": f"{unless}{cel}", "fieldPath": f".spec{entry['fieldPath']}"}


OF_PODS = ("gpuResource", "deviceClass", "resources", "template")
"""Fields of each role."""


CLUSTER_ONLY: tuple[str, ...] = (
    *(f"roles.{field_name(role)}.{field}" for role in Role for field in OF_PODS),
    "transferQueue.redis",
    "telemetry.keysFrom",
    "checkpoint.volume",
    "scheduling",
    "infrastructure",
    "image",
    "suspend",
    "restartRequest",
    "managedBy",
    "activeDeadlineSeconds",
    "ttlSecondsAfterFinished",
    "cleanPodPolicy",
)
"""Paths below `spec`. A field that is an object stands for everything in it."""


def is_cluster_only(field: str) -> bool:
    """Whether the field is one of them or lies in one."""
    return any(field == known or field.startswith(f"{known}.") for known in CLUSTER_ONLY)


def given_cluster_fields(spec: RLJobSpec) -> list[str]:
    """Fields that were set to something else than their default, in the order above."""
    found = [field for field, _ in given(spec)]
    return [known for known in CLUSTER_ONLY if any(field == known or field.startswith(f"{known}.") for field in found)]


def required_replicas(spec: RLJobSpec) -> Mapping[Role, int]:
    """Role -> pods that the job begins with. Without a gang that is all of them."""
    replicas, least = spec.roles.replicas(), spec.scheduling.min_rollouts
    if spec.scheduling.gang is None or least is None:
        return replicas
    return {role: min(count, least) if role is SCALED_ROLE else count for role, count in replicas.items()}
