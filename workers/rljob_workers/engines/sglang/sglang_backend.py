"""The real SGLang as a backend: a program with its own flags where there are GPUs, else a fork that has it imported.

Read by the table of backends. Imports nothing heavy: launchers and the ranks of all other jobs read it too.
"""

from __future__ import annotations

import functools
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from rljob_api.machine.devices import are_real
from rljob_api.names import EngineKind
from rljob_api.spec import RLJobSpec
from rljob_api.spec.model import Dtype, ModelSpec
from rljob_workers.engines.backend import Command, EngineBackend, EngineSettings, EngineSite, Exec, Fork, Ready
from rljob_workers.engines.base import Engine

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


_HTTP_OK = 200


_MODEL = "model"
"""In an engine's own folder."""


def _command(settings: EngineSettings, site: EngineSite) -> Command:
    folder, has_devices = site.folder / _MODEL, are_real(site.devices)
    share = settings.tensor_parallel if has_devices else 1  # devices that are not there compute on the CPU, as one
    flags = server_flags(
        settings.model, settings.head_dtype, folder, site.port, tensor_parallel=share, own=settings.args
    )
    describe = functools.partial(_describe, settings, folder)
    if not has_devices:
        return Fork(functools.partial(_serve, settings, describe, flags, site.folder))
    python = settings.python or sys.executable
    return Exec((python, "-m", "sglang.launch_server", *flags), {"TMPDIR": str(site.folder)}, describe)


def _describe(settings: EngineSettings, folder: Path) -> None:
    from rljob_workers.engines.sglang.model_folder import write_model_folder

    write_model_folder(folder, settings.model)


def _serve(
    settings: EngineSettings,
    describe: functools.partial[None],
    flags: tuple[str, ...],
    folder: Path,
    listener: socket.socket,
    incarnation: str,
) -> int:
    from rljob_workers.engines.sglang.cpu.serving import serve_on_cpu

    del incarnation  # only the launcher's file has it: SGLang does not report one
    describe()
    return serve_on_cpu(listener, flags, folder, threads=settings.threads)


def _client(url: str, identity: Path, spec: RLJobSpec) -> Engine:
    del spec  # the server knows its own
    from rljob_workers.engines.sglang.sglang_client import SglangEngine

    return SglangEngine(url, identity)


def _preload() -> None:
    from rljob_workers.engines.sglang.cpu.serving import preload_sglang

    preload_sglang()


SGLANG = EngineBackend(
    kind=EngineKind.SGLANG,
    command=_command,
    # `/health` generates a token, and `/ready` answers 503 in every pause.
    ready=Ready("/model_info", lambda status: status == _HTTP_OK),
    client=_client,
    parts="sglang::",  # schedulers and detokenizer: without one of them the server may answer on and on
    preload=_preload,
)
