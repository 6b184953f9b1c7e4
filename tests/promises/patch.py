"""A promise of the product, and the patch of its code that breaks it as a careless refactoring would.

Pure but for reading and writing the one file that is patched. The table of promises is made of these (`table`); the
command (`__main__`) runs the tests that must notice, and a unit test shows that each patch still applies.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

SOURCES = {"rljob_api": "crds", "rljob_cli": "cli", "rljob_operator": "operator", "rljob_workers": "workers"}
"""Package: the folder that it lies in, which stands on the path of a process that imports it."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class PatchLost(Exception):
    """The code that a patch replaces is not where the table has it: a refactoring has to move the patch along."""


@dataclass(frozen=True, slots=True)
class Promise:
    """One sentence that holds of the product, how to break it, and who notices."""

    name: str
    """Its name on the command line."""
    sentence: str
    where: str
    """The function that is patched, by import path (`package.module:Class.function`), or a file below its package's
    folder (`package/folder/file.lua`)."""
    old: str
    """It stands in that function, or file, exactly once."""
    new: str
    tests: tuple[str, ...]
    """Each fails by an assertion under the patch: `tests/unit/test_x.py::test_y`, all of its cases or some."""

    @property
    def file(self) -> Path:
        """The patched file, below the root of the repository."""
        module, separator, _ = self.where.partition(":")
        path = Path(*module.split(".")).with_suffix(".py") if separator else Path(module)
        return Path(SOURCES[path.parts[0]]) / path

    def patched(self, text: str) -> str:
        """The file's text with the promise broken. PatchLost where what is replaced does not stand there once."""
        first, last = self._bounds(text)
        lines = text.splitlines(keepends=True)
        body = "".join(lines[first:last])
        if (count := body.count(self.old)) != 1:
            raise PatchLost(
                f"promise {self.name}: {self.where.partition(':')[2] or 'the file'} in {self.file} has this {count}"
                f" times, and must have it once: {self.old!r}. {_CURE}"
            )
        return "".join(lines[:first]) + body.replace(self.old, self.new) + "".join(lines[last:])

    def _bounds(self, text: str) -> tuple[int, int]:
        """Lines of what is patched, from the first to behind the last."""
        _, _, qualified = self.where.partition(":")
        first, last = 0, text.count("\n") + 1
        found = ast.parse(text).body if qualified else []
        for name in qualified.split(".") if qualified else []:
            node = next((each for each in found if isinstance(each, Definition) and each.name == name), None)
            if node is None or node.end_lineno is None:
                raise PatchLost(f"promise {self.name}: {self.file} has no {qualified}. {_CURE}")
            first, last, found = node.lineno - 1, node.end_lineno, node.body
        return first, last


_CURE = "Move the patch in tests/promises along with the code that keeps the promise."


def broken(promise: Promise, root: Path) -> str:
    """The text of the file below `root` with the promise broken. PatchLost where it cannot be."""
    path = root / promise.file
    if not path.is_file():
        raise PatchLost(f"promise {promise.name}: there is no file {promise.file}. {_CURE}")
    return promise.patched(path.read_text())
