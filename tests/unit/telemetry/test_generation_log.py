"""Texts for people, in files whose size is bounded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rljob_api.generations import FILE, MAX_CHARACTERS, OLDER_FILE
from rljob_workers.telemetry.sample_logs import (
    DrawsOfGroup,
    GenerationLog,
    LoggedGeneration,
    LoggedTurn,
    SpanOfVersion,
    turns_of,
)

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


def test_a_sample_has_the_draws_of_its_group_where_a_filter_has_seen_it() -> None:
    line = json.loads(replace(SAMPLE, draws=DrawsOfGroup(2, last_refused=False)).line())
    assert (line["draws"], line["lastDrawRefused"]) == (2, False)
    assert "draws" not in json.loads(SAMPLE.line())


def test_a_sample_has_label_and_parts_of_its_reward_where_there_are_such() -> None:
    line = json.loads(replace(SAMPLE, label="2", reward_parts={"right": 1.0, "odd": float("nan")}).line())
    assert (line["label"], line["rewardParts"]) == ("2", {"right": 1.0, "odd": None})
    assert not {"label", "rewardParts"} & json.loads(SAMPLE.line()).keys()


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


def decode(sequences: Sequence[Sequence[int]]) -> list[str]:
    return ["".join(map(str, sequence)) for sequence in sequences]


def test_a_response_that_a_tool_wrote_into_is_logged_by_turns() -> None:
    turns = turns_of([1, 1, 0, 1], [4, 5, 6, 7], decode)
    assert turns == [LoggedTurn("model", 0, 2, "45"), LoggedTurn("tool", 2, 3, "6"), LoggedTurn("model", 3, 4, "7")]
    (logged,) = json.loads(replace(SAMPLE, turns=turns[1:2]).line())["turns"]
    assert logged == {"by": "tool", "start": 2, "end": 3, "text": "6"}


def test_a_response_of_the_model_alone_has_no_turns() -> None:
    assert turns_of([1, 1], [4, 5], decode) == turns_of([0], [4], decode) == turns_of([], [], decode) == []
