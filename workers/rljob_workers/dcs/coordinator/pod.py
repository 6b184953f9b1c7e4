"""Entry point of the coordinator's container: `python -m rljob_workers.dcs.coordinator.pod`.

Reads its pod's environment and files, listens, imports, serves until SIGTERM; then it exits with 0.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from rljob_api.cluster import COORDINATOR_PORT, METRICS_PORT, PROBE_PORT
from rljob_api.names import EXIT_BAD_MANIFEST, EXIT_SUCCEEDED, EXIT_TERMINATED
from rljob_workers.sockets import open_listener


def main(arguments: Sequence[str]) -> int:
    """The whole incarnation of the coordinator's container."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(EXIT_TERMINATED))  # a first process has no default for it
    parser = argparse.ArgumentParser(prog="python -m rljob_workers.dcs.coordinator.pod")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on (default: all)")  # noqa: S104
    parser.add_argument("--port", type=int, default=COORDINATOR_PORT)
    parser.add_argument("--probe-port", type=int, default=PROBE_PORT, help="the same, for the kubelet alone")
    parser.add_argument("--metrics-port", type=int, default=METRICS_PORT, help="the same, for scrapers")
    options = parser.parse_args(arguments)
    from rljob_workers.pod_environment import PodEnvironment

    try:
        pod = PodEnvironment.read(os.environ)
        job = pod.job()
        pod.endpoints(job)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_BAD_MANIFEST
    ports = (options.port, options.probe_port, options.metrics_port)
    # Callers wait in their backlogs while the rest is imported.
    listeners = [open_listener(options.host, port) for port in ports]
    from rljob_workers.dcs.coordinator.server_gate import ACROSS_MACHINES
    from rljob_workers.dcs.coordinator.serving import serve_job
    from rljob_workers.dcs.coordinator.written_record import record_of

    serve_job(listeners, pod.endpoints, job, ACROSS_MACHINES, record_of)
    return EXIT_SUCCEEDED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
