"""The engines of a rollout (`spec.roles.rollout.engine`): inference server, flags and GPUs, and their rules.

Anyone may import it. The rules refuse flags and variables that RLJob sets itself. The API server fills in no default of
these fields (`generate.crd`): CEL tests with `has` for each field.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, StringConstraints, field_validator

from rljob_api.engines import DEFAULT_ENGINE, ENGINES, EngineTraits
from rljob_api.names import EngineKind
from rljob_api.rule import Derived, Rule, RuledModel


@dataclass(frozen=True, slots=True)
class _Taken:
    """Flags that RLJob gives a server itself."""

    flags: str
    """Their names without the dashes, with white space between."""
    instead: str
    """The field that sets it, or why none has to; a sentence."""


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
"""Variables of the environment that RLJob sets for a server itself, and the field that decides."""


_ARGS = "(has(self.args) ? self.args : [])"


def flag_pattern(taken: _Taken) -> str:
    """The regular expression of an argument that is one of these flags, for Python and CEL."""
    return f"^--({'|'.join(taken.flags.split())})(=|$)"


def given_flags(args: list[str], taken: _Taken) -> list[str]:
    """Flags of `args` that are taken."""
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


_VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")


EngineArgument = Annotated[str, StringConstraints(min_length=1, max_length=512)]


class EngineSpec(RuledModel):
    """The server that generates: a process of its own (with tensorParallel several), which outlives its ranks."""

    rules = ENGINE

    kind: EngineKind = DEFAULT_ENGINE
    """Torch: a small server of our own, for small models and for machines without GPUs. SGLang: the one of that name,
    which must be installed where the job runs. Sim: computes nothing and spends the time that `simulation` says; the
    roles that train and compute log-probs then do so, too. Not given: SGLang where the rollouts have gpus, else Torch;
    what a job began with stays."""
    args: list[EngineArgument] = Field(default=[], max_length=64)
    """Flags of the server's own, each name and each value an item, written in full: [--mem-fraction-static, "0.8"].
    Those that RLJob gives itself are refused. For kind SGLang."""
    env: dict[str, str] = Field(default={}, max_length=64)
    """Variables of the server's environment, beside those of the worker's container or of `rljob run`."""
    python: str | None = Field(default=None, min_length=1, max_length=4096)
    """The interpreter of another environment that has SGLang, for servers with GPUs; null: the worker's own."""
    startup_timeout_seconds: int | None = Field(default=None, ge=1, le=86400)
    """For a server to answer after its start; later it is killed and started again. Null: 300, and 1800 for
    SGLang, which may have to compile kernels. Also for the imports of a pod's first process, of a coordinator's, and
    of `rljob run`'s preloaded parent (there: without reading or computing), if it is longer than their own 900, 900 and
    120."""
    tensor_parallel: int = Field(default=1, ge=1, le=64)
    """GPUs of each engine. A pod has gpus / tensorParallel engines, and a rank for each. For kind SGLang."""

    @property
    def traits(self) -> EngineTraits:
        """Traits of its kind."""
        return ENGINES[self.kind]

    @property
    def startup_seconds(self) -> int:
        """How long a start may take."""
        given = self.startup_timeout_seconds
        return self.traits.startup_seconds if given is None else given

    @field_validator("env")
    @classmethod
    def _names_of_variables(cls, env: dict[str, str]) -> dict[str, str]:
        wrong = next((name for name in env if not _VARIABLE.fullmatch(name)), None)
        if wrong is not None:  # stays in Python: CEL on Kubernetes cannot match texts without a bound within its budget
            raise ValueError(f"{wrong!r} is no name of a variable. Give letters, digits and _, and no digit first.")
        return env
