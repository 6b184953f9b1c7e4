"""The probe: its tokens, what counts as a difference, whom it is asked of; and which groups its outcome concerns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from rljob_api.engines import EngineTraits
from rljob_api.names import Stream, WeightVersion
from rljob_api.spec.weights import WeightSyncSpec
from rljob_api.wire.weights import Probe
from rljob_workers.models.weights import Folder, Weights, WeightSource
from rljob_workers.rollout.engine_access import RankEngine
from rljob_workers.rollout.verification import Answer, WeightProof, answer_to, bound_of, difference
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.base import Trainer
from rljob_workers.training.publishing import NUM_TOKENS, TrainerProbe, probe_tokens
from rljob_workers.transfer_queue.types import GroupRows
from tests.unit.rollout.fake_engine import FakeEngine
from tests.unit.trainers.rows import make_spec
from tests.weights import weight

PROBE = Probe(tokens=[3, 1, 2], log_probs=[-0.5, -20.0])
NAN = float("nan")


@pytest.mark.parametrize("vocabulary", [14, 257, 32_000, 151_936])
@pytest.mark.parametrize("positions", [8, 40_960])
def test_its_tokens_are_of_the_vocabulary_and_fit_the_model(vocabulary: int, positions: int) -> None:
    tokens = probe_tokens(vocabulary, positions)
    assert len(tokens) == min(NUM_TOKENS, positions // 2)
    assert set(tokens) <= set(range(vocabulary))
    assert len(set(tokens)) == min(len(tokens), vocabulary)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        pytest.param([-0.5, -20.0], None, id="the same"),
        pytest.param([-0.50009, -20.0019], None, id="within the bound, which grows with a log-prob"),
        pytest.param([-0.5002, -20.0], "1 of 2 log-probs of the probe differ, by up to 0.0002; 0.0001 is", id="beyond"),
        pytest.param([-0.7, -20.1], "2 of 2 log-probs of the probe differ, by up to 0.2;", id="the largest is told"),
        pytest.param([NAN, -21.0], "2 of 2 log-probs of the probe differ, by up to nan;", id="not a number"),
        pytest.param([-0.5], "it scored 1 tokens of 2", id="too few"),
    ],
)
def test_a_difference_is_stated_as_text(found: list[float], message: str | None) -> None:
    problem = difference(found, PROBE, 1e-4)
    assert problem is None if message is None else problem is not None and str(problem).startswith(message)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        pytest.param(
            [-0.5, -20.5],
            "the first that differs is token 3 of 3 (id 2: the engine says -20.5000, the trainer -20.0000)",
            id="one token",
        ),
        pytest.param(
            [-0.6, -20.5],
            "the first that differs is token 2 of 3 (id 1: the engine says -0.6000, the trainer -0.5000), and the one "
            "that differs most token 3 of 3 (id 2: the engine says -20.5000, the trainer -20.0000)",
            id="several",
        ),
        pytest.param([-0.5], "it scored 1 tokens of 2", id="too few"),
    ],
)
def test_a_difference_names_the_tokens(found: list[float], message: str) -> None:
    problem = difference(found, PROBE, 1e-4)
    assert problem is not None
    assert problem.where == message


@pytest.mark.parametrize(
    ("version", "found", "answer"),
    [
        pytest.param(3, [[-0.7, -20.0]], Answer.RELOAD, id="a later version is loaded once more"),
        pytest.param(3, [[-0.7, -20.0]] * 2, Answer.GIVE_UP, id="and then its process is ended"),
        pytest.param(0, [[-0.7, -20.0]], Answer.RESTART, id="of the first version another process is asked"),
        pytest.param(0, [[-0.7, -20.0]] * 2, Answer.MISMATCH, id="which says the same"),
        pytest.param(0, [[-0.7, -20.0], [-0.9, -20.0]], Answer.GIVE_UP, id="or something else: neither has taken it"),
        pytest.param(0, [[NAN, NAN], [NAN, NAN]], Answer.GIVE_UP, id="or nothing that can be compared"),
        pytest.param(0, [[-0.7], [-0.7]], Answer.MISMATCH, id="of fewer tokens, twice the same"),
    ],
)
@pytest.mark.parametrize("first", [0, 7], ids=["in the first epoch", "in one that goes on from version 7"])
def test_what_follows_when_weights_are_refuted(
    first: int, version: int, found: list[list[float]], answer: Answer
) -> None:
    problems = [problem for one in found if (problem := difference(one, PROBE, 1e-4)) is not None]
    assert len(problems) == len(found)
    assert answer_to(weight(first + version), problems, WeightVersion(first)) is answer


@pytest.mark.parametrize(
    ("verify", "scores", "dtype", "bound"),
    [
        (None, True, "float32", 1e-4),
        (None, True, "bfloat16", 5e-2),
        (None, False, "float32", None),
        ("Probe", True, "float32", 1e-4),
        ("None", True, "float32", None),
        ("None", False, "float32", None),
    ],
)
def test_who_is_held_to_which_bound(verify: str | None, scores: bool, dtype: str, bound: float | None) -> None:
    assert bound_of(spec_with(verify, dtype), EngineTraits(scores=scores)) == bound


class FixedTrainer:
    """Says the same of any row."""

    def __init__(self, *log_probs: float) -> None:
        self._log_probs = torch.tensor(log_probs)

    def score(self, *_: object, **__: object) -> Jagged:
        return Jagged.from_rows([self._log_probs])


@pytest.mark.parametrize(("second", "is_made"), [(-2.0, True), (NAN, False), (float("-inf"), False)])
def test_weights_of_which_nothing_finite_can_be_stated_have_no_probe(second: float, is_made: bool) -> None:
    trainer = cast("Trainer", FixedTrainer(-0.5, second))
    made = TrainerProbe(trainer, [3, 1, 2])()
    assert made == (Probe(tokens=[3, 1, 2], log_probs=[-0.5, -2.0]) if is_made else None)


def test_an_engine_that_cannot_score_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"weightSync\.verify: Probe needs an engine .* which Torch does not\. Set"):
        bound_of(spec_with("Probe", "float32"), EngineTraits(scores=False))


def spec_with(verify: str | None, dtype: str) -> Any:
    weights = WeightSyncSpec.model_validate({"verify": verify})
    return make_spec(dtype=dtype).model_copy(update={"weight_sync": weights})


def made_under(oldest: int, newest: int) -> list[GroupRows]:
    """A group of two samples; all of the other one's tokens are of version 0."""
    return [GroupRows(cast("Any", None), {}, [weight(0), weight(oldest)], [weight(0), weight(newest)])]


