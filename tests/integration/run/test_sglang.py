"""A job on two real SGLang engines: it learns, and loses nothing when they die, wherever they are just then."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from rljob_api.spec.model import ModelConfig, ModelSpec, TokenizerConfig
from rljob_workers.models.tokenizers import build_tokenizer

from .job import RunningJob, at_leisure, kill, make_manifest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"

ROLES: dict[str, dict[str, Any]] = {"reference": {}, "rollout": {"replicas": 2, "engine": {"kind": "SGLang"}}}
FOUND_SECONDS = 5.0
"""In which a fault is found and reported."""


def manifest(folder: Path, seconds: float = 1.0, **rollout: Any) -> dict[str, Any]:
    """Two engines; a test hurries the job when it has done to it what it wanted."""
    return at_leisure(make_manifest(folder, rollout=rollout, roles=ROLES), folder, seconds)


def children(pid: int) -> list[int]:
    """Of a server: its scheduler and its detokenizer, in the order in which they were made."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_gone(pids: set[int]) -> None:
    """Their titles stand where the mark of their job was, so that `RunningJob` does not know them."""
    deadline = time.monotonic() + 240
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, f"processes {left} outlive their job"
        time.sleep(0.05)


def shared_memory() -> set[Path]:
    return set(Path("/dev/shm").iterdir())


def engine_pid(job: RunningJob, replica: int) -> int:
    return int(job.pod("rollout", replica)["enginePid"])


def engine_url(job: RunningJob, replica: int) -> str:
    """Of the incarnation that the launcher has written down."""
    file = next(path for path in job.out.rglob("engine-0.json") if f"rollout-{replica}" in str(path))
    return str(json.loads(file.read_text())["url"])


def num_running(job: RunningJob, replica: int) -> int:
    """Samples in the server's batch; none where it does not answer."""
    try:
        load = httpx.get(f"{engine_url(job, replica)}/v1/loads", timeout=5).raise_for_status().json()["loads"][0]
    except httpx.HTTPError:
        return 0
    return int(load["num_running_reqs"])


def halts_with_samples(job: RunningJob, replica: int) -> bool:
    """Pauses a server where it is; goes on where it has nothing to do."""
    url = engine_url(job, replica)
    httpx.post(f"{url}/pause_generation", json={"mode": "in_place"}, timeout=60).raise_for_status()
    if num_running(job, replica) > 0:
        return True
    httpx.post(f"{url}/continue_generation", json={}, timeout=60).raise_for_status()
    return False


def kill_server(job: RunningJob, replica: int) -> None:
    kill(engine_pid(job, replica))


def kill_scheduler(job: RunningJob, replica: int) -> None:
    kill(children(engine_pid(job, replica))[0])


def kill_in_an_update(job: RunningJob, replica: int) -> None:
    """Right after a step: its weights are on their way."""
    job.wait_for_step(job.step() + 1)
    kill_server(job, replica)


def kill_while_paused(job: RunningJob, replica: int) -> None:
    url = engine_url(job, replica)
    httpx.post(f"{url}/pause_generation", json={"mode": "retract"}, timeout=60).raise_for_status()
    kill_server(job, replica)


KILLS: tuple[Callable[[RunningJob, int], None], ...] = (
    kill_server,
    kill_scheduler,
    kill_in_an_update,
    kill_while_paused,
)


@pytest.mark.long
def test_engines_die_in_every_way_and_the_job_restarts_nothing_else(tmp_path: Path) -> None:
    before = shared_memory()
    seen: set[int] = set()
    # Half a minute for each strike, and few rollouts: what is left of them in the end costs more than all the rest.
    with RunningJob(tmp_path, manifest(tmp_path, seconds=2.0, numRollouts=15 * len(KILLS))) as job:
        job.wait_for_step(1)
        for turn, strike in enumerate(KILLS):
            replica = turn % 2
            job.wait_for("both engines", lambda: job.ready() and all(engine_pid(job, one) for one in (0, 1)))
            victim = engine_pid(job, replica)
            seen |= {victim, *children(victim)}
            deaths = len([event for event in job.events() if event["reason"] == "EngineExited"])
            strike(job, replica)
            job.wait_for(
                f"the end of an engine after {strike.__name__}",
                lambda before=deaths: (  # type: ignore[misc] # bound per turn
                    len([event for event in job.events() if event["reason"] == "EngineExited"]) > before
                ),
            )
            job.wait_for_step(job.step() + 2)
        job.assert_succeeded(epochs=1)
        wait_gone(seen)
    assert not {path for path in shared_memory() - before if path.name.startswith("sglang")}


