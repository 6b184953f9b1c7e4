"""Keeps private words out of names: modules, classes, functions, parameters, fields and variables, tests' too.

`python scripts/check_names.py`, from the root of the repository; `make lint` runs it. Prints each with its line and the
field's name for it, and exits with 1. Names on the wire and in other libraries' formats stay: ALLOWED.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

FIELD_NAMES = {
    "told": "reported",
    "retold": "replayed",
    "tell": "report",
    "tells": "reports",
    "heard": "received",
    "hear": "receive",
    "hears": "receives",
    "said": "stated, message",
    "say": "state",
    "says": "states",
    "word": "text, message",
    "words": "text, message",
    "life": "incarnation",
    "lives": "incarnations",
    "sight": "observation",
    "scene": "context",
    "wish": "request",
    "wishes": "requests",
    "kept": "retained",
    "remains": "orphaned",
    "standstill": "stall",
    "headway": "progress",
    "hindrance": "blocker",
    "obstacle": "blocker",
    "roster": "membership",
    "parting": "graceful termination",
    "moderation": "limits",
    "immoderate": "exceeds limits",
    "nobody": "no one, none",
    "whoever": "the component's name",
    "anew": "again",
}
ALLOWED = {
    "tie_word_embeddings": "a field of a model's config.json",
    "last_words": "a field of a failure's message",
    "is_heard": "a field of the coordinator's status",
    "kept_groups": "a field of an epoch's message",
    "kept_logs": "pods of earlier releases start this module by its name",
}


def parts(name: str) -> list[str]:
    """The words that a name is made of, in small letters."""
    return [part for part in re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_") if part]


def defined(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """What a module defines, with its line: functions, parameters, classes, fields, variables and aliases."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno
            case ast.alias(asname=str() as name):
                yield name, node.lineno
            case _:
                pass


def main() -> int:
    """0 where no name has a private word."""
    command = ["git", "ls-files", "-z", "*.py"]
    listed = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    found = []
    for path in filter(None, listed.split("\0")):
        names = [(Path(path).stem, 1), *defined(ast.parse(Path(path).read_text()))]
        for name, line in names:
            private = [part for part in parts(name) if part in FIELD_NAMES]
            if private and name not in ALLOWED:
                found.append(f"{path}:{line}: {name}: for {private[0]!r} the field says {FIELD_NAMES[private[0]]}")
    sys.stderr.writelines(f"{line}\n" for line in dict.fromkeys(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
