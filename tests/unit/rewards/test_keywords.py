"""Reward functions in TRL's signature are taken as they are."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rljob_api.spec.data import DataSpec
from rljob_api.spec.rollout import RewardSpec
from rljob_workers.rewards import Answer, RewardMissing, RewardRefused, build_reward
from tests.unit.rewards.test_builtin import NoSource

MODULE = """
def accuracy_reward(completions, solution, **kwargs):
    return [float(c[0]["content"] == s) for c, s in zip(completions, solution)]

def length_reward(completions, **kwargs):
    return [-float(len(c)) for c in completions]

def seen(prompts, completions, completion_ids, level, **kwargs):
    assert set(kwargs) == {"solution", "kind"}, kwargs
    return [100 * len(p) + 10 * len(i) + n for p, i, n in zip(prompts, completion_ids, level)]

def narrow(prompts, completions):
    return [float(p in c) for p, c in zip(prompts, completions)]

def sometimes(completions, **kwargs):
    return [None if c == "" else 1.0 for c in completions]

async def later(completions, solution, **kwargs):
    return [float(c == s) for c, s in zip(completions, solution)]

def wants_more(completions, ground_truth, **kwargs):
    return [0.0 for _ in completions]
"""


_NUMBERS = count()


def reward_of(folder: Path, name: str, **fields: Any) -> Any:
    module = f"trl_{next(_NUMBERS)}"
    (folder / f"{module}.py").write_text(MODULE)
    custom = {"function": f"{module}:{name}", "path": str(folder), **fields}
    spec = RewardSpec.model_validate({"custom": custom})
    return build_reward(spec, DataSpec(prompts="p.jsonl", label_key="solution"), NoSource())


def answers(*responses: str, **fields: Any) -> list[Answer]:
    return [
        Answer("pp", text, "12", 3, index, token_ids=(1, 2), row={"level": 5, "kind": "a"}, **fields)
        for index, text in enumerate(responses)
    ]


CHAT = ({"role": "user", "content": "pp"},)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        pytest.param("accuracy_reward", answers("12", "13", messages=CHAT), [1.0, 0.0], id="messages and the label"),
        pytest.param("length_reward", answers("12", "1"), [-2.0, -1.0], id="texts"),
        pytest.param("seen", answers("12"), [225.0], id="every column"),
        pytest.param("narrow", answers("a pp", "b"), [1.0, 0.0], id="no others than it takes"),
        pytest.param("later", answers("12", "1"), [1.0, 0.0], id="async"),
    ],
)
@pytest.mark.parametrize("per_sample", [False, True])
def test_functions_get_what_trl_gives_them(
    tmp_path: Path, name: str, given: list[Answer], expected: list[float], per_sample: bool
) -> None:
    reward = reward_of(tmp_path, name, perSample=per_sample)
    assert reward.score_groups([given]) == [expected]
    reward.close()


def test_none_is_no_score(tmp_path: Path) -> None:
    reward = reward_of(tmp_path, "sometimes")
    ((one, other),) = reward.score_groups([answers("a", "")])
    assert one == 1.0
    assert isinstance(other, RewardMissing)
    reward.close()


def test_an_argument_without_a_column_is_named(tmp_path: Path) -> None:
    reward = reward_of(tmp_path, "wants_more")
    sentence = r"it needs the argument 'ground_truth', and the rows have no such column, only kind, level, solution\."
    with pytest.raises(RewardRefused, match=sentence):
        reward.score_groups([answers("a")])
    reward.close()
