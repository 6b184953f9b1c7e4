"""What the forked children of these tests run, and the parent that forks their launchers: real processes, small lives.

python bodies.py FD      as `python -m rljob_workers.launcher.parent --fd FD`, but with these bodies and no torch
"""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from rljob_workers.dcs.context import RankContext
from rljob_workers.launcher.engine_keeper import EngineSettings
from rljob_workers.launcher.launcher import Bodies
from rljob_workers.launcher.parent import serve


def rank(context: RankContext) -> int:
    """Obeys the file `act` of the run folder (consumed by the first rank that sees it) until it shall drain."""
    run_dir = Path(context.endpoints.run_dir)
    sys.stderr.write(f"life {context.life.incarnation} of epoch {context.life.epoch} begins\n")
    sys.stderr.flush()
    context.seq_sink.raise_to(context.life.epoch * 100 + context.life.generation)
    (run_dir / f"descriptors.{os.getpid()}").write_text("\n".join(sorted(descriptors())))
    while not context.drain.asked:
        act(run_dir)
        time.sleep(0.01)
    return 0


def act(run_dir: Path) -> None:
    try:
        (run_dir / "act").rename(run_dir / f"acting.{os.getpid()}")
    except FileNotFoundError:
        return
    what, _, text = (run_dir / f"acting.{os.getpid()}").read_text().partition(" ")
    if what == "exit":
        os._exit(int(text))
    if what == "raise":
        raise RuntimeError(text)
    if what == "refuse":
        from rljob_api.spec import ModelSpec
        from rljob_workers.models.tokenizers import build_tokenizer

        build_tokenizer(ModelSpec(path=text))
    if what == "leave":  # a process of the rank's own that would stay
        (run_dir / "left").write_text(str(subprocess.Popen(["sleep", "1000"]).pid))
        os._exit(1)


def engine(listener: socket.socket, settings: EngineSettings, incarnation: str) -> int:
    """Answers everything with 200 and its incarnation, one connection at a time."""
    while True:
        connection, _ = listener.accept()
        connection.setblocking(True)
        with connection:
            connection.recv(65536)
            body = f"{incarnation} {os.getpid()} {settings.threads}"
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            connection.sendall((head + body).encode())


def descriptors() -> list[str]:
    """What this process holds open, as the system names it."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(entry.readlink()))
        except FileNotFoundError:
            continue
    return found


if __name__ == "__main__":
    sys.exit(serve(int(sys.argv[1]), Bodies(rank, engine), load=lambda: None))
