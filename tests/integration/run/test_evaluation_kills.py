"""Whatever is killed or interrupted within an evaluation: each of its samples counts once, and training is the same.

What is found is equal, to the last digit, to a run that nothing was done to: a sample depends on weights, prompt and
seed alone.
"""

import json
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from .job import HURRY, RunningJob, kill, make_manifest

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

ALLOWED = "allowed"
REWARD = f"""
import threading
import time
from pathlib import Path

FOLDER = Path(__file__).parent
EIGHT = threading.Semaphore(8)

def is_held():
    allowed = FOLDER / "{ALLOWED}"
    calls = (FOLDER / "calls").read_bytes().count(b"\\n")
    return not (FOLDER / "{HURRY}").exists() and calls > int(allowed.read_text() if allowed.exists() else 0)

def score(answers):
    for answer in answers:
        if "held" not in answer.row:
            continue
        with EIGHT:
            with open(FOLDER / "calls", "a") as calls:
                calls.write(answer.prompt + "\\n")
            until = time.monotonic() + 10
            while time.monotonic() < until and is_held():
                time.sleep(0.05)
    return [float(answer.response[:1] == answer.label[:1]) for answer in answers]
"""
"""Answers are held once more are begun than the file `allowed` says, so that no evaluation is over before its test has
struck; not for ever, since a drain waits for what is being scored."""
PROMPTS, SAMPLES = 40, 4
IN_PLACE = {"table": {"rollout": "InPlace"}, "threshold": 100}
FLAT_OF_TWO = {"actor": {"replicas": 2}}
SGLANG = {"rollout": {"engine": {"kind": "SGLang", "args": ["--enable-deterministic-inference"]}}}
FSDP_OF_TWO = {"actor": {"ranksPerPod": 2, "backend": "Fsdp"}}

Found = dict[int, dict[str, float]]
Roles = Mapping[str, Any]


