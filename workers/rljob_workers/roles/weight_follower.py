"""Keeps an engine current: stages every new version while the engine generates, then swaps it in.

One thread beside the rollout loop. A failed swap leaves the engine without weights; the follower loads them again.
An engine that came back empty is noticed here too, and loaded from the blob at hand.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rljob_api.wire.identity import WeightId
from rljob_api.wire.weights import Stream
from rljob_workers.dcs.weights.base import StagedWeights, WeightReceiver
from rljob_workers.engines.base import Engine
from rljob_workers.engines.errors import EngineError
from rljob_workers.telemetry.timeline import Timeline

POLL_SECONDS = 0.5
"""How soon an engine that lost its weights is noticed."""


class WeightFollower:
    """Owns the engine's weights. `held` is what generation may count on; None while the engine has nothing."""

    def __init__(
        self,
        receiver: WeightReceiver,
        engine: Engine,
        timeline: Timeline,
        *,
        on_change: Callable[[], None],
        timeout_seconds: float,
    ) -> None:
        """`on_change` is called from the follower's thread after every change of `held` and at its end."""
        self._receiver = receiver
        self._engine = engine
        self._timeline = timeline
        self._on_change = on_change
        self._timeout = timeout_seconds
        self._staged: StagedWeights | None = None
        self._stop = threading.Event()
        self._empty_since: float | None = None
        self.held: WeightId | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="weight-follower", daemon=True)

    def start(self) -> None:
        """Begins with the newest published version."""
        self._thread.start()

    def stop(self) -> None:
        """Ends after the turn in work."""
        self._stop.set()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._turn()
        except BaseException as error:  # carried to the main loop, which raises it
            self.error = error
            self._on_change()

    def _turn(self) -> None:
        than = self._staged.weight if self._staged else None
        newer = self._receiver.await_newer(Stream.POLICY, than, deadline=time.monotonic() + POLL_SECONDS)
        if newer is not None:
            self._staged = newer
        if self._staged is None:
            return
        if newer is not None or not self._engine_has(self._staged.weight):
            self._load(self._staged)

    def _engine_has(self, weight: WeightId) -> bool:
        try:
            return self._engine.held() == weight
        except EngineError:
            return False

    def _load(self, staged: StagedWeights) -> None:
        try:
            with self._timeline.span("swap", row=1, version=staged.weight.version):
                self._engine.update_weights(staged.path, staged.weight, deadline=time.monotonic() + self._timeout)
        except EngineError:
            self._wait_for_engine()
            return
        self._empty_since = None
        self._change(staged.weight)

    def _wait_for_engine(self) -> None:
        """The launcher brings a dead engine back; until then nothing is held. Gives up, by name, after the timeout."""
        self._change(None)
        now = time.monotonic()
        self._empty_since = self._empty_since or now
        if now - self._empty_since > self._timeout:
            raise TimeoutError(
                f"rollout: the engine took no weights for {self._timeout:.0f} s (weightSync.timeoutSeconds); "
                "its log says why."
            )
        self._stop.wait(0.05)

    def _change(self, weight: WeightId | None) -> None:
        if weight != self.held:
            self.held = weight
            self._on_change()
