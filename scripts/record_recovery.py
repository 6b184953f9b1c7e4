"""Records how a run loses a rank by SIGKILL and recovers, and draws what the terminal has shown as an animated SVG.

    rljob init quickstart
    python scripts/record_recovery.py quickstart.yaml --set rollout.numRollouts=60 --after 45 > docs/recovery.svg

The job is real: `rljob run --audit` in the manifest's folder, the kill of a role's first rank once so many steps are
trained, and `rljob audit` at the end. Lines are those that were printed, at the times at which they came.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from xml.sax.saxutils import escape

COLUMNS, ROWS = 112, 32
LETTER, LINE, MARGIN, BAR = 7.3, 17, 14, 30
FONT = "12px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
BACK, INK, QUIET = "#0d1117", "#c9d1d9", "#8b949e"
COLOURS = {
    "$ ": "#e3b341",
    "RankExited": "#ff7b72",
    "EpochOpened": "#79c0ff",
    "Ready": "#7ee787",
    "Succeeded": "#7ee787",
    "Holds": "#7ee787",
}
HOLD_SECONDS = 8.0
"""The end stays on screen for this long before it begins anew."""

PAUSE_SECONDS = 2.0
"""No pause is shown longer. Lines have the time of day."""

POLL_SECONDS = 0.05
TYPING_SECONDS = 1.0
"""Between the end of the run and the command that asks for the proof."""


@dataclass(frozen=True, slots=True)
class Line:
    """What came on the terminal, and when: seconds after the first command."""

    at: float
    text: str


def rljob(arguments: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    """The command with its output in a pipe."""
    command = [sys.executable, "-u", "-m", "rljob_cli", *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def record(manifest: Path, overrides: Sequence[str], role: str, after: int) -> list[Line]:
    """Runs the job, kills, and asks for the proof; what cannot be shown ends the program."""
    options = [part for text in overrides for part in ("--set", text)]
    arguments = ["run", manifest.name, "--audit", *options]
    begin = time.monotonic()
    lines = [Line(0.0, f"$ {shlex.join(['rljob', *arguments])} | tee run.log")]
    run = rljob(arguments, manifest.parent)
    folder = None
    is_killed = False
    assert run.stdout is not None
    try:
        for text in run.stdout:
            lines.append(Line(time.monotonic() - begin, text.rstrip()))
            _, found, path = text.rstrip().partition("files are in ")
            folder = Path(path) if found and folder is None else folder
            if folder is not None and not is_killed and "  reward " in text and _steps(folder) >= after:
                pid = _pid(run, folder, role)
                os.kill(pid, signal.SIGKILL)
                lines.append(Line(time.monotonic() - begin, f"$ kill -KILL {pid}    # in another terminal: {role}-0"))
                is_killed = True
        if run.wait() != 0 or folder is None or not is_killed:
            sys.exit("\n".join(line.text for line in lines) + f"\nthe run ended with {run.returncode}")
    finally:
        run.kill()
    return lines + _proof(folder, time.monotonic() - begin + TYPING_SECONDS)


def _steps(folder: Path) -> int:
    training = json.loads((folder / "status.json").read_text())["training"]
    return 0 if training.get("step") is None else int(training["step"]) + 1


def _pid(run: subprocess.Popen[str], folder: Path, role: str) -> int:
    """The first rank of the role's first pod, as soon as the status has it."""
    while run.poll() is None:
        roles = {row["name"]: row for row in json.loads((folder / "status.json").read_text())["roles"]}
        for rank in roles[role]["pods"][0]["ranks"]:
            if rank["pid"]:
                return int(rank["pid"])
        time.sleep(POLL_SECONDS)
    sys.exit(f"the run ended before {role}-0 had a rank")


def _proof(folder: Path, at: float) -> list[Line]:
    shown = folder.relative_to(folder.parents[1])
    audit = rljob(["audit", str(shown)], folder.parents[1])
    texts, _ = audit.communicate()
    if audit.returncode != 0:
        sys.exit(texts)
    return [Line(at, f"$ rljob audit {shown}"), *(Line(at + TYPING_SECONDS, text) for text in texts.splitlines())]


