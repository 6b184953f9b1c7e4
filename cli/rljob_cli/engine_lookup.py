"""Whether this machine has the inference server that a job names. Used by `rljob run`; imports nothing of it.

`rljob validate` does not ask: the job may be for a cluster, whose images have it.
"""

from __future__ import annotations

import shutil
from importlib.util import find_spec

from rljob_api.engine_spec import EngineKind, EngineSpec

FIELD = "spec.roles.rollout.engine"


def engine_problem(engine: EngineSpec) -> str | None:
    """A sentence, or None where it can be started as far as can be seen from here."""
    if engine.python is not None:
        if shutil.which(engine.python) is not None:
            return None
        return (
            f"{FIELD}.python: {engine.python} is no program of this machine. Give the interpreter of an environment"
            " that has SGLang, or remove python."
        )
    if engine.kind is not EngineKind.SGLANG or find_spec("sglang") is not None:
        return None
    return (
        f"{FIELD}.kind: SGLang is not installed here. Install it beside rljob, give the interpreter of an environment"
        " that has it as engine.python, or set kind to Torch."
    )
