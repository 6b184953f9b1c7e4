"""From YAML text to an RLJob and back, with one sentence for each problem that a user can cause.

Called by the command line and by whoever is handed a manifest. Reads the manifest and no other file; what it names
(data, model, reward) is looked at elsewhere.
"""

import json
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from rljob_api.admission import admitted
from rljob_api.problems import sentences
from rljob_api.spec import RLJob


class ManifestError(ValueError):
    """A manifest that cannot be used; `problems` holds a sentence for each reason."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def load_manifest(path: Path) -> RLJob:
    """The job in the file `path`; ManifestError if there is none."""
    return parse_manifest(read_manifest(path), str(path))


def read_manifest(path: Path) -> str:
    """The text of the file `path`; ManifestError where there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ManifestError([f"{path}: cannot be read ({reason}). Give the path of a manifest."]) from error
    except UnicodeDecodeError as error:
        raise ManifestError([f"{path}: byte {error.start} is not UTF-8. Save the manifest as UTF-8 text."]) from error


def parse_manifest(text: str, source: str) -> RLJob:
    """The job in `text`; `source` names it in sentences about its syntax."""
    document = document_of(text, source)
    try:
        return job_of(document)
    except ValidationError as error:
        raise ManifestError(sentences(error)) from error


def job_of(document: dict[str, Any], context: str | None = None) -> RLJob:
    """The job that a document describes. Raises ValidationError.

    Through JSON, so that types are as strict as the API server's: "5" is no integer, and names are camelCase.
    """
    return RLJob.model_validate_json(
        json.dumps(admitted(document), default=str), strict=True, context=context, by_alias=True, by_name=False
    )


def document_of(text: str, source: str) -> dict[str, Any]:
    """What stands in `text`, before anything is known of its fields."""
    try:
        document = yaml.load(text, Loader=_ManifestLoader)  # noqa: S506 - a SafeLoader with fewer surprises
    except yaml.MarkedYAMLError as error:
        raise ManifestError([_syntax_problem(source, error)]) from error
    except yaml.YAMLError as error:
        raise ManifestError([f"{source}: is not YAML: {error}."]) from error
    if not isinstance(document, dict):
        raise ManifestError(
            [f"{source}: holds no object. Give one with apiVersion, kind, metadata and spec, as examples/ has them."]
        )
    return document


def render_manifest(job: RLJob) -> str:
    """The job as YAML with all defaults filled in; parsing it gives the same job."""
    return yaml.safe_dump(job.model_dump(mode="json"), sort_keys=False, width=120, allow_unicode=True)


def resolve_paths(job: RLJob, folder: Path) -> RLJob:
    """The job with the manifest's relative paths made absolute, `folder` being where the manifest lies.

    `checkpoint.path` is left as it is: it is relative to the run folder.
    """
    spec = job.spec
    model = spec.model.model_copy(
        update={
            "path": _absolute(spec.model.path, folder),
            "tokenizer_path": _absolute(spec.model.tokenizer_path, folder),
        }
    )
    data = spec.data.model_copy(update={"prompts": _absolute(spec.data.prompts, folder)})
    rollout = spec.rollout
    if rollout.reward.custom is not None:
        custom = rollout.reward.custom.model_copy(update={"path": _absolute(rollout.reward.custom.path, folder)})
        rollout = rollout.model_copy(update={"reward": rollout.reward.model_copy(update={"custom": custom})})
    return job.model_copy(
        update={"spec": spec.model_copy(update={"model": model, "data": data, "rollout": rollout})},
    )


def _absolute(path: str | None, folder: Path) -> str | None:
    return None if path is None else str((folder / Path(path).expanduser()).resolve())


def _syntax_problem(source: str, error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
    found = ", ".join(part for part in (error.context, error.problem) if part) or "syntax error"
    return f"{source}: {where}is not a manifest in YAML: {found}."


class _ManifestLoader(yaml.SafeLoader):
    """YAML as kubectl reads it: 1e-6 is a number, a date is text, and a key given twice is refused."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[object, int] = {}
        for key_node, _ in node.value:
            key = key_node.value
            if key_node.tag != "tag:yaml.org,2002:merge" and isinstance(key, str):
                line = key_node.start_mark.line + 1
                if key in seen:
                    problem = f"the key {key!r} is given twice (first in line {seen[key]})"
                    raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
                seen[key] = line
        return super().construct_mapping(node, deep)


_ManifestLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# YAML 1.1, which PyYAML follows, wants a dot and a signed exponent; learningRate: 1e-6 would be text.
_ManifestLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
