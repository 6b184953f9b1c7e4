"""Rewards that fail or hang, now and then or always: no role is restarted, nothing is learnt from what has no score."""

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rljob_cli.jobs.sample_log import read_generations
from tests.unit.rewards.test_servers import serving

from .job import RunningJob, make_manifest, make_simulated

CALLS = """
import threading, time
from pathlib import Path

_lock, _calls = threading.Lock(), [0]

def _number():
    with _lock:
        _calls[0] += 1
        return _calls[0]

def plain(answers):
    return [sum(a == b for a, b in zip(answer.response, answer.label)) / len(answer.label) for answer in answers]

def score(answers):
    number = _number()
BODY
    return plain(answers)
"""


def with_reward(
    folder: Path,
    body: str,
    reward: dict[str, Any],
    rollouts: int = 12,
    timeout: int = 600,
    make: Callable[..., dict[str, Any]] = make_simulated,
) -> dict[str, Any]:
    """A manifest whose reward runs `body` (with `answers` and `number`, that of the call, at hand) before it scores.

    Only a reward that hangs needs a short time-out: on a busy machine any call may take longer than that.
    """
    (folder / "flaky.py").write_text(CALLS.replace("BODY", "\n".join(f"    {line}" for line in body.splitlines())))
    custom = {"function": "flaky:score", "path": str(folder), "timeoutSeconds": timeout}
    return make(folder, rollout={"numRollouts": rollouts, "reward": {"custom": custom, **reward}})


def counted(job: RunningJob, name: str) -> float:
    """A share of samples, by the steps' reports, over all steps."""
    return sum(float(step[name]) for step in job.metrics()) / len(job.metrics())


FAILS = "if number % 10 == 0:\n    raise ConnectionError('the grader is away')"
HANGS = "if number % 25 == 0:\n    time.sleep(1e6)"


@pytest.mark.parametrize(("body", "timeout"), [(FAILS, 600), (HANGS, 1)], ids=["raises", "hangs"])
def test_a_reward_that_fails_now_and_then_is_asked_again(tmp_path: Path, body: str, timeout: int) -> None:
    manifest = with_reward(tmp_path, body, {"onFailure": {"backoffSeconds": 0.01}}, timeout=timeout)
    with RunningJob(tmp_path, manifest) as job:
        job.assert_succeeded()
        job.assert_epoch(1)
        assert counted(job, "samples/invalid_share") == 0.0


def test_groups_without_a_score_are_drawn_again_and_no_role_is_restarted(tmp_path: Path) -> None:
    manifest = with_reward(tmp_path, FAILS, {"onFailure": {"retries": 0}, "maxFailedShare": 0.5})
    with RunningJob(tmp_path, manifest) as job:
        job.assert_succeeded()
        job.assert_epoch(1)
        assert counted(job, "samples/invalid_share") == 0.0, "a function that raises has scored none of its group"
        assert "samples without a score so far: " in (job.out / "logs" / "rollout-0.0.log").read_text()


NONE_FOR_ONE = "if number % 2:\n    return [None, *plain(answers[1:])]"


def test_samples_without_a_score_are_rows_of_which_nothing_is_learnt(tmp_path: Path) -> None:
    rules = {"onFailure": {"retries": 0}, "maxFailedShare": 1}
    with RunningJob(tmp_path, with_reward(tmp_path, NONE_FOR_ONE, rules)) as job:
        report = job.assert_succeeded()
        job.assert_epoch(1)
        assert report.lines == 12 * 32
        assert counted(job, "samples/invalid_share") == pytest.approx(1 / 8, abs=1 / 32), (
            "one of four in every second group"
        )


def test_the_reward_of_a_step_is_that_of_the_samples_that_have_one_and_theirs_is_what_it_was(tmp_path: Path) -> None:
    """The weights do not move, and a sample is a function of them and of its seed: so the same ones come twice."""
    rules = {"onFailure": {"retries": 0}, "maxFailedShare": 1}
    found: list[dict[tuple[int, int, int], float]] = []
    for name, body in (("whole", "pass"), ("holed", NONE_FOR_ONE)):
        (tmp_path / name).mkdir()
        manifest = with_reward(tmp_path / name, body, rules, 4, make=make_manifest)
        manifest["spec"]["training"]["optimizer"]["learningRate"] = 1e-30
        with RunningJob(tmp_path / name, manifest) as job:
            job.assert_succeeded()
            lines = [json.loads(line) for line in (job.out / "samples.jsonl").read_text().splitlines()]
            valid = [line for line in lines if line["valid"]]
            found.append({(line["step"], line["group"], line["index"]): line["reward"] for line in valid})
            for step in job.metrics():
                rewards = [line["reward"] for line in valid if line["step"] == step["step"]]
                assert step["reward"] == pytest.approx(sum(rewards) / len(rewards), abs=1e-6)
    whole, holed = found
    assert 0 < len(holed) < len(whole) == 4 * 32
    assert holed == {place: whole[place] for place in holed}


