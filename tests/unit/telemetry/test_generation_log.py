"""Texts for people, in files whose size is bounded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from rljob_api.generations import FILE, MAX_CHARACTERS, OLDER_FILE
from rljob_workers.telemetry.sample_logs import GenerationLog, LoggedGeneration, SpanOfVersion

SAMPLE = LoggedGeneration(
    rollout=0,
    epoch=1,
    group=2,
    index=3,
    prompt="1+1=",
    response="2",
    prompt_tokens=4,
    response_tokens=1,
    finish_reason="stop",
    reward=1.0,
    valid=True,
    advantage=0.0,
    versions=[SpanOfVersion(1, 0, 0, 1)],
)


def rollouts(path: Path) -> list[int]:
    return [json.loads(line)["rollout"] for line in path.read_text().splitlines()]


def test_a_long_text_is_retained_without_its_middle() -> None:
    whole, long = "x" * MAX_CHARACTERS, "a" * MAX_CHARACTERS + "bc" + "d" * MAX_CHARACTERS
    line = json.loads(replace(SAMPLE, prompt=whole, response=long).line())
    assert line["prompt"] == whole
    half = MAX_CHARACTERS // 2
    assert line["response"] == f"{'a' * half}\n[{MAX_CHARACTERS + 2} characters left out]\n{'d' * half}"


def test_the_older_of_two_files_goes_when_the_newer_is_full(tmp_path: Path) -> None:
    size = len(SAMPLE.line())
    log = GenerationLog(tmp_path, max_bytes=3 * size)
    for rollout in range(8):
        log.append([replace(SAMPLE, rollout=rollout)])
    log.close()
    assert rollouts(tmp_path / OLDER_FILE) == [3, 4, 5]
    assert rollouts(tmp_path / FILE) == [6, 7]
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE, OLDER_FILE]


def test_a_incarnation_goes_on_where_the_last_one_died(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(SAMPLE.line() + SAMPLE.line()[:10])
    log = GenerationLog(tmp_path)
    log.append([replace(SAMPLE, rollout=1)])
    assert rollouts(tmp_path / FILE) == [0, 1], "readers see a line before the file is closed"
    log.close()
