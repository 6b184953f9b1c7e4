"""Wording: how the end of a process is told."""


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
