"""Tickets become requests that only the ticket decides, and answers become the rows of whole groups."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from rljob_api.names import Lineage, RolloutId, WeightVersion
from rljob_api.wire.identity import WeightId
from rljob_workers.data.base import Prompt, PromptSource
from rljob_workers.engines.base import Engine, Generation, Sample, SamplingParams, VersionSpan
from rljob_workers.rewards.base import Answer
from rljob_workers.rewards.errors import RewardError, RewardFailed, RewardRefused, RewardTimeout
from rljob_workers.roles import tasks
from rljob_workers.roles.stages.generate import GenerateConfig, GenerateStage, sampling_seed
from rljob_workers.transfer_queue.types import GroupRows, Ticket

CONFIG = GenerateConfig(
    job_seed=7,
    samples_per_prompt=2,
    temperature=0.5,
    top_p=0.9,
    top_k=4,
    max_new_tokens=6,
    max_tokens=10,
    stop_token_ids=(1,),
    timeout_seconds=30,
)
TICKET = Ticket(id=11, rollout_id=RolloutId(3), group=2, attempt=0, prompt_index=4, alone=False)


def weight(version: int) -> WeightId:
    return WeightId(lineage=Lineage(1), version=WeightVersion(version))


class CountingSource(PromptSource):
    """Prompt i has i tokens, all of them i."""

    def __len__(self) -> int:
        return 100

    def at(self, index: int) -> Prompt:
        return Prompt(index, f"p{index}", (index,) * index, label=f"l{index}")


class SwappedOnceEngine(Engine):
    """Answers with as many tokens as the number of the sample; the weights changed after the first token."""

    def __init__(self) -> None:
        self.params: list[SamplingParams] = []

    def generate(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], *, deadline: float
    ) -> list[Generation]:
        self.params += params
        return [
            Generation(tuple(self._sample(prompt[0], number) for number in range(1, 1 + param.num_samples)))
            for prompt, param in zip(prompts, params, strict=True)
        ]

    def update_weights(self, blob: Path, weight: WeightId, *, deadline: float) -> None:
        raise NotImplementedError

    def held(self) -> WeightId | None:
        return weight(3)

    def max_tokens(self) -> int:
        return CONFIG.max_tokens

    def abort_all(self) -> None:
        raise NotImplementedError

    def _sample(self, token: int, length: int) -> Sample:
        spans = (VersionSpan(weight(2), 0, 1), VersionSpan(weight(3), 1, length))
        return Sample([10 * token] * length, [-0.5 * length] * length, "stop", spans[: 1 if length == 1 else 2])


class RememberingReward:
    """An answer is worth its index."""

    def __init__(self) -> None:
        self.groups: list[list[Answer]] = []

    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> list[list[float]]:
        self.groups += [list(group) for group in groups]
        return [[float(answer.index) for answer in group] for group in groups]


def decode(sequences: Sequence[Sequence[int]]) -> list[str]:
    return [" ".join(map(str, sequence)) for sequence in sequences]


def run(
    tickets: Sequence[Ticket], config: GenerateConfig = CONFIG
) -> tuple[list[GroupRows], SwappedOnceEngine, RememberingReward]:
    engine, reward = SwappedOnceEngine(), RememberingReward()
    return GenerateStage(config, engine, CountingSource(), reward, decode).run(tickets), engine, reward


def test_the_seed_of_a_group_never_changes() -> None:
    """Pinned: a resumed job draws the same samples as the one that was never interrupted."""
    assert sampling_seed(7, TICKET) == 14701618348027


@pytest.mark.parametrize(
    "reissued",
    [replace(TICKET, id=99), replace(TICKET, prompt_index=99), replace(TICKET, alone=True)],
    ids=["id", "prompt", "alone"],
)
def test_what_a_reissue_changes_is_not_in_the_seed(reissued: Ticket) -> None:
    assert sampling_seed(7, reissued) == sampling_seed(7, TICKET)


def test_other_groups_rollouts_attempts_and_jobs_draw_other_samples() -> None:
    seeds = [
        sampling_seed(job, replace(TICKET, rollout_id=RolloutId(rollout), group=group, attempt=attempt))
        for job in range(3)
        for rollout in range(12)
        for group in range(12)
        for attempt in range(3)
    ]
    ordered = sorted(seeds)
    assert all(later - earlier > 256 for earlier, later in pairwise(ordered)), (
        "the i-th sample has seed + i: seeds must not be neighbours"
    )
    assert all(0 <= seed < 2**44 for seed in seeds)


def test_rows_hold_prompt_and_response_and_who_made_them() -> None:
    (first, second), _, reward = run([TICKET, replace(TICKET, id=12, group=3, prompt_index=2)])
    assert (first.ticket, second.ticket.id) == (TICKET, 12)
    assert set(first.columns) == set(tasks.GENERATED_FIELDS)
    assert [row.tolist() for row in first.columns[tasks.TOKENS].rows()] == [[4] * 4 + [40], [4] * 4 + [40, 40]]
    assert [row.tolist() for row in second.columns[tasks.TOKENS].rows()] == [[2, 2, 20], [2, 2, 20, 20]]
    assert first.columns[tasks.RESPONSE_LENGTHS].values.tolist() == [1, 2]
    assert [row.tolist() for row in first.columns[tasks.LOSS_MASKS].rows()] == [[1], [1, 1]]
    assert [row.tolist() for row in first.columns[tasks.ROLLOUT_LOG_PROBS].rows()] == [[-0.5], [-1.0, -1.0]]
    assert first.columns[tasks.REWARDS].values.tolist() == [0.0, 1.0]
    assert [first.columns[name].values.dtype for name in tasks.GENERATED_FIELDS] == [
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.float32,
        torch.float32,
    ]
    assert (list(first.oldest), list(first.newest)) == ([weight(2)] * 2, [weight(2), weight(3)])
    assert reward.groups[1] == [Answer("p2", "20", "l2", 3, 0), Answer("p2", "20 20", "l2", 3, 1)]


def test_a_request_is_what_the_spec_says_within_what_the_model_can_hold() -> None:
    _, engine, _ = run([replace(TICKET, prompt_index=4), replace(TICKET, prompt_index=8)])
    short, long = engine.params
    assert short == SamplingParams(0.5, 0.9, 4, 6, (1,), num_samples=2, seed=sampling_seed(7, TICKET))
    assert long.max_new_tokens == 2


class FailingReward:
    """Raises what it was made with."""

    def __init__(self, error: RewardError) -> None:
        self._error = error

    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> list[list[float]]:
        raise self._error


def reward_error(kind: type[RewardError], cause: Exception | None = None) -> RewardError:
    error = kind("the reward's sentence")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(reward_error(RewardRefused), ValueError, id="no rewards are the user's to cure"),
        pytest.param(reward_error(RewardFailed, ValueError("never")), ValueError, id="so is a ValueError"),
        pytest.param(reward_error(RewardFailed, OSError("away")), RewardFailed, id="a server may come back"),
        pytest.param(reward_error(RewardFailed, UnicodeError("torn")), RewardFailed, id="a text may be another"),
        pytest.param(reward_error(RewardTimeout), RewardTimeout, id="time may suffice"),
    ],
)
def test_what_a_reward_raises_is_the_users_where_no_restart_would_help(
    error: RewardError, expected: type[Exception]
) -> None:
    stage = GenerateStage(CONFIG, SwappedOnceEngine(), CountingSource(), FailingReward(error), decode)
    with pytest.raises(Exception, match="the reward's sentence") as raised:
        stage.run([TICKET])
    assert raised.type is expected


def test_a_prompt_that_leaves_no_room_is_named() -> None:
    with pytest.raises(ValueError, match=r"prompt 10 has 10 tokens, but the model has only 10 positions"):
        run([replace(TICKET, prompt_index=10)])
