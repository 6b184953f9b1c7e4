"""A simulated policy: its log-probs are a distribution, tokens are drawn from it, and weights are distinguished."""

import numpy as np
import pytest

from rljob_workers.simulation.policy import NextTokens, SamplingChoice, drawn, log_probs, places, response_lengths

VOCAB = 7


def everywhere(at: NextTokens) -> np.ndarray:
    """[places, VOCAB]: the log-prob of each token."""
    count = len(at.liked)
    columns = [log_probs(at, np.full(count, token), np.ones(count)) for token in range(VOCAB)]
    return np.stack(columns, axis=1)


def some_places(count: int, fingerprint: int = 5) -> NextTokens:
    return places(np.uint64(fingerprint), np.arange(count) % VOCAB, np.arange(count), VOCAB)


def choice(count: int, **changes: float) -> SamplingChoice:
    given = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, **changes}
    chance = (np.arange(count) + 0.5) / count
    return SamplingChoice(
        np.full(count, given["temperature"]),
        np.full(count, given["top_p"]),
        np.full(count, int(given["top_k"])),
        np.full(count, given["min_p"]),
        chance,
    )


def test_probabilities_of_all_tokens_are_1_together() -> None:
    np.testing.assert_allclose(np.exp(everywhere(some_places(50))).sum(axis=1), 1.0)


def test_other_weights_are_seen_in_every_log_prob() -> None:
    assert (np.abs(everywhere(some_places(50, 5)) - everywhere(some_places(50, 6))) > 1e-4).all()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_as_often_as_their_log_probs_state(temperature: float) -> None:
    count = 20_000
    one = some_places(1)
    at = NextTokens(np.repeat(one.liked, count), np.repeat(one.logits, count), VOCAB)
    tokens = drawn(at, choice(count, temperature=temperature))
    for token in range(VOCAB):
        expected = np.exp(log_probs(one, np.array([token]), np.array([temperature])))[0]
        assert abs((tokens == token).mean() - expected) < 1e-3


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"temperature": 0.0}, {3}, id="greedy"),
        pytest.param({"top_k": 1}, {3}, id="the likeliest token alone"),
        pytest.param({"top_k": 4}, {0, 1, 2, 3}, id="four tokens: of those that are alike the lowest"),
        pytest.param({"top_p": 0.1}, {3}, id="a nucleus that the likeliest token fills"),
        pytest.param({"top_p": 0.81}, {0, 1, 2, 3}, id="a nucleus: 0.625, and three of 0.0625 each"),
        pytest.param({"top_p": 0.81, "top_k": 2}, {0, 3}, id="the smaller set of both"),
        pytest.param({}, set(range(7)), id="all tokens"),
    ],
)
def test_top_k_and_top_p_choose_among_tokens(changes: dict[str, float], expected: set[int]) -> None:
    count = 1000
    at = NextTokens(np.full(count, 3), np.full(count, np.log(10.0)), VOCAB)
    assert set(drawn(at, choice(count, **changes)).tolist()) == expected


def test_lengths_are_log_normal() -> None:
    lengths = response_lengths(np.arange(200_000, dtype=np.uint64), 64, 1.0)
    assert lengths.min() >= 1
    assert lengths.mean() == pytest.approx(64, rel=0.02)
    assert (np.log(lengths) < np.log(64) - 0.5).mean() == pytest.approx(0.5, abs=0.01)
    shares = [(lengths > np.exp(np.log(64) - 0.5 + z)).mean() for z in (1, 2)]
    assert shares == pytest.approx([0.1587, 0.0228], abs=0.003)


def test_lengths_without_deviation_are_the_mean() -> None:
    assert set(response_lengths(np.arange(9, dtype=np.uint64), 64, 0.0)) == {64}