def draw(lines: Sequence[Line], speed: float) -> Iterator[str]:
    """The lines of the SVG. Where nothing moves it shows the end."""
    rows = [Line(line.at, row) for line in played(lines, speed) for row in wrapped(line.text)]
    length = rows[-1].at + HOLD_SECONDS
    width, height = MARGIN * 2 + COLUMNS * LETTER, BAR + MARGIN + ROWS * LINE
    size = f'width="{width:.0f}" height="{height}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" {size}>'
    yield "<style>"
    yield f"text {{ font: {FONT}; fill: {INK}; white-space: pre }}"
    yield f".a {{ animation: {length:.2f}s step-end infinite }}"
    for index, row in enumerate(rows):
        yield f"@keyframes r{index} {{ 0% {{ opacity: 0 }} {100 * row.at / length:.2f}% {{ opacity: 1 }} }}"
    yield f"@keyframes scroll {{ {' '.join(_scrolled(rows, length))} }}"
    yield "@media (prefers-reduced-motion) { .a { animation: none } }"
    yield "</style>"
    yield f'<rect width="{width:.0f}" height="{height}" rx="8" fill="{BACK}"/>'
    for index, colour in enumerate(("#ff5f56", "#ffbd2e", "#27c93f")):
        yield f'<circle cx="{18 + index * 18}" cy="16" r="5" fill="{colour}"/>'
    pace = f"{speed:g} times as fast, and longer pauses are cut"
    yield f'<text x="{width / 2:.0f}" y="20" text-anchor="middle" style="fill: {QUIET}">{pace}</text>'
    yield f'<svg x="0" y="{BAR}" width="{width:.0f}" height="{ROWS * LINE + 6}">'
    end = max(0, len(rows) - ROWS) * LINE
    moved = f"animation-name: scroll; transform: translateY(-{end}px)"
    yield f'<g class="a" style="{moved}" transform="translate(0 -{end})">'
    for index, row in enumerate(rows):
        place = f'x="{MARGIN}" y="{(index + 1) * LINE - 3}"'
        style = f"animation-name: r{index}; fill: {colour_of(row.text)}"
        yield f'<text class="a" {place} xml:space="preserve" style="{style}">{escape(row.text)}</text>'
    yield "</g></svg></svg>"


def played(lines: Sequence[Line], speed: float) -> Iterator[Line]:
    """The same lines at the times at which they are shown."""
    at = 0.0
    for before, line in pairwise([Line(0.0, ""), *lines]):
        at += min((line.at - before.at) / speed, PAUSE_SECONDS)
        yield Line(at, line.text)


def wrapped(text: str) -> list[str]:
    """As many rows as a terminal of this width needs, later ones indented."""
    return wrap(text, COLUMNS, subsequent_indent="         ", drop_whitespace=False) or [""]


def _scrolled(rows: Sequence[Line], length: float) -> Iterator[str]:
    """The lines move up when one comes for which there is no row."""
    yield "0% { transform: translateY(0) }"
    for index, row in enumerate(rows):
        if index >= ROWS:
            yield f"{100 * row.at / length:.2f}% {{ transform: translateY(-{(index + 1 - ROWS) * LINE}px) }}"


def colour_of(text: str) -> str:
    """Commands and turning points stand out."""
    return next((colour for mark, colour in COLOURS.items() if mark in text), INK)


def main() -> None:
    """Reads the arguments, runs the job and prints the picture."""
    parser = argparse.ArgumentParser(description="Record a kill and its recovery as an animated SVG.")
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="FIELD=VALUE")
    parser.add_argument("--role", default="actor", help="whose rank is killed")
    parser.add_argument("--after", type=int, default=45, help="steps that are trained before")
    parser.add_argument("--speed", type=float, default=3.0, help="how many times as fast it is shown")
    options = parser.parse_args()
    lines = record(options.manifest.resolve(), options.overrides, options.role, options.after)
    sys.stdout.write("\n".join(draw(lines, options.speed)) + "\n")


if __name__ == "__main__":
    main()
