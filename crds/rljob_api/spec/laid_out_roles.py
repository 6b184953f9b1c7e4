"""Rules between roles whose ranks share a model, their backends, and a model of random weights (`model.config`).

For the spec, which puts all rules between parts together. Rules of one role alone are in `rljob_api.spec.parallelism`;
`rljob_api.model_files.parallel_layout` says of a folder what these say of `model.config`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rljob_api.names import Role
from rljob_api.roles import LEADING_ROLE, MODEL_ROLES, REFERENCE_ROLE, VALUE_ROLE, field_name
from rljob_api.rule import Rule
from rljob_api.spec.roles import BACKENDS, CriticSpec, ModelRoleSpec, ReferenceSpec
from rljob_api.spec.trained_roles import ENGINE_IS_SIM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rljob_api.spec import RLJobSpec
    from rljob_api.spec.model import ModelConfig
    from rljob_api.spec.parallelism import ParallelismSpec

_WITH_FOLDER = (VALUE_ROLE, REFERENCE_ROLE)
"""Their model may be another one than the policy."""


_ACTOR = f"self.roles.{field_name(LEADING_ROLE)}"


_ACTORS = f"(has({_ACTOR}.backend) && {_ACTOR}.backend == 'Megatron')"


def _lays_out(role: Role) -> Rule:
    field = f"roles.{field_name(role)}"
    above = f"self.{field}"
    own = _ACTORS if role is LEADING_ROLE else f"(has({above}.backend) ? {above}.backend == 'Megatron' : {_ACTORS})"
    return Rule(
        field=f"{field}.parallelism",
        holds=lambda job: _given(job, role) is None or BACKENDS[job.backend_of(role)].lays_out,
        sentence="needs the backend Megatron, and this role has another, of which no rank computes a part of a model. "
        "Set backend to Megatron or leave parallelism out.",
        cel=f"!has({above}) || !has({above}.parallelism) || {own}",
    )


def _is_simulated_as_actor(role: Role) -> Rule:
    above = f"self.roles.{field_name(role)}"

    def holds(job: RLJobSpec) -> bool:
        return BACKENDS[job.backend_of(role)].computes == BACKENDS[job.trainer_backend].computes

    return Rule(
        field=f"roles.{field_name(role)}.backend",
        holds=holds,
        sentence=f"{{roles.{field_name(role)}.backend}} does not go with the actor's: both are simulated, or neither. "
        "Leave backend out.",
        cel=f"!has({above}) || !has({above}.backend) || ({above}.backend == 'Sim') == {ENGINE_IS_SIM}",
    )


def _given(job: RLJobSpec, role: Role) -> ParallelismSpec | None:
    given = job.roles.of(role)
    return given.parallelism if isinstance(given, ModelRoleSpec) else None


def _has_folder(job: RLJobSpec, role: Role) -> bool:
    given = job.roles.of(role)
    return isinstance(given, CriticSpec | ReferenceSpec) and given.model_path is not None


@dataclass(frozen=True, slots=True)
class _Division:
    """A number that a model of random weights must be divisible by."""

    field: str
    """Below `parallelism`."""
    fits: Callable[[ModelConfig, ParallelismSpec], bool]
    sentence: str
    """`{0}` is the path of `parallelism`."""
    cel: str
    """Over {0}, the same path, and {1}, that of `model.config`."""


_DIVISIONS: tuple[_Division, ...] = (
    _Division(
        "tensor",
        lambda model, own: model.num_key_value_heads % own.tensor == 0,  # these divide the other heads, as a rule says
        "{{{0}.tensor}} does not divide model.config.numKeyValueHeads {{model.config.numKeyValueHeads}}: each tensor "
        "rank has as many of the heads. Give a divisor of it.",
        "{1}.numKeyValueHeads % {0}.tensor == 0",
    ),
    _Division(
        "tensor",
        lambda model, own: model.intermediate_size % own.tensor == 0,
        "{{{0}.tensor}} does not divide model.config.intermediateSize {{model.config.intermediateSize}}: each tensor "
        "rank has as many of its columns. Give a divisor of it.",
        "{1}.intermediateSize % {0}.tensor == 0",
    ),
    _Division(
        "pipeline",
        lambda model, own: model.num_layers % (own.pipeline * own.virtual_pipeline) == 0,
        "{{{0}.pipeline}} x virtualPipeline {{{0}.virtualPipeline}} does not divide model.config.numLayers "
        "{{model.config.numLayers}}: each piece of a stage has as many layers. Give a divisor of it.",
        "{1}.numLayers % ({0}.pipeline * {0}.virtualPipeline) == 0",
    ),
    _Division(
        "expert",
        lambda _, own: own.expert * own.expert_tensor == 1,
        "{{{0}.expert}} x expertTensor {{{0}.expertTensor}} needs a model with experts, and that of model.config has "
        "none. Leave both out, or give model.path.",
        "{0}.expert * {0}.expertTensor == 1",
    ),
)


def _divides(role: Role, division: _Division) -> Rule:
    """The rule of a role that computes the policy's model, and no folder of its own (`modelPath`)."""
    path = f"roles.{field_name(role)}.parallelism"
    above = f"self.roles.{field_name(role)}"

    def holds(job: RLJobSpec) -> bool:
        own, config = _given(job, role), job.model.config
        return own is None or config is None or _has_folder(job, role) or division.fits(config, own)

    has_folder = f"has({above}.modelPath) || " if role in _WITH_FOLDER else ""
    return Rule(
        field=f"{path}.{division.field}",
        holds=holds,
        sentence=division.sentence.format(path),
        cel=f"!has(self.model.config) || !has({above}) || !has({above}.parallelism) || {has_folder}"
        + division.cel.format(f"self.{path}", "self.model.config"),
    )


def _layouts() -> Iterator[Rule]:
    for role in MODEL_ROLES:
        yield _lays_out(role)
        if role is not LEADING_ROLE:
            yield _is_simulated_as_actor(role)
        yield from (_divides(role, division) for division in _DIVISIONS)


LAYOUTS: tuple[Rule, ...] = tuple(_layouts())
