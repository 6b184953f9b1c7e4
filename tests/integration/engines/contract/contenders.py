"""The engines that the contract is for, each a real server that a test may pause, kill and start again.

The torch engine, the simulated one, the real SGLang on this machine, and whatever serves at RLJOB_ENGINE_URL, which
no one here may kill: a real SGLang whose model folder (`--model-path`, with its weights) is on this machine.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from _pytest.mark import ParameterSet

from rljob_api.spec.model import Dtype, ModelSpec
from rljob_api.spec.simulation import SimulatedCost, SimulationSpec
from rljob_workers.engines.backend import EngineSettings, EngineSite
from rljob_workers.engines.base import Engine
from rljob_workers.engines.sglang.sglang_client import SglangEngine
from rljob_workers.engines.sim import server as simulated
from rljob_workers.engines.torch_engine.torch_client import TorchEngineClient
from tests.integration.engines.engine_process import (
    engine_process,
    open_listener,
    process_of,
    talkative_model,
    url_of,
)
from tests.integration.engines.sglang_forks import Start, sglang_forks

LIVE_URL = "RLJOB_ENGINE_URL"
_PATIENCE = 240


class Contender(ABC):
    """One server, and how its clients are made."""

    url: str
    seeds: bool
    """Whether it is started so that a seed fixes a sample."""
    caches: bool = True
    """Whether what it cached under earlier weights changes what it draws."""
    crowd: int = 3
    """So many long samples keep it busy for seconds."""

    @abstractmethod
    def client(self) -> Engine:
        """A client of its own for each test."""

    @abstractmethod
    def num_samples(self) -> int:
        """Samples that run, stand still or wait in it."""

    def start(self) -> None:
        """An incarnation, from its first answer on."""
        pytest.skip("nobody here may start or kill it")

    def kill(self) -> None:
        """SIGKILL of the server, and no one serves when it returns."""
        pytest.skip("nobody here may start or kill it")

    def kill_scheduler(self) -> None:
        """SIGKILL of the process that computes."""
        self.kill()

    def ensure(self) -> None:
        """It lives, whatever the test before has done to it."""
        return

    def close(self) -> None:
        """Nothing of it is left."""
        return

    def wait(self) -> None:
        """Until it answers."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            with contextlib.suppress(httpx.TransportError):
                httpx.get(f"{self.url}/get_model_info", timeout=_PATIENCE).raise_for_status()
                return
            assert time.monotonic() < deadline, f"the engine at {self.url} did not answer for {_PATIENCE} s"
            time.sleep(0.05)

    def pause(self) -> None:
        """As another client would, beside the one of a test."""
        httpx.post(f"{self.url}/pause_generation", json={"mode": "retract"}, timeout=60).raise_for_status()

    def unpause(self) -> None:
        """The end of it."""
        httpx.post(f"{self.url}/continue_generation", json={}, timeout=60).raise_for_status()


class TorchContender(Contender):
    """Our own, forked from a preloaded process."""

    seeds = True
    crowd = 96

    def __init__(self, folder: Path, model: ModelSpec | None = None) -> None:
        del folder
        self._model = model or talkative_model()
        self._listener = open_listener()
        self.url = url_of(self._listener)
        self._incarnations = contextlib.ExitStack()
        self.start()

    def client(self) -> Engine:
        return TorchEngineClient(self.url)

    def num_samples(self) -> int:
        info = httpx.get(f"{self.url}/get_server_info", timeout=60).json()
        return int(info["num_running_reqs"]) + int(info.get("num_waiting_reqs", 0))

    def start(self) -> None:
        incarnation = engine_process(self._listener, self._model, secrets.token_hex(6))
        self._process = self._incarnations.enter_context(incarnation)
        self.wait()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def ensure(self) -> None:
        if not self._process.is_alive():
            self.start()

    def close(self) -> None:
        self._incarnations.close()
        self._listener.close()


