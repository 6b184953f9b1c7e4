"""A real engine server in a process of its own, started as the launcher does: forked from a preloaded parent."""

from __future__ import annotations

import multiprocessing
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rljob_api.spec.model import Architecture, Dtype, ModelConfig, ModelSpec, TokenizerConfig
from rljob_workers.engines.torch_engine import server
from rljob_workers.engines.torch_engine.decoder import Geometry
from rljob_workers.engines.torch_engine.requests import Batch, PauseMode
from rljob_workers.engines.torch_engine.scheduler import Limits, Scheduler
from rljob_workers.models.blob import write_blob
from rljob_workers.models.building import initial_state
from rljob_workers.models.tokenizers import build_tokenizer

_SPAWNER = multiprocessing.get_context("forkserver")
_SPAWNER.set_forkserver_preload(["rljob_workers.engines.torch_engine.server", "rljob_workers.engines.sim.server"])

DIGITS = "0123456789=+"
STEPS_AT_ONCE = 200
"""More than any generation takes that no one interrupts."""


def tiny_model(
    architecture: Architecture = Architecture.QWEN3,
    *,
    seed: int = 0,
    max_position_embeddings: int = 1024,
    alphabet: str = DIGITS,
) -> ModelSpec:
    """A model of 14 tokens whose distributions are far from uniform."""
    config = ModelConfig(
        architecture=architecture,
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        initializer_range=0.3,
        max_position_embeddings=max_position_embeddings,
        seed=seed,
        tokenizer=TokenizerConfig(alphabet=alphabet),
    )
    return ModelSpec(config=config)


def talkative_model(*, seed: int = 0) -> ModelSpec:
    """One of so many tokens that it seldom draws the one that ends: its generations are long enough to interrupt."""
    return tiny_model(seed=seed, alphabet=DIGITS + "".join(map(chr, range(0x4E00, 0x4E00 + 1000))))


def write_weights(folder: Path, model: ModelSpec, name: str = "weights") -> Path:
    """Version 0 of `model` as a safetensors file."""
    path = folder / f"{name}.safetensors"
    write_blob(path, initial_state(model, build_tokenizer(model)))
    return path


def open_listener() -> socket.socket:
    """A listening socket as the launcher holds it."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    listener.set_inheritable(True)
    return listener


def url_of(listener: socket.socket) -> str:
    """Where the engine on `listener` is reached."""
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


class HaltingScheduler(Scheduler):
    """A long generation halts on its way until it is interrupted: it cannot end before a slow test comes to that."""

    def __init__(self, geometry: Geometry, limits: Limits) -> None:
        super().__init__(geometry, limits)
        self._steps_left = STEPS_AT_ONCE

    @property
    def has_work(self) -> bool:
        return self._steps_left > 0 and super().has_work

    def step(self) -> None:
        self._steps_left -= 1
        super().step()

    def submit(self, batch: Batch) -> None:
        self._steps_left = STEPS_AT_ONCE
        super().submit(batch)

    def pause(self, mode: PauseMode) -> None:
        if mode is PauseMode.DRAIN:  # it waits for their ends
            self._steps_left = sys.maxsize
        super().pause(mode)

    def resume(self) -> None:
        self._steps_left = sys.maxsize
        super().resume()


def serve_halting(
    listener: socket.socket, model: ModelSpec, head_dtype: Dtype, incarnation: str, *, limits: Limits | None
) -> None:
    """The engine's entry, in its process, with that scheduler."""
    server.Scheduler = HaltingScheduler  # type: ignore[attr-defined]
    server.serve(listener, model, head_dtype, incarnation, limits=limits)


@contextmanager
def engine_process(
    listener: socket.socket,
    model: ModelSpec,
    incarnation: str = "0123456789ab",
    limits: Limits | None = None,
    *,
    halting: bool = False,
) -> Iterator[multiprocessing.process.BaseProcess]:
    """A server on `listener` that is killed at the end; `halting`: for generations that are to be interrupted."""
    target = serve_halting if halting else server.serve
    with process_of(target, listener, model, model.dtype, incarnation=incarnation, limits=limits) as process:
        yield process


@contextmanager
def process_of(
    target: Callable[..., None], *arguments: object, **named: object
) -> Iterator[multiprocessing.process.BaseProcess]:
    """An entry of a server in a forked process that is killed at the end."""
    process = _SPAWNER.Process(target=target, args=arguments, kwargs=named, daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()
