"""Checks answers by math-verify: `python -m rljob_workers.rewards.math_process SECONDS`, started by `math_answers`.

    stdin     a line for each check: [label, response]
    stdout    "ready", then a line for each: true, false, or null for a label that is no expression

Ends with its stdin. Time limits are math-verify's own, by a signal in this process's main thread.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys

_IS_MATHS = re.compile(r"[\\\d^=+]")
"""A text without any of these is no formula: math-verify would read its letters as a product."""


def main() -> None:
    """Serves until stdin ends."""
    seconds = int(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a library's output is no answer
    from math_verify import parse, verify

    logging.disable(logging.WARNING)  # it reports every text that it cannot read

    def gold(label: str) -> list[object]:
        found: list[object] = parse(label, parsing_timeout=seconds)
        if not found and _IS_MATHS.search(label):  # LaTeX without its dollars is read only where it is put between them
            found = parse(f"${label}$", parsing_timeout=seconds)
        return found

    answers.write('"ready"\n')
    for line in sys.stdin:
        label, response = json.loads(line)
        wanted = gold(label)
        is_same = None
        if wanted:
            is_same = bool(verify(wanted, parse(response, parsing_timeout=seconds), timeout_seconds=seconds))
        answers.write(json.dumps(is_same) + "\n")


if __name__ == "__main__":
    main()
