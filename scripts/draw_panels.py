"""Draws the panels of a dashboard as an SVG for a page: their own queries, answered by a Prometheus.

    python scripts/draw_panels.py helm/rljob-operator/dashboards/job.json --prometheus http://127.0.0.1:9090 \
        --set namespace=team --set job=demo --minutes 5 --rows Training,Queue > docs/dashboard-job.svg

For looking at a job open the dashboard in Grafana instead.
"""

import argparse
import json
import math
import re
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

COLUMN, LINE, GAP, MARGIN = 50, 25, 4, 8
"""Of Grafana's grid of 24 columns."""
POINTS = 60
COLOURS = ("#3274d9", "#e0752d", "#56a64b", "#a352cc", "#1f9aa8", "#e02f44", "#8f6b1f", "#6e7781")
INK, GREY = "#24292f", "#57606a"
LETTER_WIDTH = 5.4
AXIS = 56
TICKS = 3
Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Reader:
    """Who looks at a dashboard: with which Prometheus, what chosen, over which time."""

    address: str
    chosen: dict[str, str]
    start: float
    end: float

    def ask(self, expression: str, *, over_time: bool) -> list[tuple[dict[str, str], Points]]:
        """Series with their labels, of the whole time or of its end."""
        for name, value in self.chosen.items():
            expression = expression.replace(f"${name}", value)
        asked: dict[str, Any] = {"query": expression, "time": self.end}
        if over_time:
            step = max(1.0, (self.end - self.start) / POINTS)
            asked = {"query": expression, "start": self.start, "end": self.end, "step": step}
        path = "query_range" if over_time else "query"
        url = f"{self.address}/api/v1/{path}?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - the address is the caller's
            found = json.load(answer)["data"]["result"]
        return [(each["metric"], _points(each.get("values") or [each["value"]])) for each in found]


@dataclass(frozen=True, slots=True)
class Series:
    """What a line is called, and where it goes."""

    name: str
    points: Points


def _points(values: list[tuple[float, str]]) -> Points:
    numbers = [(float(at), float(value)) for at, value in values]
    return [(at, value) for at, value in numbers if math.isfinite(value)]


def series_of(panel: dict[str, Any], reader: Reader) -> list[Series]:
    """Of all queries of a panel, in their order."""
    found = []
    for target in panel["targets"]:
        for labels, points in reader.ask(target["expr"], over_time=not target["instant"]):
            legend = target.get("legendFormat", "")
            name = re.sub(r"{{(\w+)}}", lambda found, labels=labels: labels.get(found[1], ""), legend)
            found.append(Series(name.strip() or "none", points))
    return found


def draw(board: dict[str, Any], rows: list[str], reader: Reader) -> Iterator[str]:
    """The lines of the SVG: panels of these rows, as the dashboard places them."""
    shown, wanted = [], not rows
    for panel in board["panels"]:
        if panel["type"] == "row":
            wanted = not rows or panel["title"] in rows
        if wanted:
            shown.append(panel)
    if not shown:
        titles = ", ".join(panel["title"] for panel in board["panels"] if panel["type"] == "row")
        sys.exit(f"--rows {','.join(rows)}: the dashboard has no such row. Give some of: {titles}")
    marks = [at for each in board["annotations"].get("list") or () for at in _marks(each, reader)]
    body, tops, bottom = [], {}, MARGIN
    for panel in shown:
        place = panel["gridPos"]
        if place["y"] not in tops:
            tops[place["y"]] = bottom
            bottom += place["h"] * LINE
        x, y = MARGIN + place["x"] * COLUMN, tops[place["y"]]
        body += _panel(panel, reader, marks, x, y, place["w"] * COLUMN - GAP, place["h"] * LINE - GAP)
    width = 2 * MARGIN + 24 * COLUMN
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + MARGIN}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="11" fill="#24292f">'
    )
    yield f'<rect width="{width}" height="{bottom + MARGIN}" fill="#f4f5f5"/>'
    yield from body
    yield "</svg>"


def _marks(mark: dict[str, Any], reader: Reader) -> Iterator[float]:
    for _, points in reader.ask(mark["expr"], over_time=True):
        last = -math.inf
        for at, _ in points:  # a mark lasts as long as the window of its expression
            if at - last > 2 * (reader.end - reader.start) / POINTS:
                yield at
            last = at


