"""The Python door: what a job is given to `rljob run` as, and what comes of the lines of a process."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import rljob
from rljob import Job, ManifestError, Run, load_run, run
from rljob_api.manifest import document_of
from tests.unit.api.manifests import GOOD

START = {"kind": "start", "name": "demo", "out": "out", "totalSteps": 3}
RESULT = {
    "kind": "result",
    "phase": "Succeeded",
    "reason": "Succeeded",
    "message": "all are trained",
    "steps": 3,
    "rewardFirst": 0.1,
    "rewardLast": 0.9,
    "rewardSteps": 1,
    "troubles": [{"reason": "NoVariance", "message": "steps 0 to 9: all alike"}],
    "samplesPerSecond": 10.0,
    "seconds": 4.2,
    "epoch": 2,
    "checkpoint": 3,
    "globalRestarts": 1,
    "out": "out",
    "resume": "",
}


def step(number: int, epoch: int = 1, **more: Any) -> dict[str, Any]:
    facts = {"time": 1.0e9 + number, "reward": 0.5, "staleness": 1, "queueDepth": 2, "samples": 32, "seconds": 1.0}
    return {"kind": "step", "step": number, "epoch": epoch, **facts, "tokens": 96, **more}


REPEATED = [START, step(0), step(1), step(1, 2, restates=1), step(2, 2), RESULT]
"""A restart took step 1 back."""

WAIT = "import signal, sys, time\nsignal.signal(signal.SIGINT, lambda *_: end())\n"
ON_STOP = "def end():\n    print({line!r}, flush=True)\n    sys.exit(130)\n"
REFUSED = "import sys\nsys.stderr.write('job.yaml:3: spec.seed: ...\\n')\nsys.exit(64)\n"


def printing(lines: list[dict[str, Any]]) -> str:
    """A program that prints these lines."""
    return "".join(f"print({json.dumps(line)!r}, flush=True)\n" for line in lines)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[[str], Run]]:
    """A run whose process is this program."""
    runs: list[Run] = []

    def start(program: str) -> Run:
        files = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115 - the run closes them
        process = subprocess.Popen([sys.executable, "-c", program], stdout=files[0], stderr=files[1])
        runs.append(Run(tmp_path, process, *files))
        return runs[-1]

    yield start
    for one in runs:
        one.kill()


def test_the_names_are_these() -> None:
    assert rljob.__all__ == ["Job", "ManifestError", "Result", "Run", "RunFiles", "load_run", "run"]


def test_each_row_comes_once_and_one_that_is_repeated_names_what_it_replaces(started: Callable[[str], Run]) -> None:
    rows = list(started(printing(REPEATED)))
    assert [(row["step"], row["epoch"], row.get("restates")) for row in rows] == [
        (0, 1, None),
        (1, 1, None),
        (1, 2, 1),
        (2, 2, None),
    ]


def test_a_loop_after_a_break_goes_on_where_the_last_one_ended(started: Callable[[str], Run]) -> None:
    going = started(printing(REPEATED))
    first = next(iter(going))["step"]
    assert [first, *(row["step"] for row in going)] == [0, 1, 1, 2]
    assert list(going) == []


def test_the_end_is_known_without_reading_the_steps(started: Callable[[str], Run]) -> None:
    result = started(printing(REPEATED)).result()
    assert (result.succeeded, result.reason, result.steps, result.reward_last) == (True, "Succeeded", 3, 0.9)
    assert result.troubles == ("NoVariance: steps 0 to 9: all alike",)
    assert (result.checkpoint, result.global_restarts) == (3, 1)


def test_leaving_with_stops_a_run_that_goes_on(started: Callable[[str], Run]) -> None:
    line = json.dumps({**RESULT, "phase": "Interrupted", "reason": "Interrupted"})
    program = ON_STOP.format(line=line) + WAIT + printing([START, step(0)]) + "time.sleep(600)\n"
    with started(program) as going:
        for _ in going:
            break
        assert going.is_running
        with pytest.raises(TimeoutError, match=r"goes on after 0 s\."):
            going.result(timeout_seconds=0)
    assert not going.is_running
    assert (going.result().phase, going.result().succeeded) == ("Interrupted", False)


def test_a_killed_command_has_a_result_too(started: Callable[[str], Run]) -> None:
    going = started("import time; time.sleep(600)")
    going.kill()
    result = going.result()
    assert (result.phase, result.reason) == ("Interrupted", "Killed")
    assert result.message == "rljob run ended by signal 9 before it had reported an end."


def test_a_refusal_is_raised_by_whatever_waits(started: Callable[[str], Run]) -> None:
    going = started(REFUSED)
    for wait in (going.result, lambda: list(going), going.watch):
        with pytest.raises(ManifestError, match=r"job\.yaml:3: spec\.seed"):
            wait()


def test_what_is_written_while_it_is_read_stays_whole(started: Callable[[str], Run]) -> None:
    """The process writes where it was, though Python has read to the end meanwhile; half a line is waited for."""
    program = (
        "import sys, time\n"
        "for n in range(200):\n"
        '    text = \'{"kind": "step", "step": \' + str(n) + \'}\\n\'\n'
        "    sys.stdout.write(text[:9]); sys.stdout.flush()\n"
        "    if n % 50 == 0: time.sleep(0.15)\n"
        "    sys.stdout.write(text[9:]); sys.stdout.flush()\n"
    )
    assert [row["step"] for row in started(program)] == list(range(200))


def test_watching_prints_events_progress_and_the_end(
    started: Callable[[str], Run], capsys: pytest.CaptureFixture[str]
) -> None:
    event = {"kind": "event", "time": "2026-01-01T00:00:00Z", "reason": "Ready", "role": None, "scope": None}
    program = printing([START, {**event, "message": "all are"}, step(0), step(1), step(2), RESULT])
    assert started(program).watch(every_seconds=3600).succeeded
    printed = [line.split(" ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert [line[:11] for line in printed[:3]] == ["Ready: all ", "step 1/3  r", "step 3/3  r"]
    assert printed[3:] == ["all are trained"]  # without `Succeeded:`


def test_metrics_of_a_folder_have_each_step_as_it_was_trained_last(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("{}")
    rows = [step(0), step(1), step(2), step(1, 2, restates=1)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows) + '{"step": 2, "ep')
    assert [(row["step"], row["epoch"]) for row in load_run(tmp_path).metrics()] == [(0, 1), (1, 2)]
    assert (load_run(tmp_path).events(), load_run(tmp_path).status()) == ([], {})


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=rf"{tmp_path} is not the folder of a run: it has no job\.json"):
        load_run(tmp_path)


def test_evaluations_are_rows_by_version_as_they_were_evaluated_last(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("{}")
    assert load_run(tmp_path).evaluations() == []
    lines = [
        {"time": 1.0, "version": version, "epoch": epoch, "samples": 8, "eval/dev/mean@4": 10.0 * epoch + version}
        for epoch, version in ((1, 0), (1, 2), (1, 4), (1, 6), (2, 4))
    ]
    of_checkpoint = {"time": 1.0, "version": 4, "checkpoint": "/policy", "samples": 8, "eval/dev/mean@4": 0.5}
    text = "".join(json.dumps(line) + "\n" for line in (*lines, of_checkpoint))
    (tmp_path / "evaluations.jsonl").write_text(text + '{"version": 6, "ep')
    found = load_run(tmp_path).evaluations()
    assert {row["version"]: row["eval/dev/mean@4"] for row in found} == {0: 10.0, 2: 12.0, 4: 24.0}


def test_samples_are_rows_without_those_that_were_trained_again(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("{}")
    assert load_run(tmp_path).samples() == []
    lines = [
        {"rollout": rollout, "epoch": epoch, "group": 0, "index": 0} for epoch, rollout in ((1, 0), (1, 1), (2, 1))
    ]
    (tmp_path / "generations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [(row["rollout"], row["epoch"]) for row in load_run(tmp_path).samples()] == [(0, 1), (1, 2)]


class Frame:
    """The part of pandas that is called."""

    @staticmethod
    def from_records(rows: list[dict[str, Any]], index: str | None) -> tuple[int, str | None]:
        return len(rows), index


@pytest.mark.parametrize(("of", "index"), [("metrics", "step"), ("evaluations", "version"), ("samples", None)])
def test_rows_of_each_kind_are_a_data_frame_by_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: Any, index: str | None
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=Frame))
    (tmp_path / "job.json").write_text("{}")
    row = json.dumps({"epoch": 1, "step": 0, "version": 1, "rollout": 0, "group": 0, "index": 0}) + "\n"
    for name in ("metrics", "evaluations", "generations"):
        (tmp_path / f"{name}.jsonl").write_text(row)
    assert load_run(tmp_path).to_pandas(of) == (1, index)


def test_without_pandas_a_sentence_names_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pandas is not installed in .* take the rows of metrics\(\)"):
        load_run(tmp_path).to_pandas()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(GOOD))
    return tmp_path / "job.yaml"


def test_a_job_of_a_file_is_the_command_with_its_fields(file: Path) -> None:
    job = Job.from_file(file, {"training.optimizer.learningRate": 1e-6, "model.headDtype": None})
    job = job.with_overrides({"metadata.name": "other"})
    assert (job.name, job.spec.training.optimizer.learning_rate) == ("other", 1e-6)
    assert job.arguments == [
        *(str(file), "--set", "training.optimizer.learningRate=1e-06"),
        *("--set", "model.headDtype=null", "--set", 'metadata.name="other"'),
    ]


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"rollout.batchSize": -1}, r"^--set: spec.rollout.batchSize: -1 is below the minimum 1"),
        ({"learningRat": 1}, r"^--set: spec.learningRat: there is no such field. Did you mean training.optimizer"),
        ({"data.prompts": None}, r"^--set: spec.data.prompts: exactly one of prompts, sources and reasoningGym"),
    ],
)
def test_a_wrong_field_is_refused_when_the_job_is_made(file: Path, overrides: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ManifestError, match=sentence):
        Job.from_file(file, overrides)
    with pytest.raises(ManifestError, match=sentence):
        Job.from_dict(GOOD, overrides)


def test_a_wrong_field_of_the_file_has_its_line(file: Path) -> None:
    file.write_text(file.read_text().replace("batchSize: 32", "batchSize: 0"))
    with pytest.raises(ManifestError, match=rf"^{file}:\d+: spec.rollout.batchSize: 0 is below"):
        Job.from_file(file)


def test_a_dict_is_a_manifest_on_standard_input_in_its_folder(tmp_path: Path) -> None:
    job = Job.from_dict(GOOD, folder=tmp_path)
    assert (job.arguments, job.working_folder) == (["-"], tmp_path)
    assert document_of(job.standard_input.decode(), "-") == GOOD


@given(st.text(), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.integers(-(2**53), 2**53))
def test_values_of_a_dict_arrive_as_they_are(text: str, number: float, truth: bool, count: int) -> None:
    labels = {"a": text}
    document = {**GOOD, "metadata": {"name": "demo", "labels": labels}}
    template = {"number": number, "truth": truth, "count": count, "text": text}
    document["spec"] = {**GOOD["spec"], "roles": {"reference": {}, "rollout": {"template": template}}}
    job = Job.from_dict(document)
    assert document_of(job.standard_input.decode(), "-") == document
    assert job.spec.roles.rollout.template == template


def test_a_job_that_names_what_is_not_there_is_refused_by_the_command(tmp_path: Path) -> None:
    job = Job.from_dict(GOOD, {"data.prompts": "absent.jsonl"}, folder=tmp_path)
    going = run(job, out=tmp_path / "out")
    with pytest.raises(ManifestError, match=rf"^--set: spec.data.prompts: {tmp_path}/absent.jsonl cannot be read"):
        going.result()
    assert not (tmp_path / "out").exists()
