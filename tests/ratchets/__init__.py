"""Figures of this repository that may only fall: sizes, recurring names, openings of sentences, the tracer's lists.

`scripts/ratchets` prints and lowers them, and `tests/unit/ratchets` compares them with `tests/ratchets.toml`. That
script and tests alone call this room.
"""
