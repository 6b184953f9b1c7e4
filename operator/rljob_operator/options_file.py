"""The operator's options from their file. Called by whoever is given `--config`; reads that one file."""

import json
from pathlib import Path

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rljob_operator.options import OperatorOptions
from rljob_operator.options_rules import problems

_LONGEST_VALUE = 60


def load_options(path: Path | None) -> OperatorOptions:
    """The options in the YAML file `path`, or the defaults without one. ValueError: a sentence for each problem."""
    if path is None:
        return OperatorOptions()
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        text = json.dumps({} if document is None else document)
        options = OperatorOptions.model_validate_json(text, strict=True, by_alias=True, by_name=False)
    except OSError as error:
        raise ValueError(f"--config: {path} cannot be read ({error.strerror}). Give the path of a file.") from error
    except ValidationError as error:
        said = [_sentence(details) for details in error.errors(include_url=False)]
        raise ValueError("\n".join(f"--config: {path}: {sentence}" for sentence in said)) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"--config: {path} is not YAML: {' '.join(str(error).split())}") from error
    except TypeError as error:
        raise ValueError(f"--config: {path} has what JSON cannot say ({error}). Put it in quotes.") from error
    found = problems(options)
    if found:
        raise ValueError("\n".join(f"--config: {path}: {sentence}" for sentence in found))
    return options


def _sentence(details: ErrorDetails) -> str:
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in details["loc"]).lstrip(".")
    where = f"{place}: " if place else ""
    if details["type"] == "value_error":
        return where + str(details["ctx"]["error"])
    if details["type"] == "extra_forbidden":
        return f"{where}there is no such option. Remove it."
    value = repr(details["input"])
    shown = value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}..."
    return f"{where}{shown} is refused. {details['msg']}."
