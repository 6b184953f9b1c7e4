"""Defaults that depend on the rest of the job: resolved once, when the job begins, and retained with it from then on.

    resolution = resolve(spec, Place.MACHINE, retained)     retained: what an earlier start chose; None for a new job
    resolution.spec, resolution.choices, resolution.problems

By itself the model of the spec fills in an actorFwd, the role advantages, an engine of kind Torch, the CPU for every
role, and logits in the model's own type: a resolved spec that is stored without these fields means that. Sets of an
evaluation get all that they take from training (`spec.set_defaults`). Only fields that are not given are resolved:
`rljob run` keeps the result in `job.json`, the operator in `status.accepted`. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from rljob_api.base import cut
from rljob_api.change import Change
from rljob_api.names import EngineKind, Role
from rljob_api.revision import row_of
from rljob_api.roles import (
    ADVANTAGES_ROLE,
    FORWARD_ROLES,
    LEADING_ROLE,
    PROXIMAL_ROLE,
    SAVING_ROLES,
    TRAITS,
    field_name,
)
from rljob_api.spec import RLJobSpec
from rljob_api.spec.advantages import Statistics
from rljob_api.spec.algorithm import AlgorithmSpec, ProximalPolicy
from rljob_api.spec.model import Dtype
from rljob_api.spec.roles import DeviceOwner, ForwardRoleSpec, RoleSpec, RolesSpec, engine_kind
from rljob_api.spec.set_defaults import are_filled, filled, filled_alone, taken_fields
from rljob_api.spec.training import ClaimPolicy

_AS_BEGUN = "as the job began"
"""Why something is kept that a new job might get otherwise."""


_LONGEST_VALUE = 80
"""Characters of a text or list in a sentence."""


_MOST_GPUS = 64
"""The bound of `gpus`."""


class JobPlace(Enum):
    """Where the job is to run."""

    MACHINE = "Machine"
    """Roles may share devices."""
    CLUSTER = "Cluster"
    """A device belongs to one pod."""


@dataclass(frozen=True, slots=True)
class RoleDevices:
    """Devices that each pod of a role computes on."""

    gpus: int = 0
    shares: DeviceOwner | None = None


@dataclass(frozen=True, slots=True)
class RetainedDefaults:
    """Defaults that were chosen when the job began."""

    has_proximal_role: bool
    """Whether there is an actorFwd."""
    engine: EngineKind
    has_advantages_role: bool = True
    """Whether there is that role; there is in releases that resolved no such thing."""
    devices: Mapping[Role, RoleDevices] = field(default_factory=dict)
    """Devices of roles that compute a model; a role that is not in it is resolved."""
    head_dtype: Dtype | None = None
    """The logits' type; None: the model's."""
    iters_per_train_update: int = 1
    """Slices of a global batch; 1 in releases that resolved no number."""
    sets_inherit: bool = False
    """Whether sets of the evaluation take from training what they do not say; they did not in earlier releases."""

    @classmethod
    def of(cls, spec: RLJobSpec) -> RetainedDefaults:
        """Reads them from a job as it was stored, with its defaults resolved."""
        present = spec.roles.present()
        devices = {role: RoleDevices(present[role].gpus, present[role].share_devices_with) for role in _computing(spec)}
        return cls(
            PROXIMAL_ROLE in present,
            spec.roles.rollout.engine.kind,
            ADVANTAGES_ROLE in present,
            devices,
            spec.model.head_dtype,
            spec.training.iters_per_train_update,
            are_filled(spec.evaluation),
        )


@dataclass(frozen=True, slots=True)
class ResolvedDefault:
    """A default that was resolved."""

    field: str
    """Below `spec`, in the manifest's spelling."""
    value: str
    reason: str

    def __str__(self) -> str:
        return f"spec.{self.field}: {self.value}, {self.reason}"


@dataclass(frozen=True, slots=True)
class Resolution:
    """The job as it runs."""

    spec: RLJobSpec
    choices: tuple[ResolvedDefault, ...] = ()
    problems: tuple[str, ...] = ()
    """A sentence for each field that has to be given. On a cluster its own rules say them."""


