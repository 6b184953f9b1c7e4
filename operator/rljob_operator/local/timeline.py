"""The timeline of a run: the parts that ranks wrote, merged into one Chrome trace."""

import json
from pathlib import Path

from rljob_operator.local.run_files import read_lines


def merge(run: Path) -> Path:
    """Writes `timeline.json`, an array of trace events in order of time; lines torn by a kill are left out."""
    events = [event for part in sorted((run / "timeline").glob("*.jsonl")) for event in read_lines(part)]
    events.sort(key=lambda event: (event.get("ph") != "M", event.get("ts", 0)))
    target = run / "timeline.json"
    with target.open("w") as out:
        out.write("[\n")
        out.write(",\n".join(json.dumps(event, separators=(",", ":")) for event in events))
        out.write("\n]\n")
    return target
