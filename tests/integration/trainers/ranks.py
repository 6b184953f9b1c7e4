"""Data-parallel ranks as real processes: trains, or fails as ordered, and writes what it saw."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from rljob_workers.algorithms.objective import Output
from rljob_workers.models.blob import write_blob
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.models.weights import Folder
from rljob_workers.trainers import build_trainer
from rljob_workers.trainers.data_parallel import GroupError
from tests.integration.trainers.worlds import meet
from tests.unit.trainers.rows import make_rows, make_spec, select_rows

STEPS = 3
ROWS = 16


def main(folder: Path, rank: int, world: int, timeout_seconds: float, steps: int) -> None:
    torch.set_num_threads(1)
    group = meet(folder, rank, world, timeout_seconds=timeout_seconds)
    spec = make_spec()
    trainer = build_trainer(spec, build_tokenizer(spec.model), group)
    trainer.load(Folder(folder / "v0.safetensors"))
    results = []
    for step in range(steps):
        trainer.accumulate(select_rows(make_rows(step), list(range(rank, ROWS, world))))
        results.append(trainer.optimizer_step())
    write_blob(folder / f"rank{rank}.safetensors", trainer.stage_weights())
    probe = make_rows(steps)
    log_probs = trainer.score(probe.tokens, probe.response_lengths, Output.LOG_PROBS, 1.0).values
    write_blob(folder / f"rank{rank}.log_probs.safetensors", {"log_probs": log_probs})
    (folder / f"rank{rank}.txt").write_text(repr([(r.loss, r.grad_norm, sorted(r.metrics.items())) for r in results]))
    group.close()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
    except GroupError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(3)
