"""The command line of a SGLang server: what RLJob gives itself, then the job's own flags. Pure.

Read by `backend`. Which flags a job may not give, since they stand here, is a rule of `roles.rollout.engine.args`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rljob_api.spec import Dtype, ModelSpec

_OURS = (
    "--host=127.0.0.1",
    # Weights come from the actor only: what the server makes up until then is never read, and no file is needed.
    "--load-format=dummy",
    # Else a request without a parameter takes it from the model's generation_config.json.
    "--sampling-defaults=openai",
    # A stream then carries each token once: its log-probs would cost the square of a sample's length.
    "--incremental-streaming-output",
    "--log-level-http=warning",
)


def server_flags(
    model: ModelSpec, head_dtype: Dtype, folder: Path, port: int, *, tensor_parallel: int, own: Sequence[str]
) -> tuple[str, ...]:
    """Flags of a server of the model that `folder` describes; those of the job (`own`) come last."""
    return (
        *_OURS,
        f"--model-path={folder}",
        f"--port={port}",
        f"--dtype={model.dtype.value.lower()}",
        f"--tensor-parallel-size={tensor_parallel}",
        *(("--enable-fp32-lm-head",) if head_dtype is not model.dtype else ()),
        *own,
    )
