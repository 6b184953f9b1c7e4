"""A file system that is full is named, with its cure, by each log that a rank appends to."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rljob_workers.telemetry.sample_logs import GenerationLog, LoggedGeneration, SampleLog, TrainedSample
from rljob_workers.telemetry.timeline import Timeline

FULL = Path("/dev/full")
"""Linux' file whose every write finds no room."""


def write_trained(path: Path) -> None:
    log = SampleLog(path)
    log.append([TrainedSample("train_3", 1, 0, 2, 3, 1, 0, 0.5, True)])
    log.sync()


def write_generated(path: Path) -> None:
    log = GenerationLog(path.parent)
    log.append([LoggedGeneration(3, 1, 1, 0, "1=", "1", 2, 1, "stop", 1.0, True, 0.0, ())])


def write_spans(path: Path) -> None:
    timeline = Timeline(path, "actor-0.0")
    with timeline.span("train"):
        pass
    timeline.flush()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the file is closed with what it holds
@pytest.mark.parametrize(
    ("name", "write", "what"),
    [
        pytest.param("samples.jsonl", write_trained, "samples.jsonl (telemetry.sampleLog)", id="the audit"),
        pytest.param("generations.jsonl", write_generated, "generations.jsonl", id="the texts"),
        pytest.param("actor-0.0.x.jsonl", write_spans, "the timeline", id="the timeline"),
    ],
)
def test_a_full_file_system_is_named(tmp_path: Path, name: str, write: Callable[[Path], None], what: str) -> None:
    (tmp_path / name).symlink_to(FULL)
    sentence = rf"The file system \S+ \(.* are free\) has no room for {re.escape(what)}\. .*; then resume the job\."
    with pytest.raises(ValueError, match=sentence):
        write(tmp_path / name)
