"""What the operator costs at hundreds of jobs: on a real API server, with pretended nodes and coordinators.

    make bench-operator       or       python -m tests.bench.operator_scale --jobs 200

With --hostile: 20 jobs, and beside them one for each way in which a coordinator can want the operator no good.

Phases: create (until all are Ready), steady (a step each 2 s and job), idle (no step), burst (restarts at once), single
(restarts one by one), delete. One JSON line each, then a table. Pods run nothing and answer nothing: what is measured
is the operator, and what it asks of the API server. It needs the cluster of `make cluster` (root, this machine).
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.bench.operator_scale import jobs
from tests.bench.operator_scale.hostile import WAYS
from tests.bench.operator_scale.measured import Meter, Probes, Reading, compared, fetch, memory_mib
from tests.cluster.harness.definition import install_definition
from tests.cluster.harness.machine import NODE, bring_up
from tests.integration.children import die_with_tests

ADDRESS, HOSTILE_ADDRESS, PORT = "127.0.0.77", "127.0.0.78", 8080
"""Of the stand-ins, in the cluster's network."""
ROUNDS = 5
"""Restarts of each job, alone and beside hostile ones."""
_LEASE = ("verb", "resource", "code")
HEALTH_PORT, METRICS_PORT = 18080, 19090
STEP_SECONDS = 2.0
WAIT_SECONDS = 900.0
_INSIDE = "RLJOB_BENCH_INSIDE"
_CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
_COLUMNS = (
    "phase",
    "wall_s",
    "operator_cpu_s",
    "operator_cpu_percent",
    "cpu_ms_per_job",
    "rss_mib",
    "turns_per_job",
    "turn_p50_ms",
    "turn_p99_ms",
    "queue_wait_p99_ms",
    "alarm_wait_p99_ms",
    "loop_p99_ms",
    "api_requests_per_job",
    "status_writes_per_job_in_15_s",
    "control_plane_cpu_s",
)


def main() -> None:
    arguments = _arguments()
    if _INSIDE not in os.environ:
        _enter(arguments)
    with tempfile.TemporaryDirectory(prefix="rljob-bench-") as name:
        Bench(arguments, Path(name)).run()


