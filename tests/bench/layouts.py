"""Tokens a second of two ranks that train one model: by Fsdp and in layouts of Megatron; and what their imports cost.

    python -m tests.bench.layouts [--rounds 3] [--size {full|smallest}]

All train the same Qwen3 on the same rows in float32, and take an optimizer step each round, one thread a rank. A second
is one of both ranks' processors, which does not count what else runs. Imports: of the process that a job's ranks are
forked from.
"""

from __future__ import annotations

# ruff: noqa: T201 -- a benchmark prints what it found
import argparse
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rljob_api.spec import RLJobSpec
from rljob_workers.models.blob import write_blob
from rljob_workers.models.building import initial_state
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.models.weights import Folder
from rljob_workers.trainers import build_trainer
from rljob_workers.trainers.base import TrainRows
from rljob_workers.trainers.data_parallel import RankVote, agree
from tests.bench.fsdp.speed import Size
from tests.integration.trainers.training_ranks import select
from tests.integration.trainers.worlds import meet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rljob_workers.trainers.mesh import Mesh

_FORKS = multiprocessing.get_context("fork")
"""As a job's ranks are made: they have the imports of this process."""
WORLD = 2
SECONDS = 600.0
SIZES = {
    "full": Size(hidden=256, layers=4, vocabulary=4096, rows=24, longest=435, micro_batch=8),
    "smallest": Size(hidden=32, layers=2, vocabulary=128, rows=6, longest=42, micro_batch=2),
}
SIDES: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "Fsdp": ("Fsdp", {}),
    "Megatron, data": ("Megatron", {}),
    "Megatron, tensor 2": ("Megatron", {"tensor": 2}),
    "Megatron, pipeline 2": ("Megatron", {"pipeline": 2}),
}
"""Name: backend and parallelism."""
IMPORTS = """
import resource, sys, time
from rljob_api.spec.roles import TrainerBackend
from rljob_api.wire.processes import Preloads
from rljob_workers.launcher.preload import preload
begin = time.process_time()
preload(Preloads(trainers=frozenset({TrainerBackend(sys.argv[1])})))
print(time.process_time() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def job_of(name: str, size: Size) -> RLJobSpec:
    """A job whose actor has two ranks in this layout, and recomputes nothing."""
    backend, parallelism = SIDES[name]
    fields: dict[str, Any] = size.spec("Fsdp", checkpointing="false").model_dump(mode="json", by_alias=True)
    fields["roles"]["actor"] |= {"backend": backend, "ranksPerPod": WORLD}
    if parallelism:
        fields["roles"]["actor"]["parallelism"] = dict(parallelism)
    return RLJobSpec.model_validate(fields)


def as_rank(folder: Path, rank: int, name: str, size: Size, rounds: int) -> None:
    """Writes the seconds of this rank's processor that each round has taken."""
    group = meet(folder, rank, WORLD, timeout_seconds=SECONDS)
    spec = job_of(name, size)
    trainer = build_trainer(spec, build_tokenizer(spec.model), group)
    trainer.load(Folder(folder.parent / "weights.safetensors"))
    rows = _share(size.rows_of(even=False), trainer.mesh)
    seconds = []
    for _ in range(rounds + 1):
        begin = time.process_time()
        agreed = agree(group, RankVote(True, False, trainer.num_micro_batches(rows)), "a slice")
        trainer.accumulate(rows, num_micro_batches=agreed.num_micro_batches)
        trainer.optimizer_step()
        seconds.append(time.process_time() - begin)
    (folder / f"{rank}.json").write_text(json.dumps(seconds[1:]))  # the first one warms up
    group.close()


def _share(rows: TrainRows, mesh: Mesh) -> TrainRows:
    """Those of one rank: ranks that share a model have the same."""
    return select(rows, list(range(mesh.dp_rank, len(rows.tokens), mesh.dp_size)))


def rates(root: Path, size: Size, rounds: int) -> Mapping[str, float]:
    """Tokens a second of each side's best round."""
    spec = size.spec("Flat")
    write_blob(root / "weights.safetensors", initial_state(spec.model, build_tokenizer(spec.model)))
    num_tokens = len(size.rows_of(even=False).tokens.values)
    found: dict[str, float] = {}
    for name in SIDES:
        folder = Path(tempfile.mkdtemp(dir=root))
        ranks = [_FORKS.Process(target=as_rank, args=(folder, rank, name, size, rounds)) for rank in range(WORLD)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        if codes := [rank.exitcode for rank in ranks if rank.exitcode]:
            raise SystemExit(f"{name}: its ranks ended with {codes}")
        each = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORLD)]
        found[name] = num_tokens / (min(map(sum, zip(*each, strict=True))) / WORLD)
    return found


def imports(backend: str) -> tuple[float, float]:
    """Seconds of a processor, and MiB."""
    done = subprocess.run([sys.executable, "-c", IMPORTS, backend], check=True, stdout=subprocess.PIPE, text=True)
    seconds, mib = done.stdout.split()
    return float(seconds), float(mib)


def main() -> None:
    """Reads the options and measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", choices=SIZES, default="full")
    options = parser.parse_args()
    torch.set_num_threads(1)  # before the first product: a pool does not survive a fork
    size = SIZES[options.size]
    for backend in ("Flat", "Fsdp", "Megatron"):
        seconds, mib = imports(backend)
        print(f"imports of {backend:10s} {seconds:6.1f} s {mib:6.0f} MiB", flush=True)
    with tempfile.TemporaryDirectory() as root:
        found = rates(Path(root), size, options.rounds)
    for name, rate in found.items():
        print(f"{name:22s} {rate:8.0f} tokens/s {rate / found['Fsdp']:6.2f}x")


if __name__ == "__main__":
    main()
