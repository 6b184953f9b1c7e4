"""Finding a user's function, or saying what is wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rljob_api.spec.rollout import RewardFunctionSpec
from rljob_workers.rewards import Answer, Score
from rljob_workers.rewards.custom import CustomReward, load_function

MODULE = """
import neighbour
from rljob_workers.rewards.base import Score

def reward(answers):
    return [neighbour.SCORE for _ in answers]

async def slow(answers):
    return [2.0 for _ in answers]

class Scorer:
    async def __call__(self, answers):
        return [3.0 for _ in answers]

scorer = Scorer()

def one(answer):
    return float(answer.response)

async def one_later(answer):
    return Score(float(answer.response), {"length": len(answer.response)})
NUMBER = 3

def no_argument():
    return []

def two_arguments(answers, more):
    return []
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A user's folder; what it brings into this process goes again."""
    (tmp_path / "my_rewards.py").write_text(MODULE)
    (tmp_path / "neighbour.py").write_text("SCORE = 1.5")
    (tmp_path / "broken_rewards.py").write_text("import no_such_package_here")
    (tmp_path / "raising_rewards.py").write_text("raise RuntimeError('no key')")
    (tmp_path / "json.py").write_text("def reward(answers): return []")
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name in [name for name, module in sys.modules.items() if _lies_in(module, tmp_path)]:
        del sys.modules[name]


def _lies_in(module: ModuleType, folder: Path) -> bool:
    return Path(getattr(module, "__file__", None) or "/").is_relative_to(folder)


def make_spec(function: str, folder: Path | None) -> RewardFunctionSpec:
    return RewardFunctionSpec(function=function, path=None if folder is None else str(folder))


@pytest.mark.parametrize(
    ("function", "score"),
    [
        pytest.param("my_rewards:reward", 1.5, id="a plain function with a module beside it"),
        pytest.param("my_rewards:slow", 2.0, id="an async function"),
        pytest.param("my_rewards:scorer", 3.0, id="an object with an async call"),
    ],
)
def test_functions_of_the_folder_are_found_and_run(function: str, score: float, folder: Path) -> None:
    reward = CustomReward.from_spec(make_spec(function, folder))
    assert reward.score_groups([[Answer("p", "r", None, 0, 0)]]) == [[score]]
    reward.close()


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        pytest.param("my_rewards:one", [[1.0, 2.0], [3.0]], id="plain"),
        pytest.param(
            "my_rewards:one_later",
            [[Score(1.0, {"length": 1.0}), Score(2.0, {"length": 1.0})], [Score(3.0, {"length": 1.0})]],
            id="async, with metrics",
        ),
    ],
)
def test_a_function_of_one_answer_is_called_with_each(function: str, expected: Any, folder: Path) -> None:
    spec = make_spec(function, folder).model_copy(update={"per_sample": True})
    reward = CustomReward.from_spec(spec)
    groups = [[Answer("p", str(number), None, 0, 0) for number in group] for group in ((1, 2), (3,))]
    assert reward.score_groups(groups) == expected
    reward.close()


def test_installed_functions_need_no_folder() -> None:
    function: Any = load_function(make_spec("statistics:mean", None))
    assert function.__name__ == "mean"


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        pytest.param("my_rewards:none", r"module my_rewards \(.*my_rewards\.py\) has no 'none'", id="no such name"),
        pytest.param(
            "my_reward:reward", r"module my_reward .* was not found in .*\. Correct the name", id="no such module"
        ),
        pytest.param("my.rewards:reward", "module my.rewards .* was not found", id="no such package"),
        pytest.param("broken_rewards:reward", "module broken_rewards needs no_such_package_here", id="missing package"),
        pytest.param(
            "raising_rewards:reward",
            r"failed while it was imported \(.*raising_rewards.py, line 1\): RuntimeError: no key",
            id="it raises",
        ),
        pytest.param("my_rewards:NUMBER", "cannot be called with one argument", id="not a function"),
        pytest.param("my_rewards:no_argument", "cannot be called with one argument", id="takes no argument"),
        pytest.param("my_rewards:two_arguments", "cannot be called with one argument", id="takes two arguments"),
        pytest.param(
            "json:reward", r"another 'json' \(.*\) is already in use\. Rename the file", id="a name that is taken"
        ),
    ],
)
def test_what_cannot_be_loaded_is_reported(function: str, sentence: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=rf"rollout\.reward\.custom\.\w+: .*{sentence}"):
        load_function(make_spec(function, folder))


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"rollout\.reward\.custom\.path: .*nowhere is not a folder"):
        load_function(make_spec("my_rewards:reward", tmp_path / "nowhere"))


def test_loading_rewards_imports_no_torch() -> None:
    script = "import sys, rljob_workers.rewards, rljob_workers.data; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
