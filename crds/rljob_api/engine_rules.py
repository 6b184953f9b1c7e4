"""The rules of `roles.rollout.engine`: which flags and variables of a server RLJob gives itself, what each kind needs.

Only `engine_spec.py` and `spec.py` import this. The fields are younger than release 0.1.0, so that the API server fills
in none of their defaults: CEL asks for each of them whether it is there. Of `kind` that is what a default hangs on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rljob_api.names import EngineKind
from rljob_api.rule import Derived, Rule

if TYPE_CHECKING:
    from rljob_api.spec import RolloutRoleSpec


@dataclass(frozen=True, slots=True)
class _Taken:
    """Flags that RLJob gives a server itself."""

    flags: str
    """Their names without the dashes, with white space between."""
    instead: str
    """What says it, or why nobody has to; a sentence."""


_TAKEN = (
    _Taken("model-path model", "model.path or model.config says it."),
    _Taken("tokenizer-path skip-tokenizer-init", "model.tokenizerPath says it."),
    _Taken("dtype", "model.dtype says it."),
    _Taken("enable-fp32-lm-head no-enable-fp32-lm-head", "model.headDtype says it, for the trainer as well."),
    _Taken("tensor-parallel-size tp-size tp", "tensorParallel says it."),
    _Taken(
        "device base-gpu-id gpu-id-step data-parallel-size dp-size dp pipeline-parallel-size pp-size nnodes node-rank "
        "dist-init-addr nccl-init-addr",
        "gpus and tensorParallel say which devices an engine has, and how many engines there are.",
    ),
    _Taken(
        "host port api-key admin-api-key ssl-keyfile ssl-certfile fastapi-root-path skip-server-warmup config",
        "the launcher gives each server its address and its flags, one by one.",
    ),
    _Taken(
        "load-format model-loader-extra-config startup-weight-load-mode custom-weight-loader delete-ckpt-after-loading "
        "checkpoint-engine-wait-weights-before-ready weight-version weight-cache-mode enable-lora lora-paths",
        "weights come from the actor, as weightSync says.",
    ),
)
"""Written in full, as `--flag VALUE` or `--flag=VALUE`."""

CPU_FLAGS = _Taken("attention-backend sampling-backend", "without gpus RLJob chooses what a server computes with.")

_TAKEN_VARIABLES = {
    "CUDA_VISIBLE_DEVICES": "gpus and tensorParallel say which devices an engine sees.",
    "OMP_NUM_THREADS": "roles.rollout.threads says it.",
    "SGLANG_USE_CPU_ENGINE": "gpus says whether it computes on the CPU.",
}
"""Variables of the environment that RLJob sets for a server itself, and what says them."""

_ARGS = "(has(self.args) ? self.args : [])"
_ROLES_ARGS = "(has(self.engine) && has(self.engine.args) ? self.engine.args : [])"
_GPUS = "(has(self.gpus) ? self.gpus : 0)"
_IS_SGLANG = f"(has(self.engine) && has(self.engine.kind) ? self.engine.kind == 'SGLang' : {_GPUS} > 0)"
_SHARE = "(has(self.engine) && has(self.engine.tensorParallel) ? self.engine.tensorParallel : 1)"


def flag_pattern(taken: _Taken) -> str:
    """The regular expression of an argument that is one of these flags, for Python and CEL."""
    return f"^--({'|'.join(taken.flags.split())})(=|$)"


def given_flags(args: list[str], taken: _Taken) -> list[str]:
    """Those of `args` that are one of these flags."""
    pattern = re.compile(flag_pattern(taken))
    return [arg for arg in args if pattern.search(arg)]


def _flags_are_ours(taken: _Taken) -> Rule:
    pattern = flag_pattern(taken)
    return Rule(
        field="args",
        holds=lambda engine: not given_flags(engine.args, taken),
        sentence=f"{{flag}} is not yours to give: {taken.instead} Remove it from args.",
        cel=f"!{_ARGS}.exists(arg, arg.matches('{pattern}'))",
        derived={
            "flag": Derived(
                lambda engine: given_flags(engine.args, taken)[0], f"{_ARGS}.filter(arg, arg.matches('{pattern}'))[0]"
            )
        },
    )


def _variable_is_ours(name: str, instead: str) -> Rule:
    return Rule(
        field="env",
        holds=lambda engine: name not in engine.env,
        sentence=f"{name} is not yours to give: {instead} Remove it from env.",
        cel=f"!has(self.env) || !('{name}' in self.env)",
    )


ENGINE: tuple[Rule, ...] = (
    *(_flags_are_ours(taken) for taken in _TAKEN),
    *(_variable_is_ours(name, instead) for name, instead in _TAKEN_VARIABLES.items()),
)


def _has_whole_engines(role: RolloutRoleSpec) -> bool:
    share = role.engine.tensor_parallel
    return share == 1 or (role.gpus > 0 and role.gpus % share == 0)


def _is_one_rank_for_each_engine(role: RolloutRoleSpec) -> bool:
    if role.gpus == 0 or role.ranks_per_pod is None or not _has_whole_engines(role):
        return True
    return role.ranks_per_pod * role.engine.tensor_parallel == role.gpus


def _first_of_the_cpu(role: RolloutRoleSpec) -> str:
    return given_flags(role.engine.args, CPU_FLAGS)[0]


def engine_kind(role: RolloutRoleSpec) -> EngineKind:
    """The engine's kind: as given, else SGLang where it computes on GPUs.

    For the manifest of a new job, and not for one that is resolved: there `engine.kind` says it.
    """
    if "kind" in role.engine.model_fields_set or not role.gpus:
        return role.engine.kind
    return EngineKind.SGLANG


ROLLOUT_ENGINE: tuple[Rule, ...] = (
    Rule(
        field="engine.args",
        holds=lambda role: engine_kind(role) == "SGLang" or not role.engine.args,
        sentence="are flags of a server of kind SGLang; those of other kinds have none. Remove args or set kind to "
        "SGLang.",
        cel=f"{_IS_SGLANG} || {_ROLES_ARGS}.size() == 0",
    ),
    Rule(
        field="engine.python",
        holds=lambda role: engine_kind(role) == "SGLang" or role.engine.python is None,
        sentence="{engine.python} is for kind SGLang; servers of other kinds run in the environment of the job. Remove "
        "python or set kind to SGLang.",
        cel=f"{_IS_SGLANG} || !has(self.engine) || !has(self.engine.python)",
    ),
    Rule(
        field="engine.tensorParallel",
        holds=lambda role: engine_kind(role) == "SGLang" or role.engine.tensor_parallel == 1,
        sentence="{engine.tensorParallel} needs kind SGLang; servers of other kinds have one device at most. Set kind "
        "to SGLang or leave tensorParallel out.",
        cel=f"{_IS_SGLANG} || {_SHARE} == 1",
    ),
    Rule(
        field="engine.tensorParallel",
        holds=_has_whole_engines,
        sentence="{engine.tensorParallel} GPUs for each engine do not divide the gpus of a pod, {gpusOfPod}. Give a "
        "divisor of gpus, or change gpus.",
        cel=f"{_SHARE} == 1 || ({_GPUS} > 0 && {_GPUS} % {_SHARE} == 0)",
        derived={"gpusOfPod": Derived(lambda role: role.gpus, _GPUS)},
    ),
    Rule(
        field="ranksPerPod",
        holds=_is_one_rank_for_each_engine,
        sentence="{ranksPerPod} is not the number of its engines, {gpus} gpus with {share} for each, and each engine "
        "has one rank. Leave ranksPerPod out, or set gpus to 0.",
        cel=f"{_GPUS} == 0 || !has(self.ranksPerPod) || self.gpus % {_SHARE} != 0 || "
        f"self.ranksPerPod * {_SHARE} == self.gpus",
        derived={"share": Derived(lambda role: role.engine.tensor_parallel, _SHARE)},
    ),
    Rule(
        field="engine.python",
        holds=lambda role: role.gpus > 0 or role.engine.python is None,
        sentence="{engine.python} needs gpus: without them an engine is forked from its launcher, and has the "
        "environment of the job. Remove python or give gpus.",
        cel=f"{_GPUS} > 0 || !has(self.engine) || !has(self.engine.python)",
    ),
    Rule(
        field="engine.args",
        holds=lambda role: role.gpus > 0 or not given_flags(role.engine.args, CPU_FLAGS),
        sentence=f"{{flag}} is not yours to give: {CPU_FLAGS.instead} Remove it from args or give gpus.",
        cel=f"{_GPUS} > 0 || !{_ROLES_ARGS}.exists(arg, arg.matches('{flag_pattern(CPU_FLAGS)}'))",
        derived={
            "flag": Derived(
                _first_of_the_cpu, f"{_ROLES_ARGS}.filter(arg, arg.matches('{flag_pattern(CPU_FLAGS)}'))[0]"
            )
        },
    ),
)
