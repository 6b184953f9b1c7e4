"""What the coordinator costs while hundreds of ranks beat: a real process on a real control Redis.

    make bench-coordinator    or    python -m tests.bench.coordinator --ranks 64,128,256 --seconds 10

Half of the ranks train, half generate, one to a pod: launchers hold their polls open, ranks beat at the rate that the
coordinator names, receivers ask for weights beside an offer of 140 GB, a supervisor reads status and events. CPU
seconds are those of /proc: other programs on the machine make answers late, but the work hardly larger. Where not all
requests that are due are answered, the cost of those that were is carried over to the others.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rljob_api.names import Epoch
from rljob_api.wire.epochs import DesiredState, PodOrder
from tests.bench.coordinator.crowd import pod_uid, pods, requests_due
from tests.bench.operator_scale.measured import cpu_seconds
from tests.integration.children import die_with_tests
from tests.integration.dcs.world import World, job
from tests.integration.transfer_queue.servers import running_servers

WARM_UP_SECONDS = 2.0
COLUMNS = (
    "ranks",
    "beat interval, s",
    "coordinator, CPU s/s",
    "control Redis, CPU s/s",
    "requests due/s",
    "answered/s",
    "CPU ms a request",
    "CPU s/s if all were answered",
    "beats/s",
    "beat p50, ms",
    "beat p99, ms",
    "refused",
    "until all are at work, CPU s",
)


def main() -> None:
    arguments = _arguments()
    rows = [_measure(ranks, arguments) for ranks in arguments.ranks]
    width = max(map(len, COLUMNS))
    for column, cells in zip(COLUMNS, zip(*rows, strict=True), strict=True):
        sys.stdout.write(f"{column:<{width}}" + "".join(f"{cell:>10}" for cell in cells) + "\n")


def _measure(ranks: int, arguments: argparse.Namespace) -> list[str]:
    manifest = job(chunk_bytes=arguments.chunk_bytes, heartbeat_seconds=arguments.heartbeat_timeout)
    with running_servers() as servers, tempfile.TemporaryDirectory(prefix="rljob-bench-") as name:
        world = World(servers, Path(name), manifest)
        world.start()
        try:
            _order(world, ranks)
            assert world.process is not None
            with _load(world, ranks, arguments) as load:
                return _read(ranks, world.process.pid, servers.control.pid, load, arguments.seconds)
        finally:
            world.stop()


def _read(ranks: int, coordinator: int, control: int, load: subprocess.Popen[str], seconds: float) -> list[str]:
    before = cpu_seconds(coordinator)
    interval = _received(load)["beat_interval"]
    begun = cpu_seconds(coordinator) - before
    time.sleep(WARM_UP_SECONDS)
    _print(load)
    at, own, servers = time.monotonic(), cpu_seconds(coordinator), cpu_seconds(control)
    time.sleep(seconds)
    took, own, servers = time.monotonic() - at, cpu_seconds(coordinator) - own, cpu_seconds(control) - servers
    _print(load)
    reported = _received(load)
    beats = [1000 * one for one in reported["beats"]]
    if not beats:
        raise SystemExit(f"No rank has beaten in {seconds:g} s; they beat every {interval:g} s. Give more --seconds.")
    middle, late = (beats[int(share * (len(beats) - 1))] for share in (0.5, 0.99))
    due, answered = requests_due(ranks, interval), reported["requests"] / took
    each = own / reported["requests"]
    figures = [f"{interval:g}", f"{own / took:.3f}", f"{servers / took:.3f}", f"{due:.0f}", f"{answered:.0f}"]
    figures += [f"{1000 * each:.2f}", f"{max(own / took, each * due):.2f}"]
    figures += [f"{len(beats) / took:.1f}", f"{middle:.1f}", f"{late:.1f}", str(reported["refused"])]
    return [str(ranks), *figures, f"{begun:.2f}"]


def _order(world: World, ranks: int) -> None:
    """Epoch 1, and orders for everybody in it."""
    world.raise_epoch(1)
    orders = [PodOrder(pod=pod, epoch=Epoch(1), pod_uid=pod_uid(pod)) for pod in pods(ranks)]
    replicas = {order.pod.role.value: order.pod.replica + 1 for order in orders}
    world.call("PUT", "/v1/desired", DesiredState(epoch=Epoch(1), pods=orders, replicas=replicas))


@contextmanager
def _load(world: World, ranks: int, arguments: argparse.Namespace) -> Iterator[subprocess.Popen[str]]:
    url = urlsplit(world.endpoints.coordinator)
    task = {"host": url.hostname, "port": url.port, "token": world.endpoints.token, "ranks": ranks}
    task |= {"chunk_bytes": arguments.chunk_bytes, "beat_seconds": arguments.beat_seconds}
    command = [sys.executable, "-m", "tests.bench.coordinator.load"]
    load = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_tests, env={**os.environ}
    )
    try:
        _print(load, json.dumps(task))
        yield load
    finally:
        load.kill()
        load.communicate()


def _print(load: subprocess.Popen[str], line: str = "") -> None:
    assert load.stdin is not None
    load.stdin.write(line + "\n")
    load.stdin.flush()


def _received(load: subprocess.Popen[str]) -> dict[str, Any]:
    assert load.stdout is not None
    line = load.stdout.readline()
    if not line:
        raise SystemExit(f"The crowd's process ended with {load.wait()}.")
    received: dict[str, Any] = json.loads(line)
    return received


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=_numbers, default=[64, 128, 256], help="how many, several with commas")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each measurement")
    parser.add_argument("--beat-seconds", type=float, help="instead of the interval that the coordinator names")
    parser.add_argument("--heartbeat-timeout", type=int, default=30, help="restartPolicy.heartbeatTimeoutSeconds")
    parser.add_argument("--chunk-bytes", type=int, default=4 << 20, help="weightSync.chunkBytes")
    return parser.parse_args()


def _numbers(text: str) -> Sequence[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    main()