class Bench:
    """One run, within the cluster's network."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self._arguments = arguments
        self._count: int = arguments.jobs
        self._folder = folder
        self._rows: list[dict[str, Any]] = []

    def run(self) -> None:
        """All phases; what was started is ended."""
        self._clear()
        jobs.prepare(self._count + len(WAYS))
        with self._stand_ins(), self._operator() as operator:
            self._process = operator
            self._meter = Meter(operator.pid, _control_plane(), f"http://127.0.0.1:{METRICS_PORT}/metrics")
            self._probes = Probes(f"http://127.0.0.1:{HEALTH_PORT}/healthz")
            _wait("the operator to lead and to be ready", self._is_ready)
            self._probes.start()
            try:
                self._beside_hostile_ones() if self._arguments.hostile else self._phases()
                peak = memory_mib(operator.pid, "VmHWM")
            finally:
                self._probes.stop()
        total = sum(row["operator_cpu_s"] for row in self._rows)
        _print({"phase": "all", "jobs": self._count, "operator_cpu_s": round(total, 1), "peak_rss_mib": round(peak)})
        _table(self._rows)
        jobs.clear()

    def _phases(self) -> None:
        seconds = self._arguments.seconds
        with self._phase("create"):
            jobs.create(jobs.names(self._count), self._arguments.rollouts)
            _wait(f"{self._count} jobs to be Running", lambda: self._running() == self._count)
        if self._arguments.pods:
            sys.stdout.write(f"{jobs.num_pods()} pods\n")
        _ask("pace", step_seconds=STEP_SECONDS)
        time.sleep(5)
        with self._phase("steady"):
            time.sleep(seconds)
        _ask("pace", step_seconds=None)
        time.sleep(20)  # progress that is still to be written
        with self._phase("idle"):
            time.sleep(seconds)
        _ask("pace", step_seconds=STEP_SECONDS)
        hosts = [jobs.coordinator_host(name) for name in jobs.names(self._count)]
        num_at_once = min(self._arguments.burst, len(hosts) // 2)  # of few jobs some are left for one after the other
        at_once, one_by_one = hosts[:num_at_once], hosts[num_at_once:]
        time.sleep(seconds / 2)
        with self._phase("burst"):
            _ask("fail", hosts=at_once)
            _wait("the restarts to be over", lambda: self._restarted(at_once))
        self._report_restarts("burst", at_once)
        singles = one_by_one[: self._arguments.single]
        with self._phase("single"):
            for host in singles:
                _ask("fail", hosts=[host])
                _wait(f"the restart of {host} to be over", lambda host=host: self._restarted([host]), every=0.1)  # type: ignore[misc]
        self._report_restarts("single", singles)
        with self._phase("delete"):
            self._clear()

    def _beside_hostile_ones(self) -> None:
        """The same restarts without them and with them."""
        hosts = [jobs.coordinator_host(name) for name in jobs.names(self._count)]
        with self._phase("create"):
            jobs.create(jobs.names(self._count), self._arguments.rollouts)
            _wait(f"{self._count} jobs to be Running", lambda: self._running() == self._count)
        _ask("pace", step_seconds=STEP_SECONDS)
        time.sleep(self._arguments.seconds)
        for phase in ("alone", "beside"):
            if phase == "beside":
                jobs.create(jobs.hostile_names(), self._arguments.rollouts)
                time.sleep(self._arguments.seconds)  # all of them are asked, and their bursts are used up
            with self._phase(phase):
                rounds = [self._restart_each(hosts) for _ in range(ROUNDS)]
            self._report(phase, [restart for each in rounds for restart in each])
        _print({"phase": "beside", "hostile": json.loads(fetch(f"http://{HOSTILE_ADDRESS}:{PORT}/told"))})
        _print({"phase": "all", "lease": self._meter.read().sum_by("rljob_operator_api_requests_total", *_LEASE)})

    def _restart_each(self, hosts: list[str]) -> list[dict[str, float]]:
        """One after the other."""
        for host in hosts:
            _ask("fail", hosts=[host])
            _wait(f"the restart of {host} to be over", lambda host=host: self._restarted([host]), every=0.1)  # type: ignore[misc]
        return self._last_restarts(hosts)

    def _clear(self) -> None:
        """Also what a run that was cut off has left."""
        jobs.delete_all()
        _wait("no pod to be there", lambda: jobs.num_pods() == 0, every=2)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        self._probes.take()
        before: Reading = self._meter.read()
        yield
        row = compared(name, before, self._meter.read(), self._count, self._probes.take())
        self._rows.append(row)
        _print(row)

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, "the operator has ended: its log says why (--log FILE)"
        return fetch(f"http://127.0.0.1:{HEALTH_PORT}/readyz") == "ok"

    def _running(self) -> int:
        assert self._process.poll() is None, "the operator has ended: its log says why (--log FILE)"
        return int(self._meter.read().sum_by("rljob_operator_jobs", "phase")["Running"])

    def _restarted(self, hosts: list[str]) -> bool:
        reported = json.loads(fetch(f"http://{ADDRESS}:{PORT}/stand-in/restarts"))["restarts"]
        return all(reported[host] and reported[host][-1]["ready"] is not None for host in hosts)

    def _report_restarts(self, name: str, hosts: list[str]) -> None:
        self._report(name, self._last_restarts(hosts))

    def _last_restarts(self, hosts: list[str]) -> list[dict[str, float]]:
        reported = json.loads(fetch(f"http://{ADDRESS}:{PORT}/stand-in/restarts"))["restarts"]
        return [reported[host][-1] for host in hosts]

    def _report(self, name: str, last: list[dict[str, float]]) -> None:
        row: dict[str, Any] = {"phase": name, "restarts": len(last)}
        for stage in ("raised", "ordered", "ready"):
            took = sorted(1000 * (restart[stage] - restart["failed"]) for restart in last)
            row[f"{stage}_p50_ms"] = round(statistics.median(took), 1)
            row[f"{stage}_p99_ms"] = round(took[min(len(took) - 1, int(0.99 * len(took)))], 1)
        _print(row)

    @contextmanager
    def _stand_ins(self) -> Iterator[None]:
        with ExitStack() as stack:
            for module, address in (("stand_in", ADDRESS), ("hostile", HOSTILE_ADDRESS)):
                command = [sys.executable, "-m", f"tests.bench.operator_scale.{module}", address, str(PORT)]
                stack.enter_context(_child(command, self._folder / f"{module}.log"))
            yield

    @contextmanager
    def _operator(self) -> Iterator[subprocess.Popen[bytes]]:
        options = {
            "workloads": jobs.WORKLOADS,
            # Longer than by default: a machine that others load may let it wait for long.
            "lease": {"namespace": jobs.NAMESPACE, "durationSeconds": 90, "renewSeconds": 60},
            "healthPort": HEALTH_PORT,
            "metricsPort": METRICS_PORT,
            "concurrency": self._arguments.concurrency,
        }
        config, hosts = self._folder / "operator.yaml", self._folder / "hosts"
        config.write_text(yaml.safe_dump(options))
        of = [*((ADDRESS, name) for name in jobs.names(self._count))]
        of += [(HOSTILE_ADDRESS, name) for name in jobs.hostile_names()]
        lines = [f"{address} {jobs.coordinator_host(name).partition(':')[0]}" for address, name in of]
        hosts.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        profile = ["-m", "cProfile", "-o", self._arguments.profile] if self._arguments.profile else []
        command = [sys.executable, *profile, "-m", "rljob_operator", "--config", str(config)]
        # It finds the stand-in under the coordinators' names: in its own view of the file system.
        mounted = ["unshare", "--mount", "bash", "-c", 'mount --bind "$0" /etc/hosts; exec "$@"', str(hosts), *command]
        with _child(mounted, Path(self._arguments.log)) as process:
            yield process


@contextmanager
def _child(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, preexec_fn=die_with_tests)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _enter(arguments: argparse.Namespace) -> None:
    """Goes on as a process of the cluster's network."""
    cluster = bring_up()
    if cluster.node is None:
        raise SystemExit("The benchmark needs the cluster of this machine: unset KUBECONFIG.")
    pods = (arguments.jobs + len(WAYS)) * (arguments.rollouts + 8)
    nodes = -(-pods // jobs.PODS_PER_NODE)
    subprocess.run([str(NODE / "kwok.sh"), str(nodes)], check=True, timeout=600, stderr=subprocess.DEVNULL)
    install_definition(cluster.kubeconfig)
    os.environ |= {_INSIDE: str(cluster.node.run), "KUBECONFIG": str(cluster.node.kubeconfig)}
    command = cluster.node.within(sys.executable, "-m", "tests.bench.operator_scale", *sys.argv[1:])
    os.execv(command[0], command)


def _control_plane() -> list[int]:
    """The daemons' processes; what is noted of each is the nsenter that waits for it."""
    found = []
    for name in _CONTROL_PLANE:
        waiting = int((Path(os.environ[_INSIDE]) / "pid" / name).read_text())
        children = Path(f"/proc/{waiting}/task/{waiting}/children").read_text().split()
        found += [int(pid) for pid in children] or [waiting]
    return found


def _ask(what: str, **body: object) -> None:
    data = json.dumps(body).encode()
    urllib.request.urlopen(urllib.request.Request(f"http://{ADDRESS}:{PORT}/stand-in/{what}", data), timeout=30).close()


def _wait(what: str, holds: Callable[[], bool], every: float = 1.0) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        try:
            if holds():
                return
        except OSError:
            pass  # it does not listen yet
        time.sleep(every)
    raise SystemExit(f"The benchmark waited {WAIT_SECONDS:.0f} s for {what}.")


def _print(row: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def _table(rows: list[dict[str, Any]]) -> None:
    width = max(map(len, _COLUMNS))
    for column in _COLUMNS:
        sys.stdout.write(f"{column:<{width}}" + "".join(f"{row[column]!s:>10}" for row in rows) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--hostile", action="store_true", help="restarts beside hostile coordinators, and nothing else")
    parser.add_argument("--rollouts", type=int, default=1, help="replicas of that role; the other pods are 8 a job")
    parser.add_argument("--seconds", type=float, default=60, help="length of the phases steady and idle")
    parser.add_argument("--burst", type=int, default=20, help="jobs that fail at once")
    parser.add_argument("--single", type=int, default=100, help="jobs that fail one after another")
    parser.add_argument("--concurrency", type=int, default=16, help="the operator's option")
    parser.add_argument("--pods", action="store_true", help="count the pods once all jobs run")
    parser.add_argument("--profile", help="file for what cProfile sees of the operator, at twice the cost")
    parser.add_argument("--log", default=os.devnull, help="file for the operator's log")
    return parser.parse_args()


if __name__ == "__main__":
    main()
