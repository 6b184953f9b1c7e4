"""Entry point: `python -m rljob_workers.dcs.coordinator --fd FD --endpoints FILE --manifest FILE`.

Started by the supervisor, which keeps the listening socket, so that a restarted coordinator finds its callers waiting.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import sys
from pathlib import Path

from rljob_api.names import EXIT_BAD_MANIFEST
from rljob_workers.sockets import open_listener

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Parses, then imports, then serves until it is killed."""
    options = _parser().parse_args()
    if options.die_with_parent:
        _die_with_parent(options.die_with_parent)
    try:
        from rljob_workers.dcs.coordinator.serving import serve
    except ImportError as error:  # no restart would help
        sys.stderr.write(
            f"{sys.executable} cannot import what a job needs: {error}. Mend the install of rljob[worker].\n"
        )
        sys.exit(EXIT_BAD_MANIFEST)

    listener = _listener(options)
    serve(listener, Path(options.endpoints), Path(options.manifest))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rljob_workers.dcs.coordinator", description=__doc__)
    parser.add_argument("--fd", type=int, help="inherited listening socket; instead of --host and --port")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free one, printed on standard output")
    parser.add_argument("--endpoints", required=True, help="file with the job's endpoints (JSON, mode 0600)")
    parser.add_argument("--manifest", required=True, help="file with the resolved RLJob (JSON)")
    parser.add_argument(
        "--die-with-parent", type=int, metavar="PID", help="be killed when process PID, the parent, ends"
    )
    return parser


def _listener(options: argparse.Namespace) -> socket.socket:
    if options.fd is not None:
        return socket.socket(fileno=options.fd)
    listener = open_listener(options.host, options.port)
    sys.stdout.write(f"listening on {options.host}:{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    return listener


def _die_with_parent(parent: int) -> None:
    """Asks the kernel for SIGKILL at the parent's death; a parent that is dead already cannot be waited for."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(f"the parent {parent} is dead already")


if __name__ == "__main__":
    main()
