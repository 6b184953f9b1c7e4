"""Progress of a command that waits, for people or for programs. Used by `rljob restart` and `rljob queue drain`."""

from __future__ import annotations

import json
from typing import Literal

import click


class Reporter:
    """Prints a sentence, or with --output json one object a line: its kind, and facts."""

    def __init__(self, output: Literal["text", "json"]) -> None:
        self._is_json = output == "json"

    def report(self, kind: str, sentence: str, **facts: object) -> None:
        """One step."""
        click.echo(json.dumps({"kind": kind, **facts}, ensure_ascii=False) if self._is_json else sentence)
