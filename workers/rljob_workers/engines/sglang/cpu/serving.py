"""A fork of a process that has SGLang imported, as a server of its own on the launcher's socket.

Called in the forked child only: what it sets holds for this process and SGLang's own children. It returns when the
server was told to end; a server whose scheduler dies is ended by SGLang itself.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import random
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rljob_workers.engines.sglang.cpu.preloading import preload_sglang

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
