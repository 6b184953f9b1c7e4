"""What a tracker is given of a run: every line, over restarts of job, tracker and files, and repeated steps anew."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rljob_api import evaluations, generations
from rljob_api.spec import Tracker as TrackerName
from rljob_workers.telemetry.trackers import tail
from rljob_workers.telemetry.trackers.base import Line, Tracker
from rljob_workers.telemetry.trackers.feed import Feed, NamedRun, cursor_file, figures_of, tracked_run
from rljob_workers.telemetry.trackers.tail import Place, read_on

NAME = TrackerName.TENSORBOARD


class Shown(Tracker):
    """What trackers show in the end: figures by step and by version, samples by step, events by number."""

    def __init__(self) -> None:
        self.steps: dict[int, Mapping[str, float]] = {}
        self.evaluations: dict[int, Mapping[str, float]] = {}
        self.texts: dict[int, list[str]] = {}
        self.noted: dict[int, str] = {}
        self.flushes = 0

    def forget(self, step: int) -> None:
        for known in [one for one in self.steps if one >= step]:
            del self.steps[known]
            self.texts.pop(known, None)

    def step(self, step: int, figures: Mapping[str, float]) -> None:
        assert step not in self.steps, "a step that is there must be forgotten first"
        self.steps[step] = figures

    def forget_evaluations(self, version: int) -> None:
        for known in [one for one in self.evaluations if one >= version]:
            del self.evaluations[known]

    def evaluation(self, version: int, figures: Mapping[str, float]) -> None:
        assert version not in self.evaluations, "an evaluation that is there must be forgotten first"
        self.evaluations[version] = figures

    def samples(self, step: int, samples: Sequence[Line]) -> None:
        self.texts.setdefault(step, []).extend(line["response"] for line in samples)

    def events(self, first: int, events: Sequence[Line]) -> None:
        self.noted |= {number: line["reason"] for number, line in enumerate(events, first)}

    def flush(self) -> None:
        self.flushes += 1


class Run:
    """A run folder that a job writes to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "job.json").write_text(json.dumps({"metadata": {"name": "demo"}, "spec": {"seed": 3}}))
        (path / "run.json").write_text(json.dumps({"run": "0123456789ab", "places": []}))
        (path / "trackers").mkdir()

    def append(self, file: str, *lines: dict[str, Any], torn: str = "") -> None:
        with (self.path / file).open("a") as out:
            out.writelines(json.dumps(line) + "\n" for line in lines)
            out.write(torn)

    def train(self, epoch: int, *steps: int) -> None:
        for step in steps:
            self.append(generations.FILE, {"rollout": step, "epoch": epoch, "response": f"{epoch}:{step}"})
            self.append(
                "metrics.jsonl", {"step": step, "epoch": epoch, "time": 1.0, "reward/mean": 10.0 * epoch + step}
            )

    def evaluate(self, epoch: int, *versions: int) -> None:
        for version in versions:
            figures = {"eval/dev/mean@4": 10.0 * epoch + version, "eval/dev/set_aside": float("nan")}
            line = {"time": 1.0, "version": version, "epoch": epoch, "samples": 8, **figures}
            self.append(evaluations.FILE, line)

    def feed(self, tracker: Tracker) -> None:
        """As a process of the tracker does it: until there is nothing more."""
        feed = Feed(self.path, NAME, tracker)
        while feed.turn():
            pass


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def rewards(shown: Shown) -> dict[int, float]:
    return {step: figures["reward/mean"] for step, figures in shown.steps.items()}


def test_steps_that_a_restart_repeats_take_the_place_of_the_earlier_ones(run: Run) -> None:
    shown = Shown()
    run.train(1, 0, 1, 2, 3)
    run.feed(shown)
    run.train(2, 2, 3)
    run.feed(shown)
    assert rewards(shown) == {0: 10.0, 1: 11.0, 2: 22.0, 3: 23.0}
    assert shown.texts == {0: ["1:0"], 1: ["1:1"], 2: ["2:2"], 3: ["2:3"]}


def test_so_they_do_where_all_is_read_at_once(run: Run) -> None:
    shown = Shown()
    run.train(1, 0, 1, 2, 3)
    run.train(2, 2, 3)
    run.feed(shown)
    assert rewards(shown) == {0: 10.0, 1: 11.0, 2: 22.0, 3: 23.0}


def means(shown: Shown) -> dict[int, float]:
    return {version: figures["eval/dev/mean@4"] for version, figures in shown.evaluations.items()}


def test_an_evaluation_that_ends_late_is_of_its_version(run: Run) -> None:
    """Version 0 is evaluated before any step, version 2 while later steps are trained, the last after all of them."""
    shown = Shown()
    run.evaluate(1, 0)
    run.feed(shown)
    run.train(1, 0, 1, 2, 3, 4)
    run.feed(shown)
    run.evaluate(1, 2)
    run.feed(shown)
    run.evaluate(1, 5)
    run.feed(shown)
    assert means(shown) == {0: 10.0, 2: 12.0, 5: 15.0}
    assert shown.evaluations[2] == {"eval/dev/mean@4": 12.0, "evaluation/epoch": 1.0, "evaluation/samples": 8.0}
    assert sorted(shown.steps) == [0, 1, 2, 3, 4]