def resolve(spec: RLJobSpec, place: JobPlace, retained: RetainedDefaults | None = None) -> Resolution:
    """The spec with every default filled in that depends on the rest of it."""
    choices: list[ResolvedDefault] = []
    problems: list[str] = []
    problems += _proximal_problems(spec)
    problems += _advantages_problems(spec)
    for step in (_proximal_role, _advantages_role, _engine):
        spec, choice = step(spec, place, retained)
        choices += [choice] if choice is not None else []
    for role in _computing(spec):
        given = spec.roles.of(role)
        assert given is not None, "only roles that are there compute"
        if "gpus" in given.model_fields_set:
            continue
        match _devices(spec, role, given, place, retained):
            case str() as problem:
                problems.append(problem)
            case (RoleDevices() as devices, str() as reason):
                spec = _with_role(spec, role, gpus=devices.gpus, share_devices_with=devices.shares)
                value = f"{devices.gpus}" + (f" with shareDevicesWith {devices.shares}" if devices.shares else "")
                choices.append(ResolvedDefault(f"roles.{field_name(role)}.gpus", value, reason))
    for last in (_head_dtype, _slices):
        spec, choice = last(spec, retained)
        choices += [choice] if choice is not None else []
    choices += _set_choices(spec, retained)
    spec = _with_sets(spec, retained)
    return Resolution(spec, tuple(choices), tuple(problems))


def retained_against_new(resolution: Resolution, new: Resolution) -> Iterator[str]:
    """A sentence for each default that a job keeps where the same manifest, as a new job, would get another one."""
    others = {choice.field: choice for choice in new.choices}
    for choice in resolution.choices:
        if choice.reason != _AS_BEGUN:
            continue
        other = others.get(choice.field)
        if other is not None and other.value != choice.value:
            would = f"would get {other.value}, {other.reason}"
        elif any(text.startswith(f"spec.{choice.field}: ") for text in new.problems):
            would = "would have to say it"
        else:
            continue
        is_fixed = row_of(choice.field).change is Change.REFUSED
        cure = "It cannot change once the job exists." if is_fixed else f"Give {choice.field} to say which is meant."
        yield f"{choice}; a new job {would}. {cure}"


def _computing(spec: RLJobSpec) -> Iterator[Role]:
    """Roles of the job that compute a model, the leading one first."""
    present = spec.roles.present()
    return (
        role
        for role in sorted(TRAITS, key=lambda role: not TRAITS[role].leads)
        if role in present and TRAITS[role].loads_model
    )


def _proximal_problems(spec: RLJobSpec) -> Iterator[str]:
    """An API server cannot distinguish null from nothing, so no rule says this: there the role comes."""
    if spec.algorithm.proximal is ProximalPolicy.RECOMPUTE and spec.roles.of(PROXIMAL_ROLE) is None:
        yield (
            f"spec.algorithm.proximal: Recompute needs the role {field_name(PROXIMAL_ROLE)}, which is null. Remove"
            f" roles.{field_name(PROXIMAL_ROLE)}, give it as {{}}, or set proximal to Actor."
        )


def _proximal_role(
    spec: RLJobSpec, place: JobPlace, retained: RetainedDefaults | None
) -> tuple[RLJobSpec, ResolvedDefault | None]:
    name, actor, proximal = PROXIMAL_ROLE.value, spec.roles.of(LEADING_ROLE), spec.algorithm.proximal
    needs_it = proximal is ProximalPolicy.RECOMPUTE
    if name in spec.roles.model_fields_set and (spec.roles.of(PROXIMAL_ROLE) is not None or not needs_it):
        return spec, None
    if proximal is not None:
        is_there, reason = needs_it, f"since algorithm.proximal is {proximal}"
    elif retained is not None:
        is_there, reason = retained.has_proximal_role, _AS_BEGUN
    elif spec.has_one_optimizer_step:
        is_there, reason = False, "since one optimizer step is made per rollout, which has the log-probs itself"
    elif place is JobPlace.CLUSTER and actor is not None and actor.gpus:
        is_there, reason = False, "since it would need GPUs of its own"
    else:
        is_there, reason = True, "since several optimizer steps are made per rollout"
    roles = spec.roles.model_copy(update={name: ForwardRoleSpec() if is_there else None})
    return _with_roles(spec, roles), ResolvedDefault(
        f"roles.{field_name(PROXIMAL_ROLE)}", "{}" if is_there else "null", reason
    )


def _advantages_problems(spec: RLJobSpec) -> Iterator[str]:
    """No rule says these either, as above."""
    if spec.roles.of(ADVANTAGES_ROLE) is not None:
        return
    role, algorithm = f"spec.roles.{field_name(ADVANTAGES_ROLE)}: null leaves advantages to the rollout", spec.algorithm
    if not algorithm.advantage_traits.is_of_a_group:
        yield (
            f"{role}, which has one group at a time, but {algorithm.advantage} compares more, or tokens. Give the role"
            " as {}, or another advantage."
        )
    if algorithm.kl.is_in_reward:
        yield (
            f"{role}, which does not have the reference's log-probs that algorithm.kl.placement Reward takes off"
            " rewards. Give the role as {}, or set placement to Loss."
        )


