"""The spec of a rollout's engines: which inference server, with which flags, on how many GPUs.

A part of `spec.py`, which alone has it as a field. Its rules stand in `engine_rules.py`.
"""

import re
from typing import Annotated

from pydantic import Field, StringConstraints, field_validator

from rljob_api.engine_rules import ENGINE
from rljob_api.names import EngineKind
from rljob_api.rule import RuledModel

_VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")


_STARTUP_SECONDS = {EngineKind.TORCH: 300, EngineKind.SGLANG: 1800, EngineKind.SIM: 300}

EngineArgument = Annotated[str, StringConstraints(min_length=1, max_length=512)]


class EngineSpec(RuledModel):
    """What generates. Each engine is a process of its own (with tensorParallel several), which outlives its ranks."""

    rules = ENGINE

    kind: EngineKind = EngineKind.TORCH
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
    """For a server to answer after its start; later it is killed and started anew. Null: 300, and 1800 for
    SGLang, which may have to compile kernels. Also for the imports of a pod's first process, of a coordinator's, and
    of `rljob run`'s preloaded parent (there: without reading or computing), if it is longer than their own 900, 900 and
    120."""
    tensor_parallel: int = Field(default=1, ge=1, le=64)
    """GPUs of each engine. A pod has gpus / tensorParallel engines, and a rank for each. For kind SGLang."""

    @property
    def startup_seconds(self) -> int:
        """How long a start may take."""
        given = self.startup_timeout_seconds
        return _STARTUP_SECONDS[self.kind] if given is None else given

    @field_validator("env")
    @classmethod
    def _names_of_variables(cls, env: dict[str, str]) -> dict[str, str]:
        wrong = next((name for name in env if not _VARIABLE.fullmatch(name)), None)
        if wrong is not None:  # stays in Python: CEL on Kubernetes cannot match texts without a bound within its budget
            raise ValueError(f"{wrong!r} is no name of a variable. Give letters, digits and _, and no digit first.")
        return env