def test_evaluations_stay_where_steps_are_repeated_and_give_way_where_they_are_themselves(run: Run) -> None:
    """The job goes on from version 2, whose evaluation is over, and evaluates 4 and 6 anew."""
    shown = Shown()
    run.train(1, 0, 1, 2, 3, 4, 5)
    run.evaluate(1, 2, 4, 6)
    run.feed(shown)
    run.train(2, 2, 3)
    run.feed(shown)
    assert means(shown) == {2: 12.0, 4: 14.0, 6: 16.0}
    run.evaluate(2, 4)
    run.feed(shown)
    assert means(shown) == {2: 12.0, 4: 24.0}
    run.evaluate(2, 6)
    run.feed(shown)
    assert means(shown) == {2: 12.0, 4: 24.0, 6: 26.0}


def test_so_do_evaluations_that_are_read_at_once_or_by_a_process_that_was_begun_again(run: Run) -> None:
    run.evaluate(1, 0, 2, 4)
    run.evaluate(2, 2, 4)
    shown = Shown()
    run.feed(shown)
    assert means(shown) == {0: 10.0, 2: 22.0, 4: 24.0}
    begun_again = tracked_run(run.path, NamedRun.of_folder(run.path), NAME)
    assert (begun_again.next_version, begun_again.next_step, begun_again.given_lines) == (5, 0, 5)
    later = Shown()
    run.feed(later)
    assert means(later) == {}


def test_what_was_scored_of_a_checkpoint_is_none_of_the_run(run: Run) -> None:
    """`rljob evaluate --out` may have been given the run's own file."""
    run.append(evaluations.FILE, {"time": 1.0, "version": None, "checkpoint": "/policy", "eval/dev/mean@4": 0.5})
    run.evaluate(1, 2)
    shown = Shown()
    run.feed(shown)
    assert means(shown) == {2: 12.0}


def test_samples_wait_for_their_step(run: Run) -> None:
    shown = Shown()
    run.train(1, 0)
    run.append(generations.FILE, {"rollout": 1, "epoch": 1, "response": "of a step that is in training"})
    run.feed(shown)
    assert shown.texts == {0: ["1:0"]}
    run.append("metrics.jsonl", {"step": 1, "epoch": 1, "reward/mean": 0.5})
    run.feed(shown)
    assert shown.texts[1] == ["of a step that is in training"]


def test_a_process_that_dies_before_its_cursor_is_written_gives_lines_twice_and_none_never(run: Run) -> None:
    run.train(1, 0, 1)
    run.feed(Shown())
    before = cursor_file(run.path, NAME).read_text()
    run.train(1, 2)
    run.feed(Shown())
    cursor_file(run.path, NAME).write_text(before)
    assert tracked_run(run.path, NamedRun.of_folder(run.path), NAME).next_step == 2
    shown = Shown()
    run.feed(shown)
    assert rewards(shown) == {2: 12.0}


def test_the_run_is_the_same_after_each_start(run: Run) -> None:
    first = tracked_run(run.path, NamedRun.of_folder(run.path), NAME)
    assert (first.id, first.next_step, first.given_lines, first.config) == ("demo-0123456789ab", 0, 0, {"seed": 3})
    run.train(1, 0, 1)
    run.append("events.jsonl", {"reason": "Ready"})
    run.feed(Shown())
    again = tracked_run(run.path, NamedRun.of_folder(run.path), NAME)
    assert (again.id, again.next_step, again.given_lines) == (first.id, 2, 5)


def test_events_are_numbered_through(run: Run) -> None:
    shown = Shown()
    run.append("events.jsonl", {"reason": "Started"}, {"reason": "Ready"})
    run.feed(shown)
    run.append("events.jsonl", {"reason": "Succeeded"})
    run.feed(shown)
    assert shown.noted == {0: "Started", 1: "Ready", 2: "Succeeded"}


def test_nothing_new_is_not_flushed(run: Run) -> None:
    shown = Shown()
    run.train(1, 0)
    run.feed(shown)
    run.feed(shown)
    assert shown.flushes == 1


def test_numbers_without_a_group_are_of_the_step() -> None:
    line = {
        "time": 1.0,
        "step": 3,
        "loss": 0.5,
        "restates": 1,
        "queueDepth": None,
        "policy/entropy": 2,
        "x/y": float("nan"),
    }
    assert figures_of(line, "step") == {"step/loss": 0.5, "policy/entropy": 2.0}


def test_a_line_is_read_when_it_is_whole_and_left_out_where_it_was_torn(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text('{"a": 1}\n{"a"')
    found, place = read_on(file, Place())
    assert [line for line, _ in found] == [{"a": 1}]
    file.write_text('{"a": 1}\n{"a"\n{"a": 2}\n')  # as the next writer closes it
    found, place = read_on(file, place)
    assert ([line for line, _ in found], place.lines, place.offset) == ([{"a": 2}], 3, 23)


def test_a_file_that_was_replaced_is_read_to_its_end_first(tmp_path: Path) -> None:
    file, older = tmp_path / "new", tmp_path / "old"
    file.write_text('{"a": 1}\n')
    _, place = read_on(file, Place(), older)
    with file.open("a") as out:
        out.write('{"a": 2}\n')
    file.rename(older)
    file.write_text('{"a": 3}\n')
    read = []
    for _ in range(3):
        found, place = read_on(file, place, older)
        read += [line["a"] for line, _ in found]
    assert (read, place.lines) == ([2, 3], 3)


def test_much_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "MAX_BYTES", 20)
    file = tmp_path / "lines"
    file.write_text("".join(f'{{"a": {number}}}\n' for number in range(5)))
    read, place = [], Place()
    while True:
        found, after = read_on(file, place)
        if after == place:
            break
        read += [line["a"] for line, _ in found]
        place = after
    assert read == [0, 1, 2, 3, 4]