class SimContender(TorchContender):
    """Ours that computes nothing, at a pace at which a test can come between two tokens."""

    caches = False

    def start(self) -> None:
        simulation = SimulationSpec(generation=SimulatedCost(seconds_per_token=0.004))
        target = functools.partial(simulated.serve, simulation=simulation)
        incarnation = process_of(target, self._listener, self._model, incarnation=secrets.token_hex(6))
        self._process = self._incarnations.enter_context(incarnation)
        self.wait()


class SglangContender(Contender):
    """The real one, on this machine's CPU."""

    seeds = True

    def __init__(self, folder: Path, model: ModelSpec | None = None) -> None:
        self._folder = folder
        self._model = model or talkative_model()
        self._listener = open_listener()
        self.url = url_of(self._listener)
        # Names of sockets are short, and folders of tests are not.
        self._own = Path("/dev/shm", f"rljob-test-{os.getpid()}-{secrets.token_hex(3)}")
        self.start()

    def client(self) -> Engine:
        return SglangEngine(self.url, self._identity)

    def num_samples(self) -> int:
        return _load_of(self.url)

    def start(self) -> None:
        self.begin()
        self.wait()

    def begin(self) -> None:
        """An incarnation, from its fork on."""
        site = EngineSite(self._listener.getsockname()[1], (), self._own)
        settings = EngineSettings(self._model, Dtype.FLOAT32, threads=1)
        incarnation = Start(settings, site, secrets.token_hex(6), self._identity, self.log)
        self.pid = sglang_forks().start(incarnation, self._listener)

    @property
    def log(self) -> Path:
        return self._folder / "engine.log"

    @property
    def _identity(self) -> Path:
        return self._folder / "engine.json"

    def children(self) -> list[int]:
        """Scheduler and detokenizer, in the order in which they were made."""
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.await_end()

    def kill_scheduler(self) -> None:
        os.kill(self.children()[0], signal.SIGKILL)

    def await_end(self) -> None:
        """Until the server has gone, by whatever hand."""
        deadline = time.monotonic() + _PATIENCE
        while self.is_alive():
            assert time.monotonic() < deadline, f"SGLang's process {self.pid} did not end"
            time.sleep(0.02)

    def is_alive(self) -> bool:
        return Path(f"/proc/{self.pid}").exists()

    def ensure(self) -> None:
        if not self.is_alive():
            self.start()

    def close(self) -> None:
        self.kill()
        self._listener.close()
        shutil.rmtree(self._own, ignore_errors=True)


class LiveContender(Contender):
    """At RLJOB_ENGINE_URL."""

    def __init__(self, folder: Path) -> None:
        del folder
        self.url = os.environ[LIVE_URL].rstrip("/")
        self.seeds = bool(httpx.get(f"{self.url}/server_info", timeout=60).json()["enable_deterministic_inference"])

    def client(self) -> Engine:
        return SglangEngine(self.url, None)

    def num_samples(self) -> int:
        return _load_of(self.url)


def _load_of(url: str) -> int:
    load = httpx.get(f"{url}/v1/loads", timeout=60).json()["loads"][0]
    return int(load["num_running_reqs"]) + int(load["num_waiting_reqs"])


KINDS: dict[str, Callable[[Path], Contender]] = {
    "torch": TorchContender,
    "sim": SimContender,
    "sglang": SglangContender,
}


def kinds() -> Iterator[ParameterSet]:
    """Those of this run: a live server is tested alone. What the simulated one has beside the torch engine's code is
    small: `tests/unit/simulation` has that, and jobs of `tests/integration/run` drive it."""
    for kind in ["live"] if LIVE_URL in os.environ else KINDS:
        yield pytest.param(kind, marks=pytest.mark.long if kind == "sim" else ())


def make(kind: str, folder: Path) -> Contender:
    """A server that answers."""
    return LiveContender(folder) if kind == "live" else KINDS[kind](folder)
