"""A job in Python: a manifest from a file or a dict, with fields that are set beside it. Starts nothing."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljob_api.manifest import STANDARD_INPUT, ManifestError, document_of, parsed, read_manifest
from rljob_api.overrides import Override, overridden
from rljob_api.spec import RLJobSpec
from rljob_cli.checks.findings import Lines

_UNPRINTABLE = re.compile("[\x7f-\x9f\ufeff\ufffe\uffff]")
"""Characters that stand in JSON as they are, and in YAML not."""


class Job:
    """A manifest whose fields are right by themselves and together. What it names (data, model) `run` looks at."""

    def __init__(
        self, document: Mapping[str, Any], file: Path, text: str, folder: Path, overrides: Mapping[str, object]
    ) -> None:
        """Made by `from_file` and `from_dict`. `text` is the file's, by whose lines problems are named."""
        self._document, self._file, self._text, self._folder = document, file, text, folder
        self._overrides = {**overrides}
        given = [Override.parse(override) for override in self._set()]
        lines = Lines(str(file), text, [override.path for override in given])
        try:
            job = parsed(overridden(dict(document), given))
        except ManifestError as error:
            raise ManifestError([lines.located(problem) for problem in error.problems]) from None
        self.name: str = job.metadata.name
        self.spec: RLJobSpec = job.spec
        """As given, with the defaults that do not depend on the rest of the job."""

    @classmethod
    def from_file(cls, path: str | Path, overrides: Mapping[str, object] | None = None) -> Job:
        """The manifest in a file. Raises ManifestError, with a sentence for each problem.

        `overrides`: values by field, as `--set` names fields: {"training.optimizer.learningRate": 1e-6}. None takes a
        field out.
        """
        file = Path(path).absolute()
        text = read_manifest(file)
        return cls(document_of(text, str(path)), file, text, file.parent, overrides or {})

    @classmethod
    def from_dict(
        cls, document: Mapping[str, Any], overrides: Mapping[str, object] | None = None, *, folder: str | Path = "."
    ) -> Job:
        """A manifest as a dict: apiVersion, kind, metadata, spec. Its relative paths begin at `folder`.

        Raises ManifestError, with a sentence for each problem.
        """
        return cls(copy.deepcopy(dict(document)), STANDARD_INPUT, "", Path(folder).absolute(), overrides or {})

    def with_overrides(self, overrides: Mapping[str, object]) -> Job:
        """The same job with these fields set as well, as in a sweep. Raises ManifestError."""
        return Job(self._document, self._file, self._text, self._folder, {**self._overrides, **overrides})

    @property
    def arguments(self) -> list[str]:
        """Arguments of `rljob run` for this job; `-` is `standard_input`, for which `working_folder` matters."""
        return [str(self._file), *(option for text in self._set() for option in ("--set", text))]

    @property
    def working_folder(self) -> Path | None:
        """Where `rljob run` is to be started; None: it does not matter."""
        return self._folder if self._file == STANDARD_INPUT else None

    @property
    def standard_input(self) -> bytes:
        """The manifest of a dict; empty where there is a file."""
        return _yaml(self._document).encode() if self._file == STANDARD_INPUT else b""

    def _set(self) -> list[str]:
        return [f"{field}={_yaml(value)}" for field, value in self._overrides.items()]


def _yaml(value: object) -> str:
    """JSON, which YAML reads too: there a text in quotes is a text, whatever is in it."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
