"""Draws a few steps of a run's timeline.json as an SVG for a page: a row per process, a colour per rollout.

    python scripts/draw_timeline.py rljob-out/quickstart/timeline.json --first 100 --steps 3 > docs/timeline.svg

For looking around in a run open timeline.json in https://ui.perfetto.dev instead.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, TOP = 900, 104, 16, 46
BAR, LANE_GAP, ROW_GAP = 18, 3, 12
COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#e15759")
ORDER = ("rollout", "reference", "advantages", "actor_fwd", "actor", "critic")
LABELS = {"ref_log_probs": "ref", "actor_log_probs": "fwd", "advantages": "adv"}
LETTER_WIDTH = 6.2
TICK_MS = 50


@dataclass(frozen=True, slots=True)
class Bar:
    """One span: what a process did for one rollout."""

    process: str
    name: str
    rollout_id: int
    start_ms: float
    length_ms: float


def read_bars(events: list[dict[str, Any]], first: int, steps: int) -> list[Bar]:
    """The spans of rollouts `first` and the ones after it; times count from the first of them."""
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    chosen = [event for event in events if event["ph"] == "X" and first <= event["args"].get("r", -1) < first + steps]
    if not chosen:
        sys.exit(f"--first: the timeline has no span of rollout {first}. Give one that was trained.")
    begin = min(event["ts"] for event in chosen)
    return [
        Bar(
            names[event["pid"]].removesuffix("-0.0"),
            event["name"],
            event["args"]["r"],
            (event["ts"] - begin) / 1000,
            event["dur"] / 1000,
        )
        for event in chosen
    ]


def lanes_of(bars: list[Bar]) -> list[list[Bar]]:
    """Bars of one process without overlaps within a lane."""
    lanes: list[list[Bar]] = []
    for bar in sorted(bars, key=lambda bar: bar.start_ms):
        free = next((lane for lane in lanes if lane[-1].start_ms + lane[-1].length_ms <= bar.start_ms), None)
        if free is None:
            lanes.append([bar])
        else:
            free.append(bar)
    return lanes


def draw(bars: list[Bar], first: int, steps: int) -> Iterator[str]:
    """The lines of the SVG."""
    end = max(bar.start_ms + bar.length_ms for bar in bars)
    scale = (WIDTH - LEFT - RIGHT) / end
    body: list[str] = []
    y = TOP
    for process in sorted({bar.process for bar in bars}, key=_place):
        lanes = lanes_of([bar for bar in bars if bar.process == process])
        height = len(lanes) * (BAR + LANE_GAP) - LANE_GAP
        body.append(f'<text x="{LEFT - 10}" y="{y + height / 2 + 4}" text-anchor="end">{escape(process)}</text>')
        for index, lane in enumerate(lanes):
            body += [line for bar in lane for line in _bar(bar, y + index * (BAR + LANE_GAP), scale, first)]
        y += height + ROW_GAP
    height = y + 22
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#24292f">'
    )
    yield f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    yield from _legend(first, steps)
    yield from _axis(end, scale, y)
    yield from body
    yield "</svg>"


def _place(process: str) -> tuple[int, str]:
    role = process.partition("-")[0]
    return (ORDER.index(role) if role in ORDER else len(ORDER), process)


def _bar(bar: Bar, y: float, scale: float, first: int) -> Iterator[str]:
    x, width = LEFT + bar.start_ms * scale, max(bar.length_ms * scale, 1.5)
    colour = COLOURS[(bar.rollout_id - first) % len(COLOURS)]
    hover = f"{bar.name} of rollout {bar.rollout_id}: {bar.length_ms:.0f} ms"
    yield (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2" fill="{colour}">'
        f"<title>{escape(hover)}</title></rect>"
    )
    label = LABELS.get(bar.name, bar.name)
    if len(label) * LETTER_WIDTH + 4 <= width:
        yield f'<text x="{x + width / 2:.1f}" y="{y + 13}" text-anchor="middle" fill="#ffffff">{escape(label)}</text>'


def _legend(first: int, steps: int) -> Iterator[str]:
    for index in range(steps):
        x = LEFT + index * 110
        yield f'<rect x="{x}" y="12" width="12" height="12" rx="2" fill="{COLOURS[index % len(COLOURS)]}"/>'
        yield f'<text x="{x + 18}" y="22">rollout {first + index}</text>'


def _axis(end_ms: float, scale: float, bottom: float) -> Iterator[str]:
    for tick in range(0, int(end_ms) + 1, TICK_MS):
        x = LEFT + tick * scale
        yield f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{bottom}" stroke="#d8dee4"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle" fill="#57606a">{tick} ms</text>'


def main() -> None:
    """Reads the arguments and prints the picture."""
    parser = argparse.ArgumentParser(description="Draw a few steps of a timeline.json as SVG.")
    parser.add_argument("timeline", type=Path)
    parser.add_argument("--first", type=int, default=100, help="first rollout of the picture")
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    bars = read_bars(json.loads(options.timeline.read_text()), options.first, options.steps)
    sys.stdout.write("\n".join(draw(bars, options.first, options.steps)) + "\n")


if __name__ == "__main__":
    main()
