"""What a user reads: one line a second at most, every event, the end once; figures over ten steps."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rljob_api.manifest import load_manifest
from rljob_api.status import Phase, PodStatus, RLJobStatus, RoleStatus
from rljob_operator.local.journal import summary
from rljob_operator.local.live_view import LiveView
from rljob_operator.local.view import (
    JsonView,
    PlainView,
    StepRates,
    clock_text,
    duration,
    make_view,
    summary_rows,
)

JOB = load_manifest(Path(__file__).parents[3] / "examples/quickstart.yaml")


def make_step(step: int, at: float, epoch: int = 1, reward: float = 0.5) -> dict[str, Any]:
    figures = {"reward": reward, "staleness": 1, "samples": 512, "tokens": 1536, "queueDepth": 64}
    return {"time": at, "step": step, "epoch": epoch, **figures}


def make_event(reason: str, message: str, scope: str | None = None) -> dict[str, Any]:
    role = "rollout" if scope else None
    return {"time": "2026-01-01T00:00:00Z", "reason": reason, "role": role, "scope": scope, "message": message}


def make_summary(message: str, phase: str = "Succeeded", resume: str = "") -> dict[str, Any]:
    figures = {
        "steps": 240,
        "rewardFirst": 0.1,
        "rewardLast": 0.9,
        "rewardSteps": 10,
        "samplesPerSecond": 7000.4,
        "seconds": 25.2,
    }
    ending = {
        "troubles": [],
        "globalRestarts": 1,
        "evaluation": "",
        "checkpoint": 240,
        "out": "/runs/one",
        "resume": resume,
    }
    return {"phase": phase, "message": message, **figures, **ending}


class Plain:
    """A plain view with a clock of its own, and what it wrote."""

    def __init__(self) -> None:
        self.now = 100.0
        self.out = io.StringIO()
        self.view = PlainView(self.out, lambda: self.now)
        self.view.open(JOB, "/runs/one")

    def lines(self) -> list[str]:
        return [line.partition(" ")[2] for line in self.out.getvalue().splitlines()[1:]]


def test_steps_are_reported_once_a_second_and_the_last_one_always() -> None:
    plain = Plain()
    for step in (0, 1, 2, 239):
        plain.now += 0.4
        plain.view.step(make_step(step, plain.now))
    assert [line.split()[1] for line in plain.lines()] == ["1/240", "240/240"]
    plain.now += 1.0
    plain.view.step(make_step(3, plain.now))
    assert plain.lines()[-1].startswith("step 4/240  reward 0.5  staleness 1  queue 64")


def test_every_event_is_reported() -> None:
    plain = Plain()
    plain.view.event(make_event("Ready", "every role is ready"))
    plain.view.event(make_event("RankExited", "rollout-0.0 was killed", "Global"))
    assert plain.lines() == ["Ready: every role is ready", "RankExited [Global]: rollout-0.0 was killed"]


def test_the_message_of_a_drain_names_how_to_kill() -> None:
    plain = Plain()
    plain.view.event(make_event("Draining", "interrupted"))
    assert plain.lines() == ["Draining: interrupted (Ctrl-C again kills everything at once)"]


def test_silence_is_broken_by_a_pulse_and_by_who_is_waited_for() -> None:
    plain = Plain()
    pods = [PodStatus(name="actor-0", ready=False, generation=0), PodStatus(name="actor-1", ready=True, generation=0)]
    roles = [RoleStatus(name="actor", replicas=2, ready=1, failures=0, pods=pods)]
    starting = RLJobStatus(phase=Phase.STARTING, roles=roles)
    for _ in range(20):
        plain.now += 0.5
        plain.view.status(starting)
    assert plain.lines() == ["Starting, waiting for actor-0"]
    plain.now += 30.0
    plain.view.status(RLJobStatus(phase=Phase.RUNNING))
    plain.now += 30.0
    plain.view.status(RLJobStatus(phase=Phase.RUNNING))
    assert plain.lines()[1:] == ["Running; step 0/0, queue 0 groups"]


def test_why_it_ended_is_reported_once() -> None:
    plain = Plain()
    plain.view.event(make_event("Succeeded", "all rollouts are trained"))
    plain.view.close(make_summary("all rollouts are trained"))
    assert plain.out.getvalue().count("all rollouts are trained") == 1
    assert plain.out.getvalue().endswith(
        "  reward: 0.1 -> 0.9 (means of the first and last 10 steps)\n  steps: 240, 7000 samples/s\n"
        "  time: 25.2 s\n  restarts: 1 of the whole job\n  checkpoint: version 240\n  files: /runs/one\n"
    )


def test_an_end_without_an_event_is_reported_by_the_summary_with_what_goes_on_from_there() -> None:
    plain = Plain()
    plain.view.close(make_summary("everything was killed", "Interrupted", resume="rljob run job.yaml"))
    assert plain.lines()[0] == "Interrupted: everything was killed"
    assert plain.out.getvalue().endswith("  resume with: rljob run job.yaml\n")


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_terminal_and_has_what_a_user_asks_for(width: int) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=width, record=True)
    view = LiveView(console)
    view.open(JOB, "/runs/one")
    view.event(make_event("RankExited", "rollout-0.0 was killed by SIGKILL: " + "it left no words " * 6, "Global"))
    for step in range(12):
        view.step(make_step(step, at=float(step)))
    view.status(RLJobStatus(phase=Phase.RUNNING))
    console.print(view._draw())
    view.close(make_summary("done"))
    text = console.export_text()
    assert max(len(line) for line in text.splitlines()) <= width
    for wanted in ("step 12/240", "3:48 left", "Running", "512", "at most 1 allowed", "RankExited of rollout (Global)"):
        assert wanted in text
    assert "reward      0.1 -> 0.9 (means of the first and last 10 steps)" in text


def test_json_is_one_object_a_line_each_with_its_kind() -> None:
    out = io.StringIO()
    view = JsonView(out)
    view.open(JOB, "/runs/one")
    view.event(make_event("Ready", "every role is ready"))
    view.step(make_step(0, 1.0))
    view.status(RLJobStatus())
    view.close(make_summary("done"))
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["kind"] for line in lines] == ["start", "event", "step", "result"]
    assert lines[0] == {"kind": "start", "name": "quickstart", "out": "/runs/one", "totalSteps": 240}


def test_what_is_no_terminal_gets_plain_lines() -> None:
    assert isinstance(make_view("text"), PlainView)
    assert isinstance(make_view("json"), JsonView)


def test_the_pace_is_of_the_last_ten_steps() -> None:
    pace = StepRates()
    assert (pace.samples_per_second, pace.reward, pace.seconds_per_step) == (None, None, None)
    for step in range(30):
        pace.add(make_step(step, at=step * (1.0 if step < 15 else 0.5), reward=step / 100))
    assert pace.seconds_per_step == pytest.approx(0.5)
    assert pace.samples_per_second == pytest.approx(1024)
    assert pace.reward == pytest.approx(0.245)
    assert pace.first_reward == pytest.approx(0.045)


def test_the_first_rewards_are_shown_once_they_are_none_of_the_last() -> None:
    pace = StepRates()
    for step in range(20):
        assert pace.first_reward is None
        pace.add(make_step(step, at=step, reward=float(step >= 10)))
    assert (pace.first_reward, pace.reward) == (0.0, 1.0)


def rewards_of(rewards: list[float], folder: Path) -> str:
    lines = [{**make_step(step, step, reward=reward), "seconds": 1.0} for step, reward in enumerate(rewards)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return dict(summary_rows(summary(folder, RLJobStatus(), 1.0, "")))["reward"]


@pytest.mark.parametrize(
    ("rewards", "text"),
    [
        pytest.param([0.25], "0.25 (of the only step)", id="one step"),
        pytest.param([0.0, 1.0, 0.5], "0 -> 0.5 (of the first and the last step)", id="three"),
        pytest.param([0.0] * 3 + [1.0] * 3, "0 -> 1 (means of the first and last 3 steps)", id="six"),
        pytest.param([0.0] * 9 + [0.5] + [1.0] * 9, "0 -> 1 (means of the first and last 9 steps)", id="nineteen"),
        pytest.param([0.0] * 10 + [0.5] + [1.0] * 10, "0 -> 1 (means of the first and last 10 steps)", id="more"),
    ],
)
def test_first_and_last_rewards_share_no_step(rewards: list[float], text: str, tmp_path: Path) -> None:
    assert rewards_of(rewards, tmp_path) == text


def test_a_summary_names_what_the_steps_have_shown_once_each_and_before_a_resume_too(tmp_path: Path) -> None:
    events = [
        make_event("NoVariance", "steps 3 to 12: all alike"),
        make_event("GradientSpike", "a step"),
        make_event("Resumed", "epoch 2 begins"),
        make_event("NoVariance", "steps 3 to 12: all alike"),
        make_event("MetricMissing", "step 0 reports no reward/mine"),
    ]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    found = summary(tmp_path, RLJobStatus(), 1.0, "")
    assert [row for row in summary_rows(found) if row[0] == "warning"] == [
        ("warning", "NoVariance: steps 3 to 12: all alike"),
        ("warning", "MetricMissing: step 0 reports no reward/mine"),
    ]


def test_a_new_epoch_is_measured_without_the_gap_before_it() -> None:
    pace = StepRates()
    for step in range(3):
        pace.add(make_step(step, at=step))
    pace.add(make_step(3, at=1000.0, epoch=2))
    assert pace.seconds_per_step is None
    pace.add(make_step(4, at=1002.0, epoch=2))
    assert pace.seconds_per_step == pytest.approx(2.0)


def test_times_are_written_as_people_do() -> None:
    assert [clock_text(seconds) for seconds in (0, 65.9, 7207)] == ["0:00", "1:05", "2:00:07"]
    assert [duration(seconds) for seconds in (25.21, 136, 7207)] == ["25.2 s", "2:16 minutes", "2:00:07 hours"]