def test_a_default_score_is_what_a_failed_sample_earns(tmp_path: Path) -> None:
    rules = {"onFailure": {"retries": 0, "then": "Score", "score": -1}, "maxFailedShare": 1}
    with RunningJob(tmp_path, with_reward(tmp_path, "raise OSError('away')", rules, 3)) as job:
        job.assert_succeeded()
        assert [step["reward"] for step in job.metrics()] == [-1.0] * 3
        assert counted(job, "samples/invalid_share") == 0.0


@pytest.mark.parametrize(
    ("rollout", "sentence"),
    [
        pytest.param({}, "rollout.reward.maxFailedShare: ", id="more than may be of a rollout"),
        pytest.param(
            {"maxAttempts": 2, "reward": {"maxFailedShare": 1}}, "rollout.maxAttempts: group ", id="no draw is left"
        ),
    ],
)
def test_a_reward_that_never_works_fails_the_job_with_its_last_error(
    tmp_path: Path, rollout: dict[str, Any], sentence: str
) -> None:
    manifest = with_reward(tmp_path, "raise OSError('the grader is away')", {"onFailure": {"retries": 0}})
    spec = manifest["spec"]["rollout"]
    spec |= {**rollout, "reward": {**spec["reward"], **rollout.get("reward", {})}}
    with RunningJob(tmp_path, manifest) as job:
        (message,) = job.refused()
        assert message.startswith(f"rollout-0: {sentence}")
        assert "OSError" in message
        assert "the grader is away" in message
        line = (tmp_path / "flaky.py").read_text().splitlines().index("    raise OSError('the grader is away')") + 1
        assert f" ({tmp_path / 'flaky.py'}, line {line}): the grader is away" in message
        log = (job.out / "logs/rollout-0.0.log").read_text()
        assert f'File "{tmp_path / "flaky.py"}", line {line}, in score' in log
        if message.endswith("Its traceback is in logs/rollout-0.0.log."):
            assert log.endswith(f"{message.removeprefix('rollout-0: ')}\n")


_SPECIAL = re.compile(r"<\|\w+\|>")
"""Tokens that the log of generations shows and a reward does not see."""


def nines(response: str) -> float:
    return response.count("9") / 4


def test_a_server_that_fails_for_a_tenth_of_its_calls_in_every_way_changes_no_reward(tmp_path: Path) -> None:
    """By a status, by a connection that it closes, by no answer; one of two rewards with weights."""
    over, failed = threading.Event(), [0]

    def flaky(_: str, body: Any, number: int) -> tuple[int, Any]:
        if number % 10:
            return 200, {"scores": [nines(each["response"]) for each in body["answers"]]}
        failed[0] += 1
        if number % 30 == 10:
            return 500, "out of memory"
        if number % 30 == 20:
            raise ConnectionAbortedError("the server closes the connection")
        over.wait(300)
        return 500, "too late"

    with serving(flaky) as server:
        remote = {"url": f"{server.url}/score", "timeoutSeconds": 2, "backoffSeconds": 0.01}
        reward = {
            "sum": [
                {"name": "right", "weight": 0.5, "characterMatch": {}},
                {"name": "nines", "weight": 2, "remote": remote},
            ]
        }
        manifest = make_simulated(tmp_path, rollout={"numRollouts": 12, "reward": reward})
        manifest["spec"]["telemetry"] |= {"generationsPerRollout": 32}  # all of them
        with RunningJob(tmp_path, manifest) as job:
            assert job.assert_succeeded(epochs=1).lines == 12 * 32
            steps, samples = job.metrics(), read_generations(job.out)
            log = (job.out / "logs/rollout-0.0.log").read_text()
        over.set()
    assert failed[0] >= 9
    assert len(samples) == 12 * 32
    for sample in samples:
        response, label = _SPECIAL.sub("", sample["response"]), sample["prompt"].removesuffix("=")
        agreeing = sum(given == wanted for given, wanted in zip(response, label, strict=False))
        right = agreeing / max(len(response), len(label))
        assert sample["reward"] == pytest.approx(0.5 * right + 2 * nines(response), abs=1e-6)
    for step in steps:
        assert step["samples/invalid_share"] == 0.0
        assert step["reward/mean"] == pytest.approx(0.5 * step["reward/right"] + 2 * step["reward/nines"], abs=1e-6)
    assert "samples without a score" not in log
    counted = [step.get("reward_retries", 0) for step in steps]
    assert counted == sorted(counted)
    assert counted[-1] > 0
