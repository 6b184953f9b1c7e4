"""W1 to W5: what is timed, in rounds in which all sides take turns. Returns figures; says on stderr how far it is."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tests.bench.queue import workloads
from tests.bench.queue.contestants import Contestant, Peer, Side
from tests.bench.queue.figures import Figure, Unit
from tests.bench.queue.progress import report
from tests.bench.queue.stream import stream_seconds
from tests.bench.queue.workloads import Workload

CYCLES = 5
"""Of W1 in a round: one takes milliseconds."""
NUM_CONSUMERS = 4
WAITING_ROWS = (1024, 8192, 65536, 524288)
PEER_BEARS_ROWS = 65536
CLAIMS = 30
"""Of W5 in a round."""
START_PAUSE_SECONDS = 0.2
LONG_SECONDS = 600.0
SHIFT_ROUNDS = 3
"""Of W2."""
STREAM = "loopback stream"


def measure_jagged(contestants: Sequence[Contestant], rounds: int) -> list[Figure]:
    """W1. A cycle is put, claim+get; a round's value is the median of its cycles."""
    put = Figure("w1", "put", Unit.MILLISECONDS, aim=4.5)
    drawn = Figure("w1", "put with its tickets", Unit.MILLISECONDS, aim=4.5)
    claim = Figure("w1", "claim+get", Unit.MILLISECONDS, aim=3.0)
    with _sides(contestants, workloads.jagged(), 1) as sides:
        for name, side, turn in _turns(sides, rounds, CYCLES, "w1"):
            cycles = [_cycle(name, side, turn + cycle, checked=turn == 0) for cycle in range(CYCLES)]
            if turn:
                _add_cycles(name, cycles, 1e3, put, drawn, claim)
    return [put, drawn, claim]


def measure_large(contestants: Sequence[Contestant], rounds: int) -> list[Figure]:
    """W2. One cycle a round, and a raw stream of the same bytes beside each.

    A side takes up to 6 GiB, so only one stands at a time: they take turns in shifts of a few rounds, each after a
    warm-up.
    """
    workload = workloads.large()
    gigabytes = workloads.num_bytes(workload) / 1e9
    put = Figure("w2", "put", Unit.GIGABYTES_PER_SECOND, aim=1.3)
    claim = Figure("w2", "claim+get", Unit.GIGABYTES_PER_SECOND, aim=1.3)
    able = [one for one in contestants if one.num_units == 2]
    for first in range(0, rounds, SHIFT_ROUNDS):
        last = min(rounds, first + SHIFT_ROUNDS)
        for one in able:
            report(f"w2: {one.name}, rounds {first + 1} to {last} of {rounds}")
            with one.open(workload, 1) as side:
                _cycle(one.name, side, 0, checked=first == 0)
                for turn in range(1, last - first + 1):
                    cycle = _cycle(one.name, side, turn, checked=False)
                    put.add(one.name, gigabytes / cycle["put"])
                    claim.add(one.name, gigabytes / cycle["claim"])
        for _ in range(first, last):
            rate = gigabytes / stream_seconds(workloads.num_bytes(workload))
            put.add(STREAM, rate)
            claim.add(STREAM, rate)
    return [put, claim]


def measure_tiny(contestants: Sequence[Contestant], rounds: int, num_consumers: Sequence[int]) -> list[Figure]:
    """W3 (one consumer) and W4 (four processes): micro-batches a second, until every row is claimed, with its bytes."""
    figures = {
        1: Figure("w3", "one consumer", Unit.REQUESTS_PER_SECOND, aim=5.0),
        NUM_CONSUMERS: Figure("w4", "four consumers", Unit.REQUESTS_PER_SECOND, aim=5.0),
    }
    workload = workloads.tiny()
    with _sides(contestants, workload, max(num_consumers)) as sides:
        for name, side, turn in _turns(sides, rounds, len(num_consumers), "w3 and w4"):
            for step, number in enumerate(num_consumers):
                rate = _drain(name, side, turn + step, number, workload, checked=turn == 0)
                if turn:
                    figures[number].add(name, rate)
    return [figures[number] for number in num_consumers]