def _why_advantages_need_a_role(algorithm: AlgorithmSpec) -> str:
    """Empty where they do not."""
    if not algorithm.advantage_traits.is_of_a_group:
        return f"since algorithm.advantage {algorithm.advantage} compares more than a group, or tokens"
    return "since algorithm.kl.placement Reward takes the reference's log-probs" if algorithm.kl.is_in_reward else ""


def _advantages_role(
    spec: RLJobSpec, _: JobPlace, retained: RetainedDefaults | None
) -> tuple[RLJobSpec, ResolvedDefault | None]:
    """Null costs nothing where the rollout, as it puts a group, has all that the group's advantages are made of."""
    name, algorithm = ADVANTAGES_ROLE.value, spec.algorithm
    needed = _why_advantages_need_a_role(algorithm)
    if name in spec.roles.model_fields_set and (spec.roles.of(ADVANTAGES_ROLE) is not None or not needed):
        return spec, None
    if needed:
        is_there, reason = True, needed
    elif retained is not None:
        is_there, reason = retained.has_advantages_role, _AS_BEGUN
    else:
        is_there, reason = False, f"since algorithm.advantage {algorithm.advantage} needs no more than a group"
    roles = spec.roles.model_copy(update={name: RoleSpec() if is_there else None})
    return _with_roles(spec, roles), ResolvedDefault(
        f"roles.{field_name(ADVANTAGES_ROLE)}", "{}" if is_there else "null", reason
    )


def _engine(
    spec: RLJobSpec, _: JobPlace, retained: RetainedDefaults | None
) -> tuple[RLJobSpec, ResolvedDefault | None]:
    rollout = spec.roles.rollout
    if "kind" in rollout.engine.model_fields_set:
        return spec, None
    kind = retained.engine if retained is not None else engine_kind(rollout)
    engine = rollout.engine.model_copy(update={"kind": kind})
    spec = _with_roles(spec, spec.roles.model_copy(update={"rollout": rollout.model_copy(update={"engine": engine})}))
    if not rollout.gpus:
        return spec, None
    reason = _AS_BEGUN if retained else "the default with gpus"
    return spec, ResolvedDefault("roles.rollout.engine.kind", kind.value, reason)


def _head_dtype(spec: RLJobSpec, retained: RetainedDefaults | None) -> tuple[RLJobSpec, ResolvedDefault | None]:
    """Float32 where there are GPUs, whose kernels sum up in it anyhow. On a CPU it would cost tokens per second."""
    if spec.model.head_dtype is not None:
        return spec, None
    has_gpus = spec.roles.actor.gpus > 0 or spec.roles.rollout.gpus > 0
    reason = _AS_BEGUN if retained is not None else "the default with gpus"
    chosen = retained.head_dtype if retained is not None else Dtype.FLOAT32 if has_gpus else None
    if chosen is None or chosen is spec.model.dtype:
        return spec, ResolvedDefault("model.headDtype", spec.model.dtype.value, reason) if has_gpus else None
    model = spec.model.model_copy(update={"head_dtype": chosen})
    return spec.model_copy(update={"model": model}), ResolvedDefault("model.headDtype", chosen.value, reason)


_MOST_SLICES = (4, 2)
"""Numbers that are tried. A larger number makes slices small, and each costs the ranks an agreement."""


def _slices(spec: RLJobSpec, retained: RetainedDefaults | None) -> tuple[RLJobSpec, ResolvedDefault | None]:
    """A number with which training begins before a rollout is complete."""
    training = spec.training
    if "iters_per_train_update" in training.model_fields_set:
        return spec, None
    if retained is not None and _fit_slices(spec, retained.iters_per_train_update):
        chosen, reason = retained.iters_per_train_update, _AS_BEGUN
    else:
        numbers = (1,) if _waits_for_all_rows(spec) else _MOST_SLICES
        chosen = next((number for number in numbers if _fit_slices(spec, number)), 1)
        reason = "so that training starts before a rollout is complete"
    spec = spec.model_copy(update={"training": training.model_copy(update={"iters_per_train_update": chosen})})
    if chosen == 1 and reason != _AS_BEGUN:
        return spec, None
    return spec, ResolvedDefault("training.itersPerTrainUpdate", f"{chosen}", reason)


def _set_choices(spec: RLJobSpec, retained: RetainedDefaults | None) -> Iterator[ResolvedDefault]:
    for place, each in enumerate(() if spec.evaluation is None else spec.evaluation.sets):
        for taken in taken_fields(each, spec.data, spec.rollout.sampling):
            field = f"evaluation.sets[{place}].{taken.field}"
            if retained is None or retained.sets_inherit:
                yield ResolvedDefault(field, _shown(taken.value), f"as spec.{taken.source} has it")
            else:
                yield ResolvedDefault(field, _shown(taken.alone), _AS_BEGUN)


