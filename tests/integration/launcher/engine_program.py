"""An engine that is a program of its own, with nothing but the standard library.

python engine_program.py PORT START_SECONDS

It loads for the first half of START_SECONDS, without a port, and for the second with one, at which `/alive` says 503.
With the variable LACKS it has no port at all: a process of its own logs a KeyError, and it ends with no word of that.
With KILLED it logs a KeyError, too, that it survives, and is killed by another process.
Else `/alive` then says 200, `/who` its process id and its number of threads, `/variable/NAME` one of its environment,
`/child` the process id of a child that it begins, `/hang` hangs it and `/die` ends it with 3.
"""

import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """One request at a time: a handler that hangs hangs the server."""

    up_at = 0.0

    def do_GET(self) -> None:
        if self.path == "/hang":
            time.sleep(100_000)
        if self.path == "/die":
            print("told to die", flush=True)  # noqa: T201
            os._exit(3)
        body = self.answer().encode()
        self.send_response(200 if time.monotonic() >= self.up_at else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer(self) -> str:
        if self.path.startswith("/variable/"):
            return os.environ[self.path.rpartition("/")[2]]
        if self.path == "/child":
            return str(subprocess.Popen(["sleep", "100000"]).pid)
        return f"{os.getpid()} {os.environ['OMP_NUM_THREADS']}"

    def log_message(self, *args: Any) -> None:
        """Says nothing."""


if __name__ == "__main__":
    if "LACKS" in os.environ:
        subprocess.run([sys.executable, "-c", "{}[__import__('os').environ['LACKS']]"], check=False)
        print("kill_process_tree called", flush=True)  # noqa: T201
        os.kill(os.getpid(), signal.SIGKILL)
    if "KILLED" in os.environ:
        subprocess.run([sys.executable, "-c", "{}[__import__('os').environ['KILLED']]"], check=False)
        subprocess.run(["kill", "-KILL", str(os.getpid())], check=False)
    port, start_seconds = int(sys.argv[1]), float(sys.argv[2])
    Handler.up_at = time.monotonic() + start_seconds
    time.sleep(start_seconds / 2)
    HTTPServer(("127.0.0.1", port), Handler).serve_forever()
