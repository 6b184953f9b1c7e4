"""Our queue beside its peer (PyPI TransferQueue 0.1.11), in one run on one machine, taking turns.

    make bench-queue       or       python -m tests.bench.queue --only w1,w3 --rounds 7 --output json

Sides: ours over TCP and over Unix sockets (two storage units), the peer with one and two storage units, its processes
with the allocator as it is and tuned (MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_ARENA_MAX=1). Every
server and every client is a process of its own; the peer's servers run without ray around them (`peer_server`).
Ratios are to the best of the peer's sides in each line. All contents are checked once per workload and side.

    w1  64 samples x 3 jagged fields (4.6 MB), one put, one claim of all
    w2  1 GiB: 256 samples x 4 fields of 1 MiB, one put, one claim of all; a raw loopback stream beside it
    w3  4096 samples of a dozen tokens, one process claims micro-batches of 8 until there is none left
    w4  the same with four processes on one task; no row comes twice
    w5  claims of 8 rows while 1k, 8k, 65k, 500k rows wait (the peer up to 65k)
    w6  4 producers, 5 tasks that need each other's fields, 256k rows (ours only; see `pipeline`)
    w7  200 clients that wait for nothing: their CPU and that of Redis (ours only; see `idle`)

Timed on our side: put = `put_groups` of all groups (8 samples each) in one call, bytes and commit, and in a line of
its own with `claim_tickets` before it; claim+get = `claim` with a lease, until all bytes are in tensors. Timed on the
peer's side: `put` of one TensorDict into a partition of its own; `get_meta` and `get_data`. Tensors are made before the
clock starts. Not timed: our results, training, publishing and sweeping, the peer's `clear_partition`. Where rows are
tiny (w3 to w5) both sides put up to 1024 rows at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.bench.queue import versus
from tests.bench.queue.contestants import Contestant, OurQueue, chosen, contestants
from tests.bench.queue.figures import Figure, as_rows
from tests.bench.queue.idle import measure_idle
from tests.bench.queue.pipeline import measure_pipeline
from tests.bench.queue.pipeline_shape import PARTITION_ROWS
from tests.bench.queue.table import print_table

WORKLOADS = ("w1", "w2", "w3", "w4", "w5", "w6", "w7")


def main() -> None:
    arguments = _arguments()
    sides = contestants(dict(arguments.server))
    try:
        sides = chosen(sides, arguments.sides or [one.name for one in sides])
    except ValueError as error:
        sys.exit(f"bench: {error}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    load = os.getloadavg()[0]
    figures: list[Figure] = []
    try:
        for measured in _measure(sides, arguments):
            figures += measured
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    finally:
        if figures:  # also what a run had that was ended
            _show(figures, load, arguments.output)


def _show(figures: Sequence[Figure], load: float, output: str) -> None:
    if output == "json":
        rows = {"load_average": [load, os.getloadavg()[0]], "cores": os.cpu_count(), "figures": as_rows(figures)}
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    else:
        print_table(figures, load)


def _measure(sides: Sequence[Contestant], arguments: argparse.Namespace) -> Iterator[list[Figure]]:
    only, rounds = arguments.only, arguments.rounds
    ours = [one for one in sides if isinstance(one, OurQueue)]
    if "w1" in only:
        yield versus.measure_jagged(sides, rounds)
    if "w2" in only:
        yield versus.measure_large(sides, rounds)
    consumers = [number for name, number in (("w3", 1), ("w4", versus.NUM_CONSUMERS)) if name in only]
    if consumers:
        yield versus.measure_tiny(sides, rounds, consumers)
    if "w5" in only:
        yield versus.measure_waiting(sides, rounds)
    if "w6" in only:
        yield measure_pipeline(ours, arguments.rows)
    if "w7" in only:
        yield measure_idle(ours, arguments.idle_seconds)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=_positive, default=7, help="medians are over so many (default 7)")
    parser.add_argument("--only", type=_workloads, default=WORKLOADS, help="e.g. w1,w3")
    parser.add_argument("--sides", type=_names, help="e.g. ours,peer 2; a name or the beginning of names")
    parser.add_argument("--rows", type=_whole_partitions, default=1 << 18, help="of w6 (default 262144)")
    parser.add_argument("--idle-seconds", type=_positive, default=60, help="of each case of w7 (default 60)")
    parser.add_argument(
        "--server",
        type=_server,
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="a redis-server or valkey-server for our sides, which are named after it; may be given several times."
        " Default: what the product would find",
    )
    parser.add_argument("--output", choices=["table", "json"], default="table")
    return parser.parse_args()


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is too few. Use at least 1.")
    return number


def _whole_partitions(text: str) -> int:
    number = int(text)
    if number < 4 * PARTITION_ROWS or number % PARTITION_ROWS:
        raise argparse.ArgumentTypeError(
            f"{number} rows are no whole partitions. Use 4 or more times {PARTITION_ROWS}."
        )
    return number


def _workloads(text: str) -> list[str]:
    for name in _names(text):
        if name not in WORKLOADS:
            raise argparse.ArgumentTypeError(f"{name!r} is no workload. Known: {', '.join(WORKLOADS)}.")
    return _names(text)


def _names(text: str) -> list[str]:
    return text.split(",")


def _server(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if not name or not os.access(path, os.X_OK):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no NAME=PATH with a program. Give e.g. valkey=/path/valkey-server."
        )
    return name, Path(path).absolute()


if __name__ == "__main__":
    main()
