"""What the follower bears of its engine, and what it gives up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljob_api.names import Lineage, Stream, WeightVersion
from rljob_api.spec.weights import Interruption
from rljob_api.wire.identity import WeightId
from rljob_api.wire.weights import Probe
from rljob_workers.dcs.membership.news import NewsQueue
from rljob_workers.dcs.weights.transport import WeightReceiver
from rljob_workers.engines.base import EngineError, EngineGone, EngineRefused, EngineTimeout
from rljob_workers.models.weights import Folder, Weights, WeightSource
from rljob_workers.rollout.engine_sync import WeightFollower
from rljob_workers.rollout.verification import EngineMismatch, WeightProof, WrongWeights
from rljob_workers.telemetry.timeline import Timeline
from tests.unit.rollout.fake_engine import FakeEngine, FakeRankEngine

STAGED: Weights[WeightSource] = Weights(
    WeightId(lineage=Lineage(1), version=WeightVersion(3)),
    Stream.POLICY,
    Folder(Path("weights")),
    Probe(tokens=[1, 2], log_probs=[-1.0]),
)
PATIENCE_SECONDS = 60.0


class OneWeight(WeightReceiver):
    """One weight, at once; never a newer one."""

    def __init__(self, staged: Weights[WeightSource]) -> None:
        self._staged: Weights[WeightSource] | None = staged

    def await_newer(self, *_: Any, deadline: float, **__: Any) -> Weights[WeightSource] | None:
        staged, self._staged = self._staged, None
        if staged is not None:
            return staged
        time.sleep(min(0.01, max(0.0, deadline - time.monotonic())))
        return None

    def close(self) -> None:
        return


class MovedEngine(FakeEngine):
    """Takes weights after it has met each of `errors`; what it scores at first may be another weight's."""

    def __init__(
        self, errors: Sequence[EngineError], scores: Sequence[float] = (), aborts: EngineError | None = None
    ) -> None:
        self._errors = list(errors)
        self._scores = list(scores)
        self._aborts = aborts
        self._held: WeightId | None = None

    async def update_weights(
        self, weights: Weights[WeightSource], interruption: Interruption, *, deadline: float
    ) -> None:
        if self._errors:
            raise self._errors.pop(0)
        self._held = weights.id

    async def score(self, tokens: Sequence[int], *, deadline: float) -> list[float]:
        return [self._scores.pop(0) if self._scores else -1.0]

    async def held(self) -> WeightId | None:
        return self._held

    async def abort_all(self) -> None:
        if self._aborts is not None:
            raise self._aborts

    async def close(self) -> None:
        return

    @property
    def scores(self) -> list[float]:
        """Those that it has not given yet."""
        return self._scores


@contextmanager
def following(
    engine: MovedEngine,
    tmp_path: Path,
    *,
    timeout_seconds: float,
    await_up: Callable[[], bool] = lambda: True,
    staged: Weights[WeightSource] = STAGED,
) -> Iterator[tuple[WeightFollower, FakeRankEngine]]:
    with (
        closing(FakeRankEngine(engine, await_up)) as rank_engine,
        closing(Timeline(tmp_path / "timeline.jsonl", "rollout-0.0")) as timeline,
    ):
        follower = WeightFollower(
            OneWeight(staged),
            rank_engine,
            timeline,
            WeightProof(rank_engine, 0.1, RESUMED.id.version if staged is RESUMED else WeightVersion(0)),
            NewsQueue(),
            interruption=Interruption.RETRACT,
            on_change=lambda: None,
            timeout_seconds=timeout_seconds,
        )
        follower.start()
        try:
            yield follower, rank_engine
        finally:
            follower.stop()
            for thread in threading.enumerate():
                if thread.name == "weight-follower":
                    thread.join(PATIENCE_SECONDS)


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_time_in_which_a_dead_engine_starts_is_not_that_of_an_update(tmp_path: Path) -> None:
    timeout = 0.5

    def await_up() -> bool:
        time.sleep(2 * timeout)
        return True

    engine = MovedEngine([EngineGone("killed"), EngineGone("not there yet")])
    with following(engine, tmp_path, timeout_seconds=timeout, await_up=await_up) as (follower, _):
        wait_for(lambda: follower.held or follower.error)
        assert (follower.held, follower.error) == (STAGED.id, None)