def _panel(
    panel: dict[str, Any], reader: Reader, marks: list[float], x: float, y: float, width: float, height: float
) -> Iterator[str]:
    if panel["type"] == "row":
        yield f'<text x="{x}" y="{y + 17}" font-size="14" font-weight="bold">{escape(panel["title"])}</text>'
        return
    yield f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="#ffffff" stroke="#d8dee4"/>'
    yield (
        f'<text x="{x + 8}" y="{y + 16}" font-weight="bold">{escape(panel["title"])}'
        f"<title>{escape(panel['description'])}</title></text>"
    )
    if panel["type"] == "table":
        yield from _table(panel, reader, x + 8, y + 38)
        return
    series = series_of(panel, reader)
    unit = panel["fieldConfig"]["defaults"].get("unit", "none")
    if panel["type"] == "stat":
        by_name = panel["options"]["textMode"] == "name"
        # One whose only value is not a number has no points.
        shown = [one.name if by_name else number(one.points[-1][1], unit) for one in series if one.points]
        text = ", ".join(shown) or "no data"
        yield _text(x + width / 2, y + height / 2 + 20, text, size=26, anchor="middle")
    elif panel["type"] == "state-timeline":
        yield from _states(series, reader, x + 8, y + 28, width - 16, height - 44)
    elif not series and "noValue" in panel["fieldConfig"]["defaults"]:
        yield _text(x + width / 2, y + height / 2, panel["fieldConfig"]["defaults"]["noValue"], anchor="middle")
    else:
        frame = (x + AXIS, y + 28, width - AXIS - 10, height - 62)
        yield from _lines(panel, series, unit, reader, marks, frame)
        yield from _legend(series, x + 8, y + height - 8, width - 16)


def _lines(
    panel: dict[str, Any],
    series: list[Series],
    unit: str,
    reader: Reader,
    marks: list[float],
    frame: tuple[float, float, float, float],
) -> Iterator[str]:
    x, y, width, height = frame
    stacked = panel["fieldConfig"]["defaults"].get("custom", {}).get("stacking", {}).get("mode") == "normal"
    drawn = _stacked(series) if stacked else series
    values = [value for one in drawn for _, value in one.points] or [0.0]
    limits = panel["fieldConfig"]["defaults"]
    low, high = limits.get("min"), limits.get("max")
    low = min(values) if low is None else low
    high = max(values) if high is None else high
    high = high if high > low else low + 1

    def across(at: float) -> float:
        return x + (at - reader.start) / (reader.end - reader.start) * width

    def up(value: float) -> float:
        return y + height - (min(max(value, low), high) - low) / (high - low) * height

    for tick in range(TICKS + 1):
        value = low + (high - low) * tick / TICKS
        yield f'<line x1="{x}" y1="{up(value):.1f}" x2="{x + width}" y2="{up(value):.1f}" stroke="#e8eaed"/>'
        yield _text(x - 5, up(value) + 4, number(value, unit), anchor="end", colour=GREY)
        at = reader.start + (reader.end - reader.start) * tick / TICKS
        text = time.strftime("%M:%S", time.gmtime(at - reader.start))
        yield _text(across(at), y + height + 13, text, anchor="end" if tick == TICKS else "middle", colour=GREY)
    for at in marks:
        yield f'<line x1="{across(at):.1f}" y1="{y}" x2="{across(at):.1f}" y2="{y + height}" stroke="#ff9830"/>'
    step = (reader.end - reader.start) / POINTS
    for index, one in enumerate(drawn):
        places = [(at, f"{across(at):.0f} {up(value):.0f}", f"{up(value):.0f}") for at, value in one.points]
        path = "".join(_path(places, 2 * step + 1))
        if path:
            yield f'<path d="{path}" fill="none" stroke="{COLOURS[index % len(COLOURS)]}" stroke-width="1.5"/>'


def _path(places: list[tuple[float, str, str]], longest: float) -> Iterator[str]:
    """A line that ends where a series does; of what stays the same, the ends alone."""
    for index, (at, place, height) in enumerate(places):
        begins = index == 0 or at - places[index - 1][0] > longest
        ends = index + 1 == len(places) or places[index + 1][0] - at > longest
        if begins or ends or not height == places[index - 1][2] == places[index + 1][2]:
            yield f"{'M' if begins else 'L'}{place}"


