"""A reward is tried on the first rows of a job, in this process."""

import sys
from pathlib import Path

import pytest
import yaml

from rljob_api.manifest import resolve_paths
from rljob_api.spec import RLJob
from rljob_workers.rewards.trial import try_reward

FOLDER = Path(__file__).parents[3] / "examples/several-rewards"


@pytest.fixture
def _without_other_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module `reward` of another example may be imported here; what is imported meanwhile goes again."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "reward", sys)
    monkeypatch.delitem(sys.modules, "reward")


@pytest.mark.usefixtures("_without_other_rewards")
def test_the_rewards_of_a_sum_are_shown_beside_it() -> None:
    job = RLJob.model_validate(yaml.safe_load((FOLDER / "job.yaml").read_text()))
    tried = try_reward(resolve_paths(job, FOLDER).spec, 1)
    assert tried["problem"] is None
    (row,) = tried["rows"]
    label, empty = row["answers"][:2]
    assert (label["what"], label["reward"]) == ("label", pytest.approx(1.2))
    assert label["metrics"] == {"right": 1.0, "brief": 1.0, "brief/tokens_off": 0.0, "brief/cut_off": 0.0}
    assert (empty["what"], empty["reward"]) == ("empty", pytest.approx(0.2 / 4))
    assert empty["metrics"] == {"right": 0.0, "brief": 0.25, "brief/tokens_off": 3.0, "brief/cut_off": 0.0}
