"""The first steps of a process that will fork: counts its start, limits thread pools, imports the heavy libraries once.

`parent` and `pod` call it before any fork. Imports only: no tensor, no thread, no CUDA; that is checked.
"""

from __future__ import annotations

import gc
import importlib
import os
import warnings
from contextlib import suppress
from pathlib import Path

from rljob_api.wire.processes import Preloads

FILE = "container-starts"


def count_start(folder: Path) -> int:
    """The restart count of this container: 0 for the first start in this pod. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    try:
        count = int(path.read_text()) + 1
    except (FileNotFoundError, ValueError):  # half a number: the folder's file system lost what was not yet on disk
        count = 0
    beside = path.with_suffix(".new")
    beside.write_text(str(count))
    beside.replace(path)
    return count


THREAD_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""OpenBLAS (in NumPy) starts its pool when it is imported, and a pool does not survive a fork. Ranks set torch's own
number of threads after the fork, whatever stands here."""


MODULES = (
    "numpy",
    "numpy.ma",
    "numpy.random",
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.optim.adamw",
    "safetensors.torch",
    "tokenizers",
    "transformers",
    "orjson",
    "xxhash",
    "rljob_workers.data.jsonl",
    "rljob_workers.dcs.weights.host_staged",
    "rljob_workers.roles",
)


FAMILIES = "transformers.models.auto.tokenization_auto"
"""Where a tokenizer of a folder finds its class."""


OF_MOST_JOBS = Preloads()


class ThreadsBeforeForkError(RuntimeError):
    """A library started a thread when it was imported: locks that it holds would never be released in a child."""


def limit_thread_pools() -> None:
    """Must run before the first import of NumPy or torch."""
    for name in THREAD_POOLS:
        os.environ[name] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def preload(preloads: Preloads = OF_MOST_JOBS) -> None:
    """Imports what ranks need, checks that no thread came of it, and freezes what there is for the collector.

    The freeze keeps the pages of all these modules shared: a collection in a child would write to every object.
    Meanwhile nothing is collected: each collection would scan ever more modules and find next to nothing.
    """
    limit_thread_pools()
    gc.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside the libraries: we cannot act on them
        for name in MODULES:
            importlib.import_module(name)
        from rljob_workers.engines import BACKENDS
        from rljob_workers.trainers import TRAINERS

        for trainer in sorted(preloads.trainers):
            for name in TRAINERS[trainer].preload:
                importlib.import_module(name)
        if preloads.engine is not None:
            BACKENDS[preloads.engine].preload()
        if preloads.tokenizer_in_folder:
            importlib.import_module(FAMILIES)
    require_single_thread()
    gc.collect()
    gc.freeze()
    gc.enable()


def require_single_thread() -> None:
    """Raises ThreadsBeforeForkError, with the names of the threads, if there is more than one."""
    names = thread_names()
    if len(names) > 1:
        raise ThreadsBeforeForkError(
            f"{len(names)} threads ({', '.join(names)}) run before a fork, which keeps only one: locks of the others"
            f" would never be released. Set {', '.join(THREAD_POOLS)} to 1, or load what starts them after the fork."
        )


def thread_names() -> list[str]:
    """Names of this process's threads, by the system's count (Python knows only its own)."""
    names = []
    for task in os.listdir("/proc/self/task"):  # noqa: PTH208 -- of /proc
        with suppress(OSError):  # it has just ended
            names.append(Path(f"/proc/self/task/{task}/comm").read_text().strip())
    return names