@pytest.mark.long
def test_a_killed_run_goes_on_with_new_engines(tmp_path: Path) -> None:
    with RunningJob(tmp_path, manifest(tmp_path, numRollouts=20)) as job:
        job.wait_for_step(4)
        servers = [engine_pid(job, replica) for replica in (0, 1)]
        ours = {*servers, *(child for pid in servers for child in children(pid))}
        kill(job.process.pid)
        job.process.wait(240)
        job.wait_gone()
        wait_gone(ours)
        job.start()
        job.assert_succeeded()


@pytest.mark.long
def test_a_server_that_answers_and_does_nothing_is_ended_by_its_rank(tmp_path: Path) -> None:
    """Its scheduler is stopped: its probe still answers that it lives.

    The only engine of a job without staleness: while it has samples no update comes, whose deadline would end it.
    """
    # SGLang counts samples as running that ended in its last step: of long ones some are left wherever it is paused.
    job_of = manifest(tmp_path, numRollouts=10, maxStaleness=0, sampling={"maxNewTokens": 64})
    job_of["spec"]["roles"]["rollout"]["replicas"] = 1
    # Longer than SGLang takes to start on a busy machine; the engine is given up midway between the two.
    patience = {"heartbeatTimeoutSeconds": 20, "stallTimeoutSeconds": 80}
    job_of["spec"]["restartPolicy"] = {**job_of["spec"].get("restartPolicy", {}), **patience}
    with RunningJob(tmp_path, job_of) as job:
        job.wait_for_step(1)
        job.wait_for("samples that stay at work in it", lambda: halts_with_samples(job, 0))
        stopped = engine_pid(job, 0)
        os.kill(children(stopped)[0], signal.SIGSTOP)
        job.wait_for_event("EngineStandsStill")
        job.wait_for("another life", lambda: engine_pid(job, 0) not in {0, stopped})
        job.wait_for_step(job.step() + 2)
        job.assert_succeeded(epochs=1)
        wait_gone({stopped})


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_twenty_random_faults_of_servers_schedulers_and_ranks(tmp_path: Path) -> None:
    """Each is killed, or stopped for good. Ranks of the rollout are restarted in place: the other engine goes on."""
    before, dice = shared_memory(), random.Random(12)
    made = manifest(tmp_path, numRollouts=600, maxAttempts=1000)
    policy = {"heartbeatTimeoutSeconds": 4, "stallTimeoutSeconds": 26, "threshold": 1000, "maxGlobalRestarts": 1000}
    made["spec"]["restartPolicy"] = {"table": {"rollout": "InPlace"}, **policy}
    made["spec"]["weightSync"] = {"timeoutSeconds": 10}  # a scheduler that is stopped within an update
    engine = {**ROLES["rollout"]["engine"], "startupTimeoutSeconds": 60}  # or within its start
    made["spec"]["roles"]["rollout"] = {**ROLES["rollout"], "engine": engine}
    faults: list[str] = []
    with RunningJob(tmp_path, made) as job:
        job.wait_for_step(1)
        while len(faults) < 20:
            job.wait_for("both engines", lambda: job.ready() and all(engine_pid(job, one) for one in (0, 1)))
            replica, victim = dice.randrange(2), dice.choice(["server", "scheduler", "rank"])
            number = dice.choice([signal.SIGKILL, signal.SIGSTOP])
            with contextlib.suppress(ProcessLookupError, IndexError, FileNotFoundError):
                os.kill(a_process(job, replica, victim), number)
                faults.append(f"{number.name} {victim} of rollout-{replica}")
            job.wait_for_step(job.step() + 1, 240)
            time.sleep(dice.uniform(0, 2))
        print(*faults, sep="\n")  # noqa: T201 - the figures, shown with -s
        job.assert_succeeded(900, epochs=1)
        print(*idle_times(job), sep="\n")  # noqa: T201
    assert not {path for path in shared_memory() - before if path.name.startswith("sglang")}


def a_process(job: RunningJob, replica: int, what: str) -> int:
    if what == "rank":
        return int(job.pod("rollout", replica)["ranks"][0]["pid"])
    server = engine_pid(job, replica)
    return server if what == "server" else children(server)[0]