def _shown(value: object) -> str:
    return cut(json.dumps(value, ensure_ascii=False), _LONGEST_VALUE)


def _with_sets(spec: RLJobSpec, retained: RetainedDefaults | None) -> RLJobSpec:
    """Every set as it is answered."""
    if spec.evaluation is None:
        return spec
    if retained is None or retained.sets_inherit:
        sets = [filled(each, spec.data, spec.rollout.sampling) for each in spec.evaluation.sets]
    else:
        sets = [filled_alone(each) for each in spec.evaluation.sets]
    return spec.model_copy(update={"evaluation": spec.evaluation.model_copy(update={"sets": sets})})


def _fit_slices(spec: RLJobSpec, number: int) -> bool:
    """Whether so many slices of a global batch are of whole groups, even for all models, and fill a micro-batch."""
    return number == 1 or all(  # 1 as ever: rules say whether it can be
        _fit_models(spec, number, spec.roles.topology(role).models)
        for role in SAVING_ROLES
        if spec.roles.of(role) is not None
    )


def _fit_models(spec: RLJobSpec, number: int, models: int) -> bool:
    training = spec.training
    rows = training.global_batch_size // number
    group = spec.rollout.samples_per_prompt
    whole = group * models if training.claim_policy is ClaimPolicy.GROUP else group
    divides = training.global_batch_size % number == rows % models == rows % whole == 0
    return divides and rows // models >= (training.micro_batch_size or 1)


def _waits_for_all_rows(spec: RLJobSpec) -> bool:
    """Whether no row can be trained on before all are there: of advantages, or of log-probs that the actor computes."""
    if spec.algorithm.advantage_traits.statistics is Statistics.PARTITION:
        return True
    if PROXIMAL_ROLE in spec.roles.present() or spec.algorithm.proximal is ProximalPolicy.ROLLOUT:
        return False
    return not spec.has_one_optimizer_step


_Found = tuple[RoleDevices, str] | str | None
"""Devices and why, or a problem, or nothing to say: the CPU, as all of the job."""


def _devices(
    spec: RLJobSpec, role: Role, given: RoleSpec, place: JobPlace, retained: RetainedDefaults | None
) -> _Found:
    roles, actor = spec.roles, spec.roles.of(LEADING_ROLE)
    assert actor is not None, "every job has a trainer"
    users = [other for other, one in roles.present().items() if one.gpus and not one.share_devices_with]
    if not users:
        return None
    if retained is not None and role in retained.devices and _fits(retained.devices[role], given, actor):
        return retained.devices[role], _AS_BEGUN
    if place is JobPlace.CLUSTER:
        return None  # its rules refuse it (`cluster_rules`)
    field = f"spec.roles.{field_name(role)}.gpus"
    if role in FORWARD_ROLES:
        return _shared(field, given, actor) if actor.gpus else None
    share = "" if TRAITS[role].leads else " (with shareDevicesWith: actor, to use the actor's)"
    return (
        f"{field}: is not given, but {field_name(users[0])} has gpus, and its model would be computed on the CPU. Give"
        f" a number of GPUs{share}, or 0 for the CPU."
    )


def _shared(field: str, given: RoleSpec, actor: RoleSpec) -> _Found:
    """All of the actor's devices, as far as its pods come out even: a rank on each, with a whole model."""
    there = actor.most_replicas * actor.gpus
    gpus = given.ranks_per_pod or min(there // given.most_replicas, _MOST_GPUS)
    if 0 < gpus * given.most_replicas <= there:
        return RoleDevices(gpus, DeviceOwner.ACTOR), "since the actor has gpus"
    wanted = f"{given.most_replicas} pods" + (f" x {given.ranks_per_pod} ranks" if given.ranks_per_pod else "")
    return (
        f"{field}: is not given, and {wanted} cannot share the actor's {there} devices. Give fewer, a number of GPUs"
        " of its own, or 0 for the CPU."
    )


def _fits(devices: RoleDevices, given: RoleSpec, actor: RoleSpec) -> bool:
    """A share of what the actor has no more is no share."""
    return devices.shares is None or devices.gpus * given.most_replicas <= actor.most_replicas * actor.gpus


def _with_role(spec: RLJobSpec, role: Role, **update: object) -> RLJobSpec:
    given = spec.roles.of(role)
    assert given is not None, "only roles that are there are resolved"
    return _with_roles(spec, spec.roles.model_copy(update={role.value: given.model_copy(update=update)}))


def _with_roles(spec: RLJobSpec, roles: RolesSpec) -> RLJobSpec:
    return spec.model_copy(update={"roles": roles})
