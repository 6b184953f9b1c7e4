"""The audit's lines survive a writer that died in the middle of one."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rljob_workers.telemetry.sample_logs import DrawsOfGroup, SampleLog, TrainedSample


def make_sample(index: int = 0) -> TrainedSample:
    return TrainedSample("train_3", 1, index, 2, 3, 1, 0, 0.5, True)


def test_lines_are_json_with_the_documented_keys(tmp_path: Path) -> None:
    log = SampleLog(tmp_path / "samples.jsonl")
    log.append([make_sample(0), make_sample(1)])
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert lines[1] == {
        "partition": "train_3",
        "group": 1,
        "index": 1,
        "weightVersion": 2,
        "step": 3,
        "epoch": 1,
        "pass": 0,
        "reward": 0.5,
        "valid": True,
    }


def test_a_line_has_the_draws_of_its_group_where_a_filter_has_seen_it() -> None:
    line = json.loads(replace(make_sample(), draws=DrawsOfGroup(3, last_refused=True)).line())
    assert (line["draws"], line["lastDrawRefused"]) == (3, True)


@pytest.mark.parametrize(
    ("before", "retained"),
    [
        pytest.param(b"", b"", id="an empty file stays empty"),
        pytest.param(b'{"a":1}\n', b'{"a":1}\n', id="whole lines stay"),
        pytest.param(b'{"a":1}\n{"a":', b'{"a":1}\n', id="half a line goes"),
        pytest.param(b'{"a":', b"", id="a file of half a line becomes empty"),
        pytest.param(b"x\n" + b"y" * 200_000, b"x\n", id="half a line longer than one read goes"),
    ],
)
def test_a_torn_line_is_cut_off(tmp_path: Path, before: bytes, retained: bytes) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_bytes(before)
    log = SampleLog(path)
    log.append([make_sample()])
    log.close()
    assert path.read_bytes() == retained + make_sample().line()
