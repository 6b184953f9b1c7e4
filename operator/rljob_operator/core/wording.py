"""Wording: how the end of a process is told, and a figure that somebody reads."""

from rljob_api.bounded_text import cut

LONGEST_MESSAGE = 4096
"""Characters."""


def how_ended(exit_code: int | None) -> str:
    """An exit code in words."""
    if exit_code is None:
        return "ended"
    return f"was killed by signal {-exit_code}" if exit_code < 0 else f"exited with code {exit_code}"


def last_line(text: str) -> str:
    """The last line that is not empty: what its author wanted to be read."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def quoted(text: str) -> str:
    """The last line, to be put behind a sentence."""
    line = last_line(text)
    return f": {line}" if line else ""


def shortened(text: str) -> str:
    """For the status. Sentences are short; what a process says of itself may have any length."""
    return cut(text, LONGEST_MESSAGE)


def rounded(value: float) -> float:
    """To four significant digits: a status is read, `metrics` have the rest."""
    return float(f"{value:.4g}")