def evaluated_job(folder: Path, roles: Roles, *, at_start: bool, **changes: dict[str, Any]) -> dict[str, Any]:
    """Strictly on-policy and of one step per rollout; its evaluation alone is at leisure (see `job.at_leisure`)."""
    folder.mkdir(exist_ok=True)
    (folder / "held.py").write_text(REWARD)
    lines = [{"prompt": f"{n:02d}=", "label": f"{n:02d}", "held": 1, "kind": "ab"[n % 2]} for n in range(PROMPTS)]
    (folder / "set.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = {"prompts": str(folder / "set.jsonl"), "sourceKey": "kind"}
    greedy = {"temperature": 0, "maxNewTokens": 3}
    sets = [
        {"name": "sampled", "data": data, "samplesPerPrompt": SAMPLES},
        {"name": "greedy", "data": data, "sampling": greedy},
    ]
    reward = {"custom": {"function": "held:score", "path": str(folder), "timeoutSeconds": 600}}
    return make_manifest(
        folder,
        # Prompts that are scored slowly are in work at one death after the other: none is set aside for that.
        rollout={"numRollouts": 3, "maxStaleness": 0, "reward": reward, "maxPromptKills": 100},
        evaluation={"sets": sets, "everySteps": 2, "atStart": at_start},
        training={"optimizer": {"learningRate": 1e-2}, "microBatchSize": 8},
        checkpoint={"everySteps": 1},
        roles={"advantages": None, "actorFwd": None, **roles},
        **changes,
    )


class Evaluated:
    """What a job has found, and how far it is."""

    def __init__(self, job: RunningJob) -> None:
        self._job = job
        self._folder = job.out.parent

    def versions(self) -> list[int]:
        """Of the event `Evaluated`, as often as there was one."""
        messages = [event["message"] for event in self._job.events() if event["reason"] == "Evaluated"]
        return [int(message.split()[1]) for message in messages]

    def found(self) -> Found:
        """By version; the last line of each counts."""
        lines = [json.loads(line) for line in (self._job.out / "evaluations.jsonl").read_text().splitlines()]
        return {line["version"]: {name: value for name, value in line.items() if "eval/" in name} for line in lines}

    def trained(self) -> dict[int, tuple[float, float]]:
        """Step -> reward and loss, of the epoch that counts."""
        return {step["step"]: (step["reward"], step["loss"]) for step in self._job.metrics()}

    def calls(self) -> int:
        """Samples of sets that the reward has begun to score."""
        calls = self._folder / "calls"
        return len(calls.read_text().splitlines()) if calls.exists() else 0

    def wait_for_calls(self, more: int) -> None:
        before = self.calls()
        allowed = self._folder / f"{ALLOWED}.new"
        allowed.write_text(str(before + more))
        allowed.rename(self._folder / ALLOWED)
        self._job.wait_for(f"{more} more scores", lambda: self.calls() >= before + more)


Undisturbed = Callable[[Roles], tuple[Found, dict[int, tuple[float, float]]]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """What a job of these roles finds that nothing is done to."""
    known: dict[str, tuple[Found, dict[int, tuple[float, float]]]] = {}

    def run(roles: Roles) -> tuple[Found, dict[int, tuple[float, float]]]:
        if str(roles) not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            with RunningJob(folder, evaluated_job(folder, roles, at_start=True)) as job:
                job.assert_succeeded(epochs=1)
                state = Evaluated(job)
                assert state.versions() == [0, 2, 3]
                assert state.calls() == 3 * PROMPTS * (SAMPLES + 1)
                known[str(roles)] = state.found(), state.trained()
        return known[str(roles)]

    return run


def assert_equal_to(job: RunningJob, expected: tuple[Found, dict[int, tuple[float, float]]]) -> None:
    """Of each version that it evaluates, by the file and by the events; and of each step."""
    found, trained = expected
    state = Evaluated(job)
    versions = set(state.found())
    assert state.found() == {version: found[version] for version in versions}
    assert set(state.versions()) == versions
    for step, (reward, loss) in state.trained().items():
        assert reward == trained[step][0]
        # Rows go to ranks in the order in which they came, so that sums of theirs differ by their rounding.
        assert loss == pytest.approx(trained[step][1], abs=1e-7)
    assert sorted(state.trained()) == sorted(trained)
    for metrics in state.found().values():
        assert metrics["eval/sampled/samples"] == PROMPTS * SAMPLES
        assert metrics["eval/greedy/samples"] == PROMPTS


def engine(job: RunningJob, replica: int) -> int:
    return int(job.pod("rollout", replica)["enginePid"] or 0)


def rollout(job: RunningJob, replica: int) -> int:
    return job.rank_pid("rollout", replica)


STRIKES: dict[str, Callable[[RunningJob], int]] = {
    "rank of rollout-0": lambda job: rollout(job, 0),
    "engine of rollout-1": lambda job: engine(job, 1),
    "coordinator": lambda job: job.infrastructure_pid("coordinator"),
    "rank of rollout-1": lambda job: rollout(job, 1),
    "control": lambda job: job.infrastructure_pid("control"),
    "engine of rollout-0": lambda job: engine(job, 0),
    "storage-0": lambda job: job.infrastructure_pid("storage-0"),
    "actor": lambda job: job.rank_pid("actor"),
}


@pytest.mark.parametrize(
    ("version", "policy"),
    [
        pytest.param(0, IN_PLACE, id="version 0, the other replica goes on"),
        pytest.param(2, {}, id="version 2, every rank's death restarts the job"),
    ],
)
def test_every_process_is_killed_within_one_evaluation(
    tmp_path: Path, undisturbed: Undisturbed, version: int, policy: dict[str, Any]
) -> None:
    folder, two = tmp_path / "struck", {"rollout": {"replicas": 2}}
    manifest = evaluated_job(folder, two, at_start=version == 0, restartPolicy=policy)
    with RunningJob(folder, manifest) as job:
        state = Evaluated(job)
        for name, pid_of in STRIKES.items():
            state.wait_for_calls(8)
            job.wait_for("all to be ready", job.ready)
            assert state.versions() == [], f"over before {name} was killed"
            victim = pid_of(job)
            kill(victim)
            job.wait_for(f"another {name}", lambda of=pid_of, old=victim: of(job) not in (0, old))  # type: ignore[misc] # bound per turn
        state.wait_for_calls(8)
        assert state.versions() == []
        job.assert_succeeded()
        assert_equal_to(job, undisturbed({}))


@pytest.mark.parametrize("roles", [FLAT_OF_TWO, FSDP_OF_TWO], ids=["two pods, Flat", "two ranks of a pod, Fsdp"])
def test_ranks_of_an_actor_that_wait_for_an_evaluation_are_killed(
    tmp_path: Path, undisturbed: Undisturbed, roles: Roles
) -> None:
    folder = tmp_path / "struck"
    with RunningJob(folder, evaluated_job(folder, roles, at_start=True)) as job:
        state = Evaluated(job)
        for rank in (1, 0):
            replica_and_rank = (rank, 0) if "replicas" in roles["actor"] else (0, rank)
            state.wait_for_calls(8)
            job.wait_for("all to be ready", job.ready)
            epoch = job.epoch()
            kill(job.rank_pid("actor", *replica_and_rank))
            job.wait_for("the next epoch", lambda before=epoch: job.epoch() == before + 1)  # type: ignore[misc] # bound per turn
            assert state.versions() == []
        job.assert_succeeded(epochs=1)  # no step is trained before the evaluation, and none twice
        job.assert_epoch(3)
        assert_equal_to(job, undisturbed(roles))


def kill_the_run(job: RunningJob, _: Evaluated) -> None:
    job.write_at_once()
    kill(job.process.pid)
    job.process.wait(240)
    job.wait_gone()


def interrupt_twice(job: RunningJob, state: Evaluated) -> None:
    """The second Ctrl-C waits for nothing that the first one does."""
    job.process.send_signal(signal.SIGINT)
    job.wait_for("the drain", lambda: any(event["reason"] == "Draining" for event in job.events()))
    job.interrupt()
    assert state.versions() == []


def interrupt_once(job: RunningJob, state: Evaluated) -> None:
    """The version that is evaluated is saved at once, and no step is trained beyond it."""
    job.interrupt()
    assert state.versions() == []
    assert job.status()["training"]["checkpoint"] == 0
    assert job.metrics() == []


@pytest.mark.parametrize(
    "stops", [(kill_the_run, interrupt_twice), (interrupt_once,)], ids=["at once, two times", "by Ctrl-C"]
)
def test_an_evaluation_goes_on_where_the_whole_run_was_stopped_within_it(
    tmp_path: Path, undisturbed: Undisturbed, stops: Sequence[Callable[[RunningJob, Evaluated], None]]
) -> None:
    folder = tmp_path / "struck"
    with RunningJob(folder, evaluated_job(folder, {}, at_start=True)) as job:
        state = Evaluated(job)
        for stop in stops:
            state.wait_for_calls(8)
            assert state.versions() == []
            stop(job, state)
            job.start()
        job.assert_succeeded()
        assert_equal_to(job, undisturbed({}))


def greedy(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name.startswith("eval/greedy/")}


def test_an_sglang_server_that_is_killed_within_an_evaluation_changes_no_greedy_answer(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """Of version 0, whose weights are the same in both runs.

    Of sampled answers one in many differs, though seeds are heeded: which share a batch changes the last digits.
    """
    folder = tmp_path / "struck"
    expected, _ = undisturbed(SGLANG)
    with RunningJob(folder, evaluated_job(folder, SGLANG, at_start=True)) as job:
        state = Evaluated(job)
        state.wait_for_calls(8)
        victim = engine(job, 0)
        kill(victim)
        job.wait_for("another server", lambda: engine(job, 0) not in (0, victim))
        state.wait_for_calls(8)
        assert state.versions() == []
        job.assert_succeeded(epochs=1)
        assert state.versions() == [0, 2, 3]
        assert greedy(state.found()[0]) == greedy(expected[0])
        for metrics in state.found().values():
            assert metrics["eval/sampled/samples"] == PROMPTS * SAMPLES
            assert metrics["eval/greedy/samples"] == PROMPTS


def test_an_evaluation_begins_again_where_a_resumed_run_has_other_sets(tmp_path: Path) -> None:
    folder = tmp_path / "struck"
    manifest = evaluated_job(folder, {}, at_start=True)
    with RunningJob(folder, manifest) as job:
        state = Evaluated(job)
        state.wait_for_calls(60)
        kill_the_run(job, state)
        sampled, greedy = manifest["spec"]["evaluation"]["sets"]
        manifest["spec"]["evaluation"]["sets"] = [greedy, {**sampled, "samplesPerPrompt": 2}]
        job.rewrite(manifest)
        job.start()
        job.assert_succeeded()
        assert state.versions() == [0, 2, 3]
        for metrics in state.found().values():
            assert metrics["eval/sampled/samples"] == PROMPTS * 2
            assert metrics["eval/greedy/samples"] == PROMPTS
