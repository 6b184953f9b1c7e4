"""SGLang on a machine without a GPU: imported once in the launcher, then a fork per server on the launcher's socket.

Used by the backend only. Each server costs a fork (1 s) and not an import (14 CPU-seconds).
"""

from __future__ import annotations

import functools
import importlib
import logging
import multiprocessing
import os
import random
import socket
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "SGLANG_USE_CPU_ENGINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCHDYNAMO_DISABLE": "1",
}


_STAND_IN = "rljob_workers.engines.sglang.cpu.sgl_kernel"


_MODULES = (
    "sglang.launch_server",
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.layers.attention.torch_native_backend",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.managers.scheduler",
    "sglang.srt.model_loader.loader",
    "sglang.srt.models.registry",
)


def preload_sglang() -> None:
    """Imports it with our stand-in for its kernels; does nothing the second time."""
    if _MODULES[-1] in sys.modules:
        return
    os.environ.update(_ENVIRONMENT)
    logging.disable(logging.WARNING)  # a line for each family of models that wants more of the kernels
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside the libraries, which users cannot act on
        sys.modules["sgl_kernel"] = importlib.import_module(_STAND_IN)
        for name in _MODULES:
            importlib.import_module(name)
        _allow_seeds()
    logging.disable(logging.NOTSET)


def _allow_seeds() -> None:
    """Lets `--enable-deterministic-inference` run on plain torch: only there does SGLang heed a sampling seed.

    It refuses that backend, and a prefix cache with it, and would replace matrix products by kernels for GPUs. On a CPU
    a row's sums do not depend on its batch beyond rounding, so that a seed fixes its tokens all the same.
    """
    from sglang.srt import batch_invariant_ops
    from sglang.srt.arg_groups import choices
    from sglang.srt.layers import sampler

    choices.add_deterministic_attention_backend_choices(["torch_native"])
    choices.add_radix_supported_deterministic_attention_backend_choices(["torch_native"])
    batch_invariant_ops.enable_batch_invariant_mode = lambda *_, **__: None
    sampler.top_k_top_p_min_p_sampling_from_probs_torch = functools.partial(
        _draw_with_min_p, sampler.top_k_top_p_min_p_sampling_from_probs_torch
    )


def _draw_with_min_p(
    draw: Callable[..., Any],
    probs: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
    need_min_p_sampling: bool,
    *rest: object,
    **more: object,
) -> Any:  # noqa: ANN401 - as SGLang has it
    """SGLang's own `draw`, which dies of min_p beside a seed, of the tokens that min_p leaves.

    They are the likeliest: what top_k and top_p take of them does not depend on the others.
    """
    if need_min_p_sampling:
        least = probs.amax(-1, keepdim=True) * min_ps.view(-1, 1)
        probs = probs.masked_fill(probs < least, 0.0)
    return draw(probs, top_ks, top_ps, min_ps, False, *rest, **more)


FLAGS = (
    "--device=cpu",
    "--attention-backend=torch_native",
    "--sampling-backend=pytorch",
    "--grammar-backend=none",
    "--disable-overlap-schedule",
    "--disable-cuda-graph",
    "--skip-server-warmup",
    "--sleep-on-idle",  # an idle scheduler would spin on a core
    "--enable-deterministic-inference",
    "--max-total-tokens=65536",
    "--max-running-requests=64",
)
"""Of every server here; a job's own flags come later, and win."""


_LONGEST_FOLDER = 80
"""Bytes: a socket's path may have 107, and its name takes the rest."""


def serve_on_cpu(listener: socket.socket, flags: Sequence[str], folder: Path, *, threads: int) -> int:
    """Serves on `listener` with SGLang's `flags`; `folder` takes its sockets and its shared memory."""
    preload_sglang()
    _separate_from_other_forks(folder, threads)
    _serve_on(listener)

    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    run_server(prepare_server_args([*FLAGS, *flags]))
    return 0


def _separate_from_other_forks(folder: Path, threads: int) -> None:
    """What forks share and servers must not: chance (their seeds, their ports) and names of files."""
    import torch
    from sglang.srt.managers import load_snapshot

    torch.set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    random.seed()
    if len(os.fsencode(folder)) <= _LONGEST_FOLDER:
        tempfile.tempdir = str(folder)
    # In /dev/shm it would outlive a server that is killed.
    load_snapshot.shm_path_for = lambda name: str(folder / f"loads-{os.path.basename(name)}")  # noqa: PTH119


def _serve_on(listener: socket.socket) -> None:
    """SGLang forks its children where it would spawn them, and listens on the launcher's socket."""
    import uvicorn

    start_method = multiprocessing.set_start_method
    multiprocessing.set_start_method = lambda *_, **__: start_method("fork", force=True)
    run = uvicorn.Server.run
    uvicorn.Server.run = functools.partialmethod(run, sockets=[listener])  # type: ignore[assignment]
