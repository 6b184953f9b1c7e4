"""Spans come out as Chrome trace events."""

import json
from pathlib import Path

from rljob_workers.telemetry.timeline import Timeline


def test_a_span_has_begin_duration_row_and_arguments(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "timeline" / "actor-0.0.jsonl", "actor-0.0")
    with timeline.span("train", row=1, r=7):
        pass
    timeline.close()
    name, span = [json.loads(line) for line in (tmp_path / "timeline" / "actor-0.0.jsonl").read_text().splitlines()]
    assert name["args"] == {"name": "actor-0.0"}
    assert (span["ph"], span["name"], span["tid"], span["args"]) == ("X", "train", 1, {"r": 7})
    assert span["dur"] >= 0