def idle_times(job: RunningJob) -> list[str]:
    """How long each engine had nothing of a job to do, at most: in its own faults, and while only the other had one."""
    message = []
    ends = [event for event in job.events() if event["reason"] in ("EngineExited", "RankExited", "Hang")]
    for replica in (0, 1):
        name = f"rollout-{replica}"
        faults = [datetime.fromisoformat(end["time"]).timestamp() for end in ends if own_end(end, name)]
        gaps = {
            (began, ended): any(began - FOUND_SECONDS < fault < ended + FOUND_SECONDS for fault in faults)
            for began, ended in idle_spans(job, name)
        }
        for what, own in (("its own faults", True), ("the other's alone", False)):
            longest = max((ended - began for (began, ended), is_own in gaps.items() if is_own is own), default=0.0)
            message.append(f"{name} generated nothing for {longest:.1f} s at most, in {what}")
    return message


def own_end(event: dict[str, Any], name: str) -> bool:
    """Whether an event reports the end of this replica's rank or engine."""
    reported = str(event["message"])
    return reported.startswith((f"{name}.", f"The engine of {name} "))


def idle_spans(job: RunningJob, name: str) -> Iterator[tuple[float, float]]:
    """In Unix seconds: from its rank's timeline, over all of its incarnations."""
    files = (job.out / "timeline").glob(f"{name}.*")
    events = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    spans = sorted((e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6) for e in events if e["name"] == "generate")
    end = spans[0][1]
    for began, ended in spans[1:]:
        if began > end:
            yield end, began
        end = max(end, ended)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_example_learns(tmp_path: Path) -> None:
    """On nothing but SGLang's samples, as its user would run it."""
    made = yaml.safe_load((EXAMPLES / "quickstart-sglang.yaml").read_text())
    made["spec"]["data"]["prompts"] = str(EXAMPLES / made["spec"]["data"]["prompts"])
    with RunningJob(tmp_path, made) as job:
        assert job.finish(1500) == 0
        rewards = [line["reward"] for line in job.metrics()]
        assert sum(rewards[-10:]) / 10 > sum(rewards[:10]) / 10 + 0.3


def a_folder(folder: Path, config: Any) -> str:
    """Of a random model of this config, and the tokenizer of these tests' jobs."""
    from transformers import AutoModelForCausalLM

    spec = ModelSpec(config=ModelConfig(tokenizer=TokenizerConfig(alphabet="0123456789=")))
    tokenizer = build_tokenizer(spec)
    config.vocab_size = len(tokenizer)
    auto: Any = AutoModelForCausalLM
    auto.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


SHAPE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8}
SMALL: dict[str, Any] = {**SHAPE, "num_key_value_heads": 2, "max_position_embeddings": 512}


def job_of(folder: Path, model: str) -> dict[str, Any]:
    made = make_manifest(folder, roles={"rollout": {"engine": {"kind": "SGLang"}}})
    made["spec"]["model"] = {"path": model}
    return made


@pytest.mark.long
def test_a_model_that_sglang_cannot_build_fails_the_job_by_the_schedulers_exception(tmp_path: Path) -> None:
    """It reads a word of the config that transformers no longer writes."""
    from transformers import Gemma2Config

    model = a_folder(tmp_path / "model", Gemma2Config(**SMALL))
    with RunningJob(tmp_path, job_of(tmp_path, model)) as job:
        assert job.finish() == 1
        last = job.events()[-1]
        assert last["reason"] == "EngineCannotStart"
        assert "AttributeError: 'Gemma2Config' object has no attribute 'hidden_act' (sglang/" in last["message"]
        assert job.status()["restart"]["globalRestarts"] == 0


@pytest.mark.long
def test_a_sliding_window_that_sglang_lacks_fails_the_job_before_it_trains(tmp_path: Path) -> None:
    from transformers import MistralConfig

    model = a_folder(tmp_path / "model", MistralConfig(**SMALL, sliding_window=8, initializer_range=0.3))
    with RunningJob(tmp_path, job_of(tmp_path, model)) as job:
        assert job.finish() == 64
        last = job.events()[-1]
        assert last["reason"] == "EngineMismatch"
        assert "the first that differs is token 10 of 64" in last["message"], "the first that the window hides one from"
        assert job.metrics() == []
        job.assert_epoch(1)