class Scorer(FakeEngine):
    """Of an engine as much as a proof asks."""

    def __init__(self) -> None:
        self.scores: list[float] = []

    async def score(self, tokens: Sequence[int], *, deadline: float) -> list[float]:
        del deadline
        assert tokens == PROBE.tokens
        return self.scores


class InPlace:
    """A rank's engine without the thread of its event loop."""

    def __init__(self, client: Scorer) -> None:
        self.client = client

    def call(self, work: Any) -> Any:
        with pytest.raises(StopIteration) as ended:
            work.send(None)
        return ended.value.value


def expected(version: int, probe: Probe | None = PROBE) -> Weights[WeightSource]:
    return Weights(weight(version), Stream.POLICY, Folder(Path("weights")), probe)


def proof_of(engine: Scorer, bound: float | None = 1e-4) -> WeightProof:
    return WeightProof(cast("RankEngine", InPlace(engine)), bound, WeightVersion(0))


def test_groups_wait_for_the_proof_of_what_made_their_tokens() -> None:
    engine = Scorer()
    proof = proof_of(engine)
    proof.expect(expected(3))
    assert [proof.awaited_by(made_under(*span)) for span in ((1, 2), (2, 3), (3, 3))] == [False, True, True]
    engine.scores = PROBE.log_probs
    assert proof.verify(0.0) is None
    assert not proof.awaited_by(made_under(2, 3))
    assert not proof.voids(made_under(2, 3), 0)


def test_what_wrong_weights_have_made_is_void_and_stays_so_when_they_are_right() -> None:
    engine = Scorer()
    proof = proof_of(engine)
    proof.expect(expected(3))
    engine.scores = [0.0, 0.0]
    assert proof.verify(0.0) is not None
    assert proof.awaited_by(made_under(3, 3))
    proof.expect(expected(3))
    engine.scores = PROBE.log_probs
    assert proof.verify(0.0) is None
    spans = ((1, 2), (2, 3), (3, 3), (2, 4), (4, 4))
    assert [proof.voids(made_under(*span), 0) for span in spans] == [False, True, True, True, False]
    assert not any(proof.voids(made_under(*span), proof.num_voided) for span in spans), "begun afterwards"


def test_what_was_made_under_a_version_that_was_never_proven_is_void() -> None:
    """A newer one came, or the engine died, before it was asked."""
    proof = proof_of(Scorer())
    proof.expect(expected(3))
    proof.expect(expected(4))
    assert proof.voids(made_under(3, 3), 0)
    assert not proof.voids(made_under(4, 4), 0)
    assert proof.awaited_by(made_under(4, 4))


@pytest.mark.parametrize(("bound", "probe"), [(None, PROBE), (1e-4, None)], ids=["not wished", "of an older trainer"])
def test_without_a_probe_nothing_waits(bound: float | None, probe: Probe | None) -> None:
    proof = proof_of(Scorer(), bound)
    proof.expect(expected(3, probe))
    assert not proof.awaited_by(made_under(3, 3))
    assert proof.verify(0.0) is None
    proof.expect(expected(4, probe))
    assert proof.num_voided == 0
