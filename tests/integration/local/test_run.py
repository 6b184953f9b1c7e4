"""`rljob run` on real parts: it trains, it follows its table when something is killed, it leaves nothing behind."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from rljob_operator.local.run_folder import memory_path
from tests.integration.local.conftest import StartRun
from tests.integration.local.job_run import all_gone, kill, make_manifest

pytestmark = pytest.mark.timeout(400)


def test_a_job_trains_to_its_end_and_is_then_finished(tmp_path: Path, start_run: StartRun) -> None:
    manifest, out = make_manifest(tmp_path), tmp_path / "out"
    run = start_run(manifest, out, ["--audit"])
    run.wait_for_step()
    pids = run.pids()
    assert run.wait() == 0, run.output()
    assert run.status()["phase"] == "Succeeded"
    assert run.steps() == [0, 1, 2, 3, 4]
    assert [event["reason"] for event in run.events()] == ["Started", "EpochOpened", "Ready", "Succeeded"]
    assert len((out / "samples.jsonl").read_bytes().splitlines()) == 5 * 16
    assert json.loads((out / "timeline.json").read_bytes())
    assert all_gone(pids)
    assert not memory_path(out).exists()

    again = start_run(manifest, out)
    assert again.wait() == 0
    assert "were trained by an earlier run in this folder" in again.output()
    further = start_run(make_manifest(tmp_path, rollout__numRollouts=7), out)
    assert further.wait() == 0, further.output()
    assert further.steps() == [0, 1, 2, 3, 4, 5, 6]
    assert further.status()["restart"]["epoch"] == 2


def test_what_is_killed_is_restarted_by_the_table_and_an_interrupted_run_goes_on(
    tmp_path: Path, start_run: StartRun
) -> None:
    manifest, out = make_manifest(tmp_path, rollout__numRollouts=10000), tmp_path / "out"
    run = start_run(manifest, out)
    run.wait_for_step()
    expected = []
    kills: list[tuple[str, Callable[[], int], tuple[str, str, str]]] = [
        ("rank", lambda: run.pod("reference-0")["ranks"][0]["pid"], ("RankExited", "reference", "InPlace")),
        ("rank", lambda: run.pod("rollout-0")["ranks"][0]["pid"], ("RankExited", "rollout", "Global")),
        ("launcher", lambda: run.pod("advantages-0")["launcherPid"], ("LauncherLost", "advantages", "InPlace")),
        ("launcher", lambda: run.pod("actor-0")["launcherPid"], ("LauncherLost", "actor", "Global")),
    ]
    for what, pid, restart in kills:
        run.wait_until("every pod has its processes", lambda: all(_is_whole(pod) for pod in _pods(run.status())))
        kill(pid())
        expected.append(restart)
        run.wait_until(f"{restart} after the {what} was killed", lambda: run.restarts() == expected)
        run.wait_until("ready again", lambda: run.events()[-1]["reason"] == "Ready")
        run.wait_for_step(2)
    for name in ("coordinator", "control"):
        kill(run.infrastructure_pid(name))
        run.wait_until(f"{name} runs again", lambda: len(run.events("InfrastructureRestarted")) > 0)
        run.wait_for_step(2)
    assert run.status()["restart"]["epoch"] == 3

    run.process.send_signal(signal.SIGINT)
    pids = run.pids()
    assert run.wait() == 130
    assert "resume with: rljob run" in run.output()
    assert run.status()["phase"] == "Interrupted"
    assert all_gone(pids)

    done = run.status()["training"]["checkpoint"]
    resumed = start_run(make_manifest(tmp_path, rollout__numRollouts=done + 3), out)
    assert resumed.wait() == 0, resumed.output()
    assert resumed.status()["restart"]["epoch"] == 4
    assert resumed.status()["training"]["checkpoint"] == done + 3


def test_killing_the_run_kills_everything_and_the_folder_stays_the_jobs(tmp_path: Path, start_run: StartRun) -> None:
    manifest, out = make_manifest(tmp_path, rollout__numRollouts=10000), tmp_path / "out"
    run = start_run(manifest, out)
    run.wait_for_step()
    locked = start_run(manifest, out)
    assert locked.wait() == 64
    assert f"is in use by `rljob run` (process {run.process.pid})" in locked.output()
    pids = run.pids()
    run.process.kill()
    run.process.wait()
    assert all_gone(pids)

    other = start_run(make_manifest(tmp_path, rollout__batchSize=8), out)
    assert other.wait() == 64
    assert "spec.rollout.batchSize: 8 differs from 4" in other.output()
    resumed = start_run(make_manifest(tmp_path, rollout__numRollouts=len(run.steps()) + 2), out)
    assert resumed.wait() == 0, resumed.output()
    assert resumed.status()["restart"]["epoch"] == 2


@pytest.mark.parametrize("place", ["epoch.after_persist", "epoch.after_raise"])
def test_a_run_killed_between_two_writes_of_a_restart_goes_on_in_a_later_epoch(
    place: str, tmp_path: Path, start_run: StartRun
) -> None:
    manifest, out = make_manifest(tmp_path, rollout__numRollouts=10000), tmp_path / "out"
    failpoints = tmp_path / "failpoints"
    failpoints.mkdir()
    armed = {"RLJOB_FAILPOINTS": f"{place}=2", "RLJOB_FAILPOINTS_DIR": str(failpoints)}
    run = start_run(manifest, out, environment=armed)
    run.wait_for_step()
    pids = run.pids()
    kill(run.pod("actor-0")["ranks"][0]["pid"])
    assert run.wait() == -signal.SIGKILL
    assert (failpoints / f"{place}.fired").exists()
    assert all_gone(pids)
    assert run.status()["restart"]["epoch"] == 2

    resumed = start_run(make_manifest(tmp_path, rollout__numRollouts=len(run.steps()) + 2), out)
    assert resumed.wait() == 0, resumed.output()
    assert resumed.status()["restart"]["epoch"] == 3


def _pods(status: dict[str, object]) -> list[dict[str, object]]:
    return [pod for role in status["roles"] for pod in role["pods"]]  # type: ignore[attr-defined]


def _is_whole(pod: dict[str, object]) -> bool:
    return bool(pod["launcherPid"] and pod["ranks"] and pod["ready"])
