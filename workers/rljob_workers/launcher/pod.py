"""The first process of a worker's container: `python -m rljob_workers.launcher.pod`.

It counts the start, imports the heavy libraries, asks which replica its pod is, and is that replica's launcher then.
Everything from the imports on happens in one loop that also answers probes and repeats logs.
"""

from __future__ import annotations

import argparse
import logging
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rljob_api import cluster
from rljob_api.names import EXIT_BAD_MANIFEST, EXIT_TERMINATED, Role
from rljob_api.roles import field_name
from rljob_workers.launcher.preload import count_start, limit_thread_pools, preload

limit_thread_pools()  # before anything below pulls in NumPy or torch

from rljob_api.machine.room import require_room_of_pod  # noqa: E402 -- see above
from rljob_api.spec import RLJob  # noqa: E402 -- see above
from rljob_api.wire.identity import PodKey  # noqa: E402 -- see above
from rljob_api.wire.processes import Preloads, preloads_of  # noqa: E402 -- see above
from rljob_workers.launcher.coordinator_calls import ReplicaQuestion  # noqa: E402 -- see above
from rljob_workers.launcher.end_note import EndNote  # noqa: E402 -- see above
from rljob_workers.launcher.environment import (  # noqa: E402 -- see above
    LauncherEnvironment,
    LauncherState,
    PodIdentity,
    WhenDone,
)
from rljob_workers.launcher.forking import (  # noqa: E402 -- see above
    SignalPipe,
    is_users_error,
)
from rljob_workers.launcher.launcher import Bodies, Launcher  # noqa: E402 -- see above
from rljob_workers.launcher.pod_devices import container_devices  # noqa: E402 -- see above
from rljob_workers.launcher.pod_logs import (  # noqa: E402 -- see above
    LogEcho,
    LogTails,
)
from rljob_workers.launcher.probes import (  # noqa: E402 -- see above
    ProbeServer,
    exposition,
)
from rljob_workers.pod_environment import PodEnvironment, of_role, required, role_of  # noqa: E402 -- see above
from rljob_workers.sockets import open_listener  # noqa: E402 -- see above

TURN_SECONDS = 0.25

_log = logging.getLogger("rljob_workers.launcher.pod")  # it runs as __main__


class Pod:
    """One incarnation of the container."""

    def __init__(self, options: argparse.Namespace, bodies: Bodies) -> None:
        """Raises ValueError, with a sentence, for what is missing."""
        self._environment = PodEnvironment.read(os.environ)
        self._pod_uid = required(os.environ, "RLJOB_POD_UID")
        self._role: Role = role_of(os.environ)
        self._job: RLJob = self._environment.job_of(self._role)
        self._endpoints = self._environment.endpoints(self._job)
        self._options = options
        self._bodies = bodies

    def run(self, restart_count: int, load: Callable[[Preloads], None]) -> int:
        """Until the launcher leaves, or SIGTERM; the exit code."""
        logs = self._environment.folder(cluster.STATE_DIR) / "logs"
        for folder in (logs, Path(self._endpoints.run_dir), Path(self._endpoints.weights_dir)):
            folder.mkdir(parents=True, exist_ok=True)
        require_room_of_pod(self._job.spec, self._role, Path(self._endpoints.weights_dir))
        load(preloads_of(self._job.spec, [self._role]))
        signals = SignalPipe()
        probes = self._probes(restart_count)
        note = EndNote(signals, self._environment.folder(cluster.TERMINATION_FILE))
        pod = self._await_replica(signals, probes)
        note.turn(LauncherState())
        if pod is None:
            return EXIT_TERMINATED
        identity = PodIdentity(pod, self._pod_uid, restart_count)
        tails = LogTails(logs, self._endpoints, f"{self._pod_uid}/{restart_count}")
        plugins = (probes, note, LogEcho(logs, sys.stdout.fileno()), tails)
        environment = LauncherEnvironment(
            self._environment.endpoints, logs, WhenDone.STAYS, plugins, self._container_devices
        )
        code = Launcher(identity, self._job, environment, signals, self._bodies).run()
        tails.finish()
        return code

    def _container_devices(self, job: RLJob) -> tuple[str, ...]:
        spec = job.spec.roles.of(self._role)
        return container_devices(f"spec.roles.{field_name(self._role)}.gpus", spec.gpus if spec is not None else 0)

    def _probes(self, restart_count: int) -> ProbeServer:
        def metrics(state: LauncherState) -> str:
            return exposition(self._environment.job_name, self._role.value, restart_count, state)

        host = self._options.probe_host or ("::" if ":" in self._environment.address else "0.0.0.0")  # noqa: S104
        ports = (self._options.probe_port, self._options.metrics_port)
        return ProbeServer([open_listener(host, port) for port in ports], metrics)

    def _await_replica(self, signals: SignalPipe, probes: ProbeServer) -> PodKey | None:
        """None at SIGTERM. There is no deadline: what this pod is for, others decide."""
        question = ReplicaQuestion(self._endpoints, self._pod_uid)
        try:
            while not signals.terminated:
                signals.drain()
                pod = question.turn()
                if pod is not None:
                    _log.info("pod %s is %s", self._pod_uid, pod)
                    return of_role(pod, self._role, self._pod_uid)
                probes.turn(LauncherState(num_ranks=self._job.spec.roles.topology(self._role).ranks_per_pod))
                poller = select.poll()
                poller.register(signals.fileno(), select.POLLIN)
                question.watch(poller)
                probes.watch(poller)
                poller.poll(TURN_SECONDS * 1000)
            return None
        finally:
            question.close()


def main(arguments: Sequence[str], bodies: Bodies, load: Callable[[Preloads], None] = preload) -> int:
    """The command line; the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(EXIT_TERMINATED))  # a first process has no default for it
    state = Path(os.environ.get("RLJOB_ROOT") or "/") / cluster.STATE_DIR.lstrip("/")
    try:
        restart_count = count_start(state)
    except OSError as error:
        sys.stderr.write(
            f"{state}: {error.strerror}. Mount a folder there that this user may write, as the operator does:"
            " this is the first process of a pod. Without a cluster, use: rljob run.\n"
        )
        return EXIT_BAD_MANIFEST
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    parser = argparse.ArgumentParser(prog="python -m rljob_workers.launcher.pod")
    parser.add_argument("--probe-host", default="", help="address for probes and metrics (default: all)")
    parser.add_argument("--probe-port", type=int, default=cluster.PROBE_PORT)
    parser.add_argument("--metrics-port", type=int, default=cluster.METRICS_PORT)
    try:
        return Pod(parser.parse_args(arguments), bodies).run(restart_count, load)
    except ValueError as error:
        if not is_users_error(error):
            raise
        sys.stderr.write(f"{error}\n")
        return EXIT_BAD_MANIFEST


if __name__ == "__main__":
    code = main(sys.argv[1:], Bodies())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # thousands of modules would be taken apart first, some of them noisily