def measure_waiting(contestants: Sequence[Contestant], rounds: int) -> list[Figure]:
    """W5. Claims of 8 rows with their bytes; they are handed back after every round, so that as many wait again.

    The peer hands nothing back: each round is a task of its own, for which all rows wait.
    """
    figures: list[Figure] = []
    claims: list[Figure] = []
    for num_rows in WAITING_ROWS:
        able = [one for one in contestants if num_rows <= PEER_BEARS_ROWS or not isinstance(one, Peer)]
        figure = Figure("w5", f"{num_rows} wait, claim+get", Unit.MILLISECONDS)
        meta = Figure("w5", f"{num_rows} wait, its get_meta", Unit.MILLISECONDS)
        script = Figure("w5", f"{num_rows} wait, our script", Unit.MILLISECONDS)
        with _sides([one for one in able if one.num_units == 2], workloads.waiting(num_rows), 1) as sides:
            for name, side in sides.items():
                report(f"w5: {name} puts {num_rows} rows")
                side.clients[0].ask("put", seconds=LONG_SECONDS, turn=0)
            for name, side, turn in _turns(sides, rounds, 1, f"w5, {num_rows} rows"):
                before = side.script_seconds()
                reported = side.clients[0].ask("claim", turn=0, times=CLAIMS, task=f"read{turn}")
                after = side.script_seconds()
                if turn == 0:
                    _verify(name, side, CLAIMS * 8)
                side.clients[0].ask("give_back")
                if turn == 0:
                    continue
                figure.add(name, 1e3 * statistics.median(reported["claim"]))
                if "meta" in reported:
                    meta.add(name, 1e3 * statistics.median(reported["meta"]))
                if before is not None and after is not None:
                    script.add(name, 1e3 * (after - before) / CLAIMS)
        claims.append(figure)
        figures += [each for each in (figure, meta, script) if each.values]
    return [*figures, _flatness(claims)]


def _flatness(claims: Sequence[Figure]) -> Figure:
    """The slowest number of waiting rows over the fastest."""
    flatness = Figure("w5", "slowest / fastest size", Unit.TIMES, limit=2.0)
    for side in claims[0].values:
        medians = [figure.medians()[side] for figure in claims if side in figure.values]
        flatness.add(side, max(medians) / min(medians))
    return flatness


@contextmanager
def _sides(contestants: Sequence[Contestant], workload: Workload, num_clients: int) -> Iterator[dict[str, Side]]:
    with ExitStack() as stack:
        sides = {}
        for one in contestants:
            report(f"{workload.name}: starts {one.name}")
            sides[one.name] = stack.enter_context(one.open(workload, num_clients))
        yield sides


def _turns(sides: dict[str, Side], rounds: int, step: int, what: str) -> Iterator[tuple[str, Side, int]]:
    """Round 0 is for warming up and checking. Each round begins with another side."""
    names = list(sides)
    for number in range(rounds + 1):
        report(f"{what}: {f'round {number} of {rounds}' if number else 'warm-up, with a check of all contents'}")
        for place in range(len(names)):
            name = names[(place + number) % len(names)]
            yield name, sides[name], number * step


def _cycle(name: str, side: Side, turn: int, *, checked: bool) -> dict[str, float]:
    client = side.clients[0]
    seconds: dict[str, float] = client.ask("put", turn=turn)
    reported = client.ask("claim", turn=turn, times=1, task="read")
    if checked:
        _verify(name, side, None)
    side.clear(turn)
    return {**seconds, "claim": reported["claim"][0]}


def _add_cycles(name: str, cycles: list[dict[str, float]], scale: float, *figures: Figure) -> None:
    put, drawn, claim = figures
    put.add(name, scale * statistics.median(cycle["put"] for cycle in cycles))
    drawn.add(name, scale * statistics.median(cycle.get("put+tickets", cycle["put"]) for cycle in cycles))
    claim.add(name, scale * statistics.median(cycle["claim"] for cycle in cycles))


def _drain(name: str, side: Side, turn: int, number: int, workload: Workload, *, checked: bool) -> float:
    side.clients[0].ask("put", turn=turn)
    consumers = side.clients[:number]
    start_at = time.monotonic() + START_PAUSE_SECONDS
    for client in consumers:
        client.send("drain", turn=turn, start_at=start_at)
    reported = [client.answer() for client in consumers]
    numbers = [row for one in reported for row in one["numbers"]]
    if len(numbers) != workload.num_rows or len(set(numbers)) != workload.num_rows:
        sys.exit(
            f"bench: {name} handed out {len(numbers)} rows, {len(set(numbers))} different ones, of {workload.num_rows}"
            f" to {number} consumers."
        )
    if checked:
        _verify(name, side, workload.num_rows)
    side.clear(turn)
    requests = sum(one["requests"] for one in reported)
    return float(requests / (max(one["ended"] for one in reported) - min(one["began"] for one in reported)))


def _verify(name: str, side: Side, num_rows: int | None) -> None:
    reported = [client.ask("verify") for client in side.clients]
    wrong = [line for one in reported for line in one["wrong"]]
    rows = sum(one["rows"] for one in reported)
    if wrong or not rows or (num_rows is not None and rows != num_rows):
        sys.exit(f"bench: {name} gave {rows} rows; wrong ones: {wrong}")