def test_an_engine_that_is_up_and_takes_no_weights_is_given_up_by_name(tmp_path: Path) -> None:
    engine = MovedEngine([EngineRefused("no room")] * 1000)
    with following(engine, tmp_path, timeout_seconds=0.2) as (follower, rank):
        wait_for(lambda: follower.error)
        assert "the engine took no weights for 0 s (weightSync.timeoutSeconds)" in str(follower.error)
        assert rank.ended == 1, "it outlives its rank, and would take none from the next one"


def test_an_engine_that_does_not_come_up_ends_the_rank_with_its_sentence(tmp_path: Path) -> None:
    def never_up() -> bool:
        raise EngineTimeout("The engine has not answered for 60 s.")

    with following(MovedEngine([EngineGone("killed")]), tmp_path, timeout_seconds=60, await_up=never_up) as (
        follower,
        _,
    ):
        wait_for(lambda: follower.error)
        assert str(follower.error) == "The engine has not answered for 60 s."


@pytest.mark.parametrize("error", [EngineGone("killed"), EngineTimeout("no answer"), EngineRefused("not paused")])
def test_an_engine_that_does_not_drop_what_wrong_weights_have_made_is_ended(tmp_path: Path, error: EngineError) -> None:
    engine = MovedEngine([], scores=[-7.0], aborts=error)
    with following(engine, tmp_path, timeout_seconds=60) as (follower, rank):
        wait_for(lambda: rank.ended or follower.error)
        wait_for(lambda: follower.held or follower.error)
        assert (follower.held, follower.error, rank.ended) == (STAGED.id, None, 1)
        assert "has other weights" in follower._news.get_nowait().sentence
        assert follower._news.empty()


RESUMED = replace(STAGED, id=WeightId(lineage=Lineage(2), version=WeightVersion(7)))
FIRST = replace(STAGED, id=WeightId(lineage=Lineage(1), version=WeightVersion(0)))


@pytest.mark.parametrize(
    ("staged", "scores", "ended", "error", "news"),
    [
        pytest.param(STAGED, [-7.0, -7.0], 1, WrongWeights, 1, id="a server that lies twice is ended"),
        pytest.param(STAGED, [-7.0], 0, None, 1, id="one that lies once is believed again"),
        pytest.param(FIRST, [-7.0, -7.0], 1, EngineMismatch, 0, id="two processes compute version 0 otherwise"),
        pytest.param(FIRST, [-7.0, -9.0], 2, WrongWeights, 0, id="two processes have dropped it"),
        pytest.param(FIRST, [-7.0], 1, None, 1, id="the next process has taken it"),
        pytest.param(RESUMED, [-7.0, -7.0], 1, EngineMismatch, 0, id="two compute the version that a job goes on from"),
    ],
)
def test_an_engine_with_other_weights(
    tmp_path: Path,
    staged: Weights[WeightSource],
    scores: list[float],
    ended: int,
    error: type[Exception] | None,
    news: int,
) -> None:
    engine = MovedEngine([], scores=scores)
    with following(engine, tmp_path, timeout_seconds=60, staged=staged) as (follower, rank):
        # The engine holds the version between its last score and the error that the score is the cause of.
        wait_for(lambda: follower.error or (error is None and follower.held and not engine.scores))
        wait_for(lambda: follower.error or news == follower._news.qsize())
        assert type(follower.error) is (type(None) if error is None else error)
        assert (rank.ended, follower._news.qsize()) == (ended, news)


def test_a_mismatch_states_how_far_where_and_what_to_change(tmp_path: Path) -> None:
    with following(MovedEngine([], scores=[-7.0] * 2), tmp_path, timeout_seconds=60, staged=FIRST) as (follower, _):
        wait_for(lambda: follower.error)
        message = str(follower.error)
    for part in (
        "compute version 0 of the model differently: 1 of 1 log-probs of the probe differ, by up to 6; 0.1 is allowed",
        "token 2 of 2 (id 2: the engine says -7.0000, the trainer -1.0000)",
        "Set roles.rollout.engine.kind",
        "weightSync.verify to None",
    ):
        assert part in message
