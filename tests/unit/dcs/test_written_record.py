"""Lines that the coordinator writes for trackers on a cluster: each evaluation once, also by the next coordinator."""

import json
from pathlib import Path
from typing import Any

from rljob_api.evaluations import FILE
from rljob_api.wire.observation import CoordinatorEvent, EventKind
from rljob_workers.dcs.coordinator.written_record import WrittenRecord


def evaluated(version: int, epoch: int, mean: float) -> CoordinatorEvent:
    report = {"version": version, "samples": 4, "metrics": {"eval/dev/mean@1": mean}}
    event = {"id": version, "at": 100.0 * epoch + version, "kind": EventKind.EVALUATED, "epoch": epoch, "message": "m"}
    return CoordinatorEvent.model_validate({**event, "evaluation": report})


def lines(folder: Path, name: str = FILE) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_an_evaluation_is_a_line_once_and_another_one_where_it_is_repeated(tmp_path: Path) -> None:
    events = [evaluated(2, 1, 0.25), evaluated(4, 1, 0.5)]
    first = WrittenRecord(tmp_path)
    first.begin()
    first.write(events)
    first.write(events)
    second = WrittenRecord(tmp_path)
    second.begin()
    second.write([*events, evaluated(4, 2, 0.75)])
    assert lines(tmp_path) == [
        {"time": 102.0, "version": 2, "epoch": 1, "samples": 4, "eval/dev/mean@1": 0.25},
        {"time": 104.0, "version": 4, "epoch": 1, "samples": 4, "eval/dev/mean@1": 0.5},
        {"time": 204.0, "version": 4, "epoch": 2, "samples": 4, "eval/dev/mean@1": 0.75},
    ]
    assert [line["reason"] for line in lines(tmp_path, "events.jsonl")] == ["Evaluated"] * 3
