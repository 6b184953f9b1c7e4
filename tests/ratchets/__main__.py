"""`scripts/ratchets`: measures this checkout, prints each figure beside its bound, and lowers bounds.

    scripts/ratchets                  each figure, its bound, and whether it has fallen or is above
    scripts/ratchets --sentences      and the sentences that `openings` counts, by place
    scripts/ratchets --worst 10       and the largest files and functions
    scripts/ratchets --output json    figures and bounds alone
    scripts/ratchets --write          lowers bounds of what has fallen

Exits with 1 where a figure is above its bound; nothing is written then.
"""

# ruff: noqa: T201 -- it prints what it found

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.ratchets.bounds import Bounds, above, lowered, parse, text_of, unmatched
from tests.ratchets.figures import measure

ROOT = Path(__file__).resolve().parents[2]
FILE = Path("tests/ratchets.toml")


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """The exit code."""
    asked = _asked(arguments)
    file = root / FILE
    bounds = parse(file.read_text() if file.exists() else "")
    measured = measure(root)
    refused = above(measured.figures, bounds)
    if asked.output == "json":
        print(
            json.dumps(
                {name: {"is": value, "bound": bounds.bound_of(name)} for name, value in measured.figures.items()}
            )
        )
    else:
        print(*(_row(name, value, bounds) for name, value in measured.figures.items()), sep="\n")
        for found in (*measured.files[: asked.worst], *measured.functions[: asked.worst]):
            print(f"{found.place}  {found.text}")
        for found in measured.sentences if asked.sentences else ():
            print(f"{found.place}  {found.kind}: {' '.join(found.text.split())[:120]}")
    if asked.write and not refused:
        file.write_text(text_of(lowered(measured.figures, bounds)))
        return 0
    for sentence in (*refused, *unmatched(measured.figures, bounds)):
        print(sentence, file=sys.stderr)
    return 1 if refused else 0


def _asked(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/ratchets", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", choices=["text", "json"], default="text")
    parser.add_argument("--sentences", action="store_true")
    parser.add_argument("--worst", metavar="N", type=int, default=0)
    parser.add_argument("--write", action="store_true")
    return parser.parse_args(arguments)


def _row(name: str, value: int, bounds: Bounds) -> str:
    bound = bounds.bound_of(name)
    if bound is None:
        return f"{name:28} {value:6}      -  has no bound"
    trend = "" if value == bound else "  has fallen" if value < bound else "  IS ABOVE"
    return f"{name:28} {value:6} {bound:6}{trend}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
