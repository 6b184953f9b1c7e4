"""Where a run keeps what was generated: names that its writer (the actor) and its reader (`rljob samples`) share."""

FILE = "generations.jsonl"
OLDER_FILE = "generations.older.jsonl"
"""Holds the lines that FILE had when it was full."""

FILES = (OLDER_FILE, FILE)
"""In the order in which they were written."""

MAX_CHARACTERS = 1 << 16
"""Longest text of a prompt or response that is kept whole."""
