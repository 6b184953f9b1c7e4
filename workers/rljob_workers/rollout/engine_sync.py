"""Keeps an engine current: stages every new version while the engine generates, then swaps it in and verifies it.

One thread beside the rollout loop, since a receiver blocks. A failed swap leaves the engine without weights, which are
loaded again; wrong weights are loaded once more, in full. An engine that is given up is ended first: its process
outlives its ranks, and would do the same to the next one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from rljob_api.names import Stream
from rljob_api.spec.weights import Interruption
from rljob_api.wire.identity import WeightId
from rljob_api.wire.ranks import NoticeKind
from rljob_workers.dcs.membership.news import News, NewsQueue
from rljob_workers.dcs.weights.transport import WeightReceiver
from rljob_workers.engines.base import EngineError, EngineTimeout
from rljob_workers.models.weights import Weights, WeightSource
from rljob_workers.rollout.engine_access import RankEngine, watched
from rljob_workers.rollout.verification import Answer, EngineMismatch, Refutation, WeightProof, WrongWeights
from rljob_workers.telemetry.timeline import Timeline

_log = logging.getLogger(__name__)


LONGEST_DRAIN_SECONDS = 7 * 86400.0
"""No sample takes that long; one that makes no token ends a drain long before."""


POLL_SECONDS = 0.5
"""How soon an engine that lost its weights is noticed."""


class WeightFollower:
    """Owns the engine's weights. `held` is what generation may count on; None while the engine has nothing."""

    def __init__(
        self,
        receiver: WeightReceiver,
        engine: RankEngine,
        timeline: Timeline,
        proof: WeightProof,
        news: NewsQueue,
        *,
        interruption: Interruption,
        on_change: Callable[[], None],
        timeout_seconds: float,
    ) -> None:
        """`on_change` is called from the follower's thread after every change of `held` and at its end.

        `news` gets what was found wrong.
        """
        self._receiver = receiver
        self._engine = engine
        self._interruption = interruption
        self._timeline = timeline
        self._proof = proof
        self._news = news
        self._on_change = on_change
        self._timeout = timeout_seconds
        self._newest: Weights[WeightSource] | None = None
        self._stop = threading.Event()
        self._empty_since: float | None = None
        self._restarted_for: Refutation | None = None
        """Becomes news once the next incarnation of the engine is known to have the weights."""
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
        than = self._newest.id if self._newest else None
        newer = self._receiver.await_newer(Stream.POLICY, than, deadline=time.monotonic() + POLL_SECONDS)
        if newer is not None:
            self._newest = newer
        if self._newest is None:
            return
        if newer is not None or self.held is None or not self._engine_has(self._newest.id):
            self._load(self._newest)

    def _engine_has(self, weight: WeightId) -> bool:
        try:
            return self._engine.call(self._engine.client.held()) == weight
        except EngineError:
            return False

    def _load(self, weights: Weights[WeightSource]) -> None:
        drains = self._interruption is Interruption.DRAIN
        self._proof.expect(weights)
        try:
            with self._timeline.span("swap", row=1, version=weights.id.version):
                self._engine.call(self._drain_and_update(weights) if drains else self._update(weights))
            self._change(weights.id)  # generation goes on while the proof is made: what it makes waits for it
            refuted = self._proof.verify(time.monotonic() + self._timeout)
        except EngineError as error:
            if isinstance(error, EngineTimeout):
                self._engine.end(str(error))
            self._wait_for_engine()
            return
        self._empty_since = None
        if refuted is not None:
            self._replace_weights(refuted)
            return
        if self._restarted_for is not None:
            self._report(f"{self._restarted_for} It was ended, and its next life has them.")
            self._restarted_for = None
        self._on_change()

    def _report(self, sentence: str) -> None:
        _log.warning(sentence)
        self._news.put(News(NoticeKind.WRONG_WEIGHTS, sentence))

    async def _update(self, weights: Weights[WeightSource]) -> None:
        deadline = time.monotonic() + self._timeout
        with self._engine.progress.paused():
            await self._engine.client.update_weights(weights, self._interruption, deadline=deadline)

    async def _drain_and_update(self, weights: Weights[WeightSource]) -> None:
        """Time counts from the last token: the samples that are waited for take as long as they take.

        The engine counts as paused, as in any update: when it has drained, a load makes no token either.
        """
        began = time.monotonic()
        update = self._engine.client.update_weights(weights, self._interruption, deadline=began + LONGEST_DRAIN_SECONDS)

        def check() -> None:
            if time.monotonic() - max(began, self._engine.progress.last_progress) > self._timeout:
                raise EngineTimeout(
                    f"the engine neither made a token nor took weights for {self._timeout:.0f} s while it drained "
                    "(weightSync.timeoutSeconds)."
                )

        with self._engine.progress.paused():
            await watched(update, check, every=POLL_SECONDS)

    def _replace_weights(self, refuted: Refutation) -> None:
        """Nothing that the engine has made under this version counts; the next turn loads it again, once."""
        self._change(None)
        match refuted.answer:
            case Answer.RELOAD:
                self._report(f"{refuted} It is loaded anew, and what it made meanwhile is drawn again.")
                self._on_change()
                self._empty_engine()
            case Answer.RESTART:
                self._restarted_for = refuted
                self._engine.end(str(refuted))
            case Answer.MISMATCH:
                raise EngineMismatch(
                    f"Engine and trainer compute version {refuted.weight.version} of the model differently: "
                    f"{refuted.problem}; {refuted.problem.where}. Two processes of the engine have said so: a restart "
                    "does not help. Set roles.rollout.engine.kind to an engine that knows all that the model's config "
                    "says (a sliding window, a rope scaling), change what the model's config or "
                    "roles.rollout.engine.args ask for, or set weightSync.verify to None and train on samples of "
                    "another distribution."
                )
            case Answer.GIVE_UP:
                self._engine.end(str(refuted))
                raise WrongWeights(
                    f"{refuted} It was loaded anew in vain (weightSync.verify), and its process is ended. Its log "
                    "says what it took."
                )

    def _empty_engine(self) -> None:
        try:
            self._engine.call(self._engine.client.abort_all())
        except EngineError as error:
            self._engine.end(str(error))  # its next incarnation has nothing of what the wrong weights have made

    def _wait_for_engine(self) -> None:
        """Nothing is held meanwhile. One that is up and takes no weights is given up, by name, after the timeout.

        The launcher brings a dead engine back: a start has a time of its own, which does not count here.
        """
        self._change(None)
        began = time.monotonic()
        if not self._engine.await_up():
            return
        now = time.monotonic()
        self._empty_since = now if self._empty_since is None else self._empty_since + now - began
        if now - self._empty_since > self._timeout:
            why = f"the engine took no weights for {self._timeout:.0f} s (weightSync.timeoutSeconds)"
            self._engine.end(why)
            raise TimeoutError(f"rollout: {why}; its log says why.")
        self._stop.wait(0.05)

    def _change(self, weight: WeightId | None) -> None:
        if weight != self.held:
            self.held = weight
            self._on_change()