def _stacked(series: list[Series]) -> list[Series]:
    """Each on top of those before it."""
    sums: dict[float, float] = {}
    stacked = []
    for one in series:
        sums |= {at: sums.get(at, 0.0) + value for at, value in one.points}
        stacked.append(Series(one.name, [(at, sums[at]) for at, _ in one.points]))
    return stacked


def _legend(series: list[Series], x: float, y: float, width: float) -> Iterator[str]:
    end = x + width
    for index, one in enumerate(series):
        wide = 18 + len(one.name) * LETTER_WIDTH
        if x + wide > end:
            yield _text(x, y - 3, "...")
            return
        yield f'<rect x="{x:.0f}" y="{y - 8}" width="10" height="3" fill="{COLOURS[index % len(COLOURS)]}"/>'
        yield _text(x + 13, y - 3, one.name)
        x += wide + 6


def _states(series: list[Series], reader: Reader, x: float, y: float, width: float, height: float) -> Iterator[str]:
    line, step = height / max(len(series), 1), (reader.end - reader.start) / POINTS
    for index, one in enumerate(series):
        top = y + index * line
        yield _text(x, top + line / 2 + 4, one.name)
        begin, last = None, 0.0
        for at, value in [*one.points, (reader.end + 9 * step, 0.0)]:
            if begin is not None and (not value or at - last > 2 * step + 1):
                left = x + 80 + (begin - reader.start) / (reader.end - reader.start) * (width - 80)
                wide = max(1.5, (last + step - begin) / (reader.end - reader.start) * (width - 80))
                size = f'width="{min(wide, x + width - left):.1f}" height="{line - 4:.1f}"'
                yield f'<rect x="{left:.1f}" y="{top + 2:.1f}" {size} fill="{COLOURS[0]}"/>'
                begin = None
            if value and begin is None:
                begin = at
            last = at


def _table(panel: dict[str, Any], reader: Reader, x: float, y: float) -> Iterator[str]:
    names = next(one["options"] for one in panel["transformations"] if one["id"] == "organize")
    hidden = {name for name, excluded in names["excludeByName"].items() if excluded}
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for target in panel["targets"]:
        column = f"Value #{target['refId']}"
        for labels, points in reader.ask(target["expr"], over_time=False):
            row = rows.setdefault((labels["namespace"], labels["job"]), {})
            row |= labels
            if column not in hidden and points:
                row[names["renameByName"][column]] = number(points[-1][1], "none")
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    for line, row in enumerate([dict(zip(columns, columns, strict=True)), *rows.values()]):
        for place, name in enumerate(columns):
            weight = "bold" if line == 0 else "normal"
            text = escape(row.get(name, ""))
            yield f'<text x="{x + place * 130}" y="{y + line * 20}" font-weight="{weight}">{text}</text>'


def _text(x: float, y: float, text: str, *, size: int = 10, anchor: str = "start", colour: str = INK) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}"'
    return f"<text {place}>{escape(text)}</text>"


def number(value: float, unit: str) -> str:
    """As Grafana writes it, or nearly."""
    if unit == "percentunit":
        return f"{value * 100:.0f} %"
    if unit in ("bytes", "Bps"):
        power = min(int(math.log(abs(value), 1024)), 4) if abs(value) >= 1 else 0
        ending = ("B", "KiB", "MiB", "GiB", "TiB")[power]
        return f"{value / 1024**power:.3g} {ending}{'/s' if unit == 'Bps' else ''}"
    if unit == "s" and 0 < abs(value) < 1:
        return f"{value * 1000:.3g} ms"
    text = f"{value:.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.3g}"
    return f"{text} s" if unit == "s" else text


def main() -> None:
    """Reads the arguments and prints the picture."""
    parser = argparse.ArgumentParser(description="Draw the panels of a dashboard as SVG, as a Prometheus answers them.")
    parser.add_argument("dashboard", type=Path)
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", help="its address")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a variable of the dashboard")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--window", default="1m", help="what $__rate_interval is")
    parser.add_argument("--rows", default="", help="titles of rows, with commas between them; all, if none is given")
    options = parser.parse_args()
    chosen = {"__rate_interval": options.window, **dict(one.split("=", 1) for one in options.set)}
    end = time.time()
    reader = Reader(options.prometheus.rstrip("/"), chosen, end - options.minutes * 60, end)
    rows = [title for title in options.rows.split(",") if title]
    sys.stdout.write("\n".join(draw(json.loads(options.dashboard.read_text()), rows, reader)) + "\n")


if __name__ == "__main__":
    main()
