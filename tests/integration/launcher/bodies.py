"""What the forked children of these tests run, and the parent that forks their launchers: real processes, short runs.

python bodies.py small FD    as `python -m rljob_workers.launcher.parent --fd FD`, with these bodies and no torch
    python bodies.py conversing FD   the same, with ranks that register and beat
    python bodies.py exec:START FD   the same, with `program_engine` for an engine: a program of its own
    python bodies.py sglang FD       the same, with the real SGLang on the CPU
python bodies.py real FD     with all libraries, the engine server, and ranks that train one step
"""

import functools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rljob_api.names import EngineKind
from rljob_api.spec import RLJobSpec
from rljob_api.wire.processes import Preloads
from rljob_workers.dcs.errors import IncarnationOver
from rljob_workers.dcs.membership.rank_context import RankContext
from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.engines.backend import EngineBackend, EngineSettings, Exec, Fork, Ready
from rljob_workers.engines.torch_engine.torch_client import TorchEngineClient
from rljob_workers.launcher.launcher import Bodies
from rljob_workers.launcher.parent import serve
from rljob_workers.launcher.preload import preload
from rljob_workers.launcher.ranks import seed_everything, seed_of, until_fenced, use_threads
from rljob_workers.transfer_queue.errors import ControlRefused, ControlUnreachable, Fenced

PROGRAM = Path(__file__).with_name("engine_program.py")


def rank(context: RankContext) -> int:
    """A rank as the launcher runs it, with `obey` as its role."""
    return until_fenced(obey, context)


def obey(context: RankContext) -> int:
    """Obeys the file `act` of the run folder (consumed by the first rank that sees it) until it shall drain."""
    run_dir = Path(context.endpoints.run_dir)
    context.memory.enter_collective()
    context.memory.leave_collective()
    context.memory.enter_collective()
    context.memory.raise_seq(context.incarnation.epoch * 100 + context.incarnation.generation)
    (run_dir / f"descriptors.{os.getpid()}").write_text("\n".join(sorted(descriptors())))
    # Tests wait for these words: what they look at was written before.
    (run_dir / f"drives.{context.global_rank}").write_text(context.engine_url or "no engine")
    sys.stderr.write(f"life {context.incarnation.id} of epoch {context.incarnation.epoch} begins\n")
    sys.stderr.flush()
    while not context.drain.asked:
        act(run_dir)
        time.sleep(0.01)
    return 0


def converse(context: RankContext) -> int:
    """Registers, is ready and beats until it shall drain."""
    session = RankSession(context)
    session.ready()
    while not session.draining:
        session.pulse(waiting="nothing")
        act(Path(context.endpoints.run_dir))
        time.sleep(0.01)
    return 0


def converse_until_fenced(context: RankContext) -> int:
    """A rank as the launcher runs it, with `converse` as its role."""
    return until_fenced(converse, context)


def train(context: RankContext) -> int:
    """One step of the job's model, timed from here; then waits until it shall drain."""
    begun = time.monotonic()
    use_threads(1)
    seed_everything(seed_of(context.job.spec.seed, context.incarnation.key))
    import torch

    from rljob_workers.models.building import build_config, initial_state
    from rljob_workers.models.tokenizers import build_tokenizer
    from rljob_workers.trainers.flat_decoder import Decoder
    from rljob_workers.trainers.micro_batches import pack

    model = context.job.spec.model
    tokenizer = build_tokenizer(model)
    decoder = Decoder(build_config(model, tokenizer), storage=torch.float32, compute=torch.float32)
    decoder.load(initial_state(model, tokenizer), source="version 0")
    gradient = torch.zeros_like(decoder.flat)
    decoder.enable_gradients(gradient)
    tokens = torch.randint(0, len(tokenizer), (128,), dtype=torch.int32)
    plan = pack(tokens, torch.arange(0, 129, 16), torch.full((8,), 8))
    (-decoder.log_probs(tokens, plan, 1.0).mean()).backward()  # type: ignore[no-untyped-call]
    decoder.flat.sub_(gradient, alpha=1e-3)
    sys.stderr.write(f"life {context.incarnation.id} trained after {time.monotonic() - begun:.3f} s\n")
    sys.stderr.flush()
    while not context.drain.asked:
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
    if what == "fence":
        raise IncarnationOver(text)
    if what == "fence-queue":
        raise Fenced(text)
    if what == "lose-queue":
        raise ControlUnreachable(text)
    if what == "refused-by-queue":
        raise ControlRefused(text)
    if what == "raise":
        raise RuntimeError(text)
    if what == "refuse":
        from rljob_api.spec.model import ModelSpec
        from rljob_workers.models.tokenizers import build_tokenizer

        build_tokenizer(ModelSpec(path=text))
    if what == "leave":  # a process of the rank's own that would stay
        (run_dir / "left").write_text(str(subprocess.Popen(["sleep", "1000"]).pid))
        os._exit(1)


def engine(settings: EngineSettings, listener: socket.socket, incarnation: str) -> int:
    """Answers everything with 200 and its incarnation, one connection at a time."""
    while True:
        connection, _ = listener.accept()
        connection.setblocking(True)
        with connection:
            connection.recv(65536)
            body = f"{incarnation} {os.getpid()} {settings.threads}"
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            connection.sendall((head + body).encode())


def small_engine(spec: RLJobSpec) -> EngineBackend:
    """`engine`, forked."""
    return EngineBackend(
        kind="Small",
        command=lambda settings, _: Fork(functools.partial(engine, settings)),
        ready=Ready("/health", lambda status: status == 200),
        client=lambda url, _, __: TorchEngineClient(url),
    )


def program_engine(start_seconds: float) -> Callable[[RLJobSpec], EngineBackend]:
    """`engine_program`, which is up after `start_seconds`."""
    backend = EngineBackend(
        kind="Program",
        command=lambda _, site: Exec((sys.executable, str(PROGRAM), str(site.port), str(start_seconds))),
        ready=Ready("/alive", lambda status: status == 200),
        parts="sleep ",
        client=lambda url, _, __: TorchEngineClient(url),
    )
    return lambda _: backend


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
    kind, *limits = sys.argv[1].split(":")
    descriptor = int(sys.argv[2])
    if kind == "real":  # the libraries, the engine server and a step of the job's model
        sys.exit(serve(descriptor, Bodies(rank=train)))
    if kind == "sglang":
        sys.exit(serve(descriptor, Bodies(rank), functools.partial(preload, Preloads(engine=EngineKind.SGLANG))))
    engines = program_engine(float(*limits)) if kind == "exec" else small_engine
    body = converse_until_fenced if kind == "conversing" else rank
    sys.exit(
        serve(
            descriptor,
            Bodies(body, engines),
            load=lambda: None,
        )
    )
