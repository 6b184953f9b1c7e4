"""The operator's options from their file. Called by whoever is given `--config`; reads that one file."""

import json
from pathlib import Path

import yaml
from pydantic import ValidationError

from rljob_operator.options import OperatorOptions


def load_options(path: Path | None) -> OperatorOptions:
    """The options in the YAML file `path`, or the defaults without one. ValueError says why it is of no use."""
    if path is None:
        return OperatorOptions()
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        return OperatorOptions.model_validate_json(json.dumps(document), strict=True, by_alias=True, by_name=False)
    except OSError as error:
        raise ValueError(f"--config: {path} cannot be read ({error.strerror}). Give the path of a file.") from error
    except yaml.YAMLError as error:
        raise ValueError(f"--config: {path} is not YAML: {error}") from error
    except ValidationError as error:
        raise ValueError(f"--config: {path}: {error}") from error
