"""One forward and backward pass of log-probs in a process of its own, since a peak is one of a process's whole run.

    python -m tests.bench.fsdp.peak_memory {chunked|naive} TOKENS VOCABULARY WIDTH

Prints MiB above what the inputs take, the head's gradient included, and seconds.
"""

from __future__ import annotations

# ruff: noqa: T201 -- a benchmark prints what it found
import subprocess
import sys
import time
from pathlib import Path

import torch

from rljob_workers.algorithms.log_probs import chunked_log_probs

WARM_UP_TOKENS = 4


def measured(way: str, tokens: int, vocabulary: int, width: int) -> tuple[float, float]:
    """MiB and seconds of one pass in a new process."""
    command = [sys.executable, "-m", __spec__.name, way, *map(str, (tokens, vocabulary, width))]
    mib, seconds = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    return float(mib), float(seconds)


def main(way: str, tokens: int, vocabulary: int, width: int) -> None:
    """The pass."""
    torch.manual_seed(0)
    head = (torch.randn(vocabulary, width) / width**0.5).requires_grad_()
    hidden = torch.randn(tokens, width, requires_grad=True)
    targets = torch.randint(0, vocabulary, (tokens,))
    _pass(way, hidden[:WARM_UP_TOKENS], head, targets[:WARM_UP_TOKENS])
    head.grad = None
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before, begin = _resident_mib("VmRSS"), time.perf_counter()
    _pass(way, hidden, head, targets)
    print(_resident_mib("VmHWM") - before, time.perf_counter() - begin)


def _pass(way: str, hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor) -> None:
    if way == "chunked":
        log_probs, entropy = chunked_log_probs(hidden, head, targets)
    else:
        logits = hidden @ head.t()
        all_log_probs = torch.log_softmax(logits, -1)
        log_probs = all_log_probs.gather(1, targets[:, None])[:, 0]
        entropy = -(all_log_probs.detach().exp() * all_log_probs.detach()).sum(-1)
    torch.autograd.backward(log_probs.sum() + 0.0 * entropy.sum())


def _resident_mib(line: str) -> float:
    """Of this process, now (VmRSS) or at most (VmHWM)."""
    status = dict(each.split(":", 1) for each in Path("/proc/self/status").read_text().splitlines())
    return int(status[line].split()[0]) / 1024


if __name__ == "__main__":
    torch.set_num_threads(2)
    main(sys.argv[1], *map(int, sys.argv[2:]))
