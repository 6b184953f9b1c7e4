"""The simulated engine's scheduler: each token has the log-prob of its weights, whatever runs beside its sample."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from rljob_api.spec.simulation import SimulatedCost, SimulatedLengths
from rljob_workers.engines.sim.server import Ends, SimScheduler
from rljob_workers.engines.torch_engine.continuous_batching import Room
from rljob_workers.engines.torch_engine.requests import Batch, EndReason, PauseMode
from rljob_workers.simulation.pace import SimulatedPace
from rljob_workers.simulation.policy import Uints, fingerprint, log_probs, places, response_lengths, version_0
from tests.unit.engines.tiny_models import FIRST, SECOND, make_batch, make_group, outputs, run

VOCAB = 29


class Clock:
    now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def make(clock: Clock | None = None, ends: Ends | None = None, **cost: float) -> SimScheduler:
    clock = clock or Clock()
    pace = SimulatedPace(SimulatedCost(**cost), 1.0, clock=lambda: clock.now, sleep=clock.sleep)
    scheduler = SimScheduler(Room(VOCAB, 512, max_running_samples=8, max_cells=sys.maxsize), pace, ends)
    scheduler.install(version_0(1), FIRST)
    return scheduler


def expected(weights: Uints, prompt: list[int], output: list[int], temperature: float = 1.0) -> np.ndarray:
    row = np.array([*prompt, *output])
    at = np.arange(len(prompt), len(row))
    found = places(fingerprint(weights), row[at - 1], at - 1, VOCAB)
    return log_probs(found, row[at], np.full(len(at), temperature))


def test_samples_of_a_crowd_have_the_log_probs_of_their_tokens_and_are_those_that_they_are_alone() -> None:
    groups = [
        make_group(
            [1 + index, 2, 3][: 1 + index % 3],
            num_samples=4,
            seed=10 * index,
            max_new_tokens=5 + index,
            temperature=0.8,
        )
        for index in range(6)
    ]
    together = make_batch(*groups)
    run(make(), together)
    for index, group in enumerate(groups):
        alone = make_batch(group)
        run(make(), alone)
        rows = range(together.first_rows[index], together.first_rows[index + 1])
        assert [outputs(together)[row] for row in rows] == outputs(alone)
        for row in rows:
            output = outputs(together)[row]
            found = together.log_probs[row, : len(output)]
            np.testing.assert_allclose(found, expected(version_0(1), list(group.prompt), output, 0.8), atol=1e-5)


def test_score_is_the_log_prob_of_each_token_after_the_first() -> None:
    tokens = [5, 3, 3, 28, 0, 11]
    np.testing.assert_allclose(make().score(tokens), expected(version_0(1), tokens[:1], tokens[1:]))


def test_a_stop_token_ends_a_sample() -> None:
    whole = make_batch(make_group([1], max_new_tokens=30))
    run(make(), whole)
    stop = outputs(whole)[0][9]
    batch = make_batch(make_group([1], max_new_tokens=30, stop_token_ids=frozenset({stop})))
    run(make(), batch)
    assert outputs(batch)[0] == outputs(whole)[0][: outputs(whole)[0].index(stop) + 1]
    assert batch.reasons.tolist() == [EndReason.STOP]


def test_samples_end_at_their_own_lengths_and_have_the_log_probs_of_the_policy() -> None:
    seeds = np.arange(40, 56, dtype=np.uint64)
    wanted = np.minimum(30, response_lengths(seeds, 12, 1.0))
    batch = make_batch(make_group([1, 2], num_samples=16, seed=40, max_new_tokens=30, stop_token_ids=frozenset({7})))
    run(make(ends=Ends(SimulatedLengths(mean=12), 7)), batch)
    assert max(wanted) == 30 > min(wanted)
    assert batch.lengths.tolist() == wanted.tolist()
    for row, output in enumerate(outputs(batch)):
        cut = response_lengths(seeds, 12, 1.0)[row] > 30
        assert output.count(7) == (not cut)
        assert batch.reasons[row] == (EndReason.LENGTH if cut else EndReason.STOP)
        np.testing.assert_allclose(
            batch.log_probs[row, : len(output)], expected(version_0(1), [1, 2], output), atol=1e-5
        )


@pytest.mark.parametrize(
    ("mode", "seconds"),
    [
        pytest.param(PauseMode.RETRACT, 4.0, id="retracted samples take their rows' time again"),
        pytest.param(PauseMode.IN_PLACE, 0.0, id="samples that stay in place do not"),
    ],
)
def test_an_update_changes_the_tokens_that_follow_and_costs_what_its_mode_costs(
    mode: PauseMode, seconds: float
) -> None:
    clock = Clock()
    scheduler = make(clock, seconds_per_token=1, seconds_per_row=2)
    batch = make_batch(make_group([1, 2], num_samples=2, max_new_tokens=10))
    scheduler.submit(batch)
    for _ in range(3):
        scheduler.step()
    assert clock.now == pytest.approx(2 * 2 + 3)  # the first step draws two tokens: the prompt's, and one more
    scheduler.pause(mode)
    assert not scheduler.has_work
    install = scheduler.install_in_place if mode is PauseMode.IN_PLACE else scheduler.install
    install(version_0(2), SECOND)
    scheduler.resume()
    while scheduler.has_work:
        scheduler.step()
    assert clock.now == pytest.approx(2 * 2 + 9 + seconds, abs=0.05)
    for row, spans in enumerate(batch.spans()):
        assert [(span.weight, span.start, span.end) for span in spans] == [(FIRST, 0, 4), (SECOND, 4, 10)]
        output = outputs(batch)[row]
        both = [expected(version_0(seed), [1, 2], output) for seed in (1, 2)]
        wanted = np.concatenate([both[0][:4], both[1][4:]])
        np.testing.assert_allclose(batch.log_probs[row, :10], wanted, atol=1e-5)


def test_aborted_samples_keep_their_tokens_and_others_go_on() -> None:
    scheduler = make()
    groups = [make_group([1], rid="a", max_new_tokens=9), make_group([2], rid="b", max_new_tokens=9)]
    batches = [make_batch(group) for group in groups]
    for batch in batches:
        scheduler.submit(batch)
    scheduler.step()
    scheduler.abort(lambda group: group.rid == "a")
    while scheduler.has_work:
        scheduler.step()
    assert [len(outputs(batch)[0]) for batch in batches] == [2, 9]
    assert batches[0].reasons.tolist() == [EndReason.ABORT]
    alone: Batch = make_batch(groups[1])
    run(make(), alone)
    assert outputs(batches[1]) == outputs(alone)
