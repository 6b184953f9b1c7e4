"""Memory of log-probs of many tokens, and tokens a second of training beside plain loops.

    python -m tests.bench.fsdp [--rounds 3] [--size {full|smallest}]

Log-probs: one forward and backward pass in chunks, and at an eighth of the tokens all at once, whose memory grows with
them. Training: the best of some rounds in turns, in float32, one rank, one thread; ratios are to the plain loop.
"""

from __future__ import annotations

# ruff: noqa: T201 -- a benchmark prints what it found
import argparse
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import distributed

from tests.bench.fsdp.peak_memory import measured
from tests.bench.fsdp.speed import Size, rates, sides

NAIVE_SHARE = 8


@dataclass(frozen=True, slots=True)
class Scale:
    """What is measured."""

    tokens: int
    vocabulary: int
    width: int
    training: Size


SCALES = {
    "full": Scale(8192, 151936, 256, Size(hidden=256, layers=4, vocabulary=4096, rows=24, longest=435, micro_batch=8)),
    "smallest": Scale(256, 4096, 32, Size(hidden=32, layers=1, vocabulary=128, rows=6, longest=42, micro_batch=2)),
}


def memory(scale: Scale) -> None:
    """Prints MiB of both ways."""
    few = scale.tokens // NAIVE_SHARE
    print(f"log-probs and entropy, vocabulary {scale.vocabulary}, width {scale.width}, float32, forward and backward")
    mib, seconds = measured("chunked", scale.tokens, scale.vocabulary, scale.width)
    print(f"  in chunks,   {scale.tokens:5d} tokens {mib:9.0f} MiB {seconds:6.1f} s")
    naive, seconds = measured("naive", few, scale.vocabulary, scale.width)
    print(f"  all at once, {few:5d} tokens {naive:9.0f} MiB {seconds:6.1f} s")
    print(f"  by proportion, {NAIVE_SHARE} times as many: {NAIVE_SHARE * naive / mib:.1f}x the memory", flush=True)


def speed(size: Size, rounds: int) -> None:
    """Prints tokens a second of all sides for rows of even and of uneven lengths."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        passes = sides(size, Path(folder))
        print(
            f"training a Qwen3, hidden {size.hidden}, {size.layers} layers, vocabulary {size.vocabulary}: {size.rows}"
            f" rows in micro-batches of {size.micro_batch}, load {os.getloadavg()[0]:.1f}"
        )
        for even in (True, False):
            rows = size.rows_of(even=even)
            found = rates(passes, rows, rounds)
            lengths = rows.tokens.lengths
            print(f"  {len(rows.tokens.values)} tokens in rows of {int(lengths.min())} to {int(lengths.max())}")
            plain = next(iter(found.values()))
            for name, rate in found.items():
                print(f"    {name:21s} {rate:9.0f} tokens/s {rate / plain:6.2f}x", flush=True)
    if distributed.is_initialized():
        distributed.destroy_process_group()


def main() -> None:
    """Reads the options and runs both parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", choices=SCALES, default="full")
    options = parser.parse_args()
    memory(SCALES[options.size])
    speed(SCALES[options.size].training, options.rounds)


if __name__ == "__main__":
    main()
