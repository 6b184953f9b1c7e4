"""The operator's options file: read, parsed, and checked beyond what single fields can say.

Called by `python -m rljob_operator` and by `rljob render`. Raises OptionsRefused with one sentence per problem.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rljob_operator.build import options_problems
from rljob_operator.options import ANY_NAMESPACE, CLAIM_NAME, OperatorOptions

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


_LONGEST_SUBDOMAIN = 253


def problems(options: OperatorOptions) -> list[str]:
    """Everything that is wrong."""
    workloads, lease = options.workloads, options.lease
    found = [*_programs(options), *options_problems(workloads)]
    found += _namespaces("namespaces", options.namespaces)
    found += [
        f"namespaces: {name} is there {count} times. Name it once."
        for name, count in Counter(options.namespaces).items()
        if count > 1
    ]
    for field, namespace in (
        (
            "workloads.scraperNamespace",
            None if workloads.scraper_namespace == ANY_NAMESPACE else workloads.scraper_namespace,
        ),
        ("workloads.operatorNamespace", workloads.operator_namespace),
        ("lease.namespace", lease.namespace if lease is not None else None),
    ):
        found += [] if namespace is None else _namespaces(field, [namespace])
    for index, name in enumerate(workloads.pull_secrets):
        found += _subdomain(f"workloads.pullSecrets[{index}]", name)
    found += [] if lease is None else _subdomain("lease.name", lease.name)
    if lease is not None and lease.name == CLAIM_NAME:
        found.append(f"lease.name: {CLAIM_NAME} is the Lease by which namespaces are claimed. Give another name.")
    found += _labels("workloads.operatorLabels", workloads.operator_labels)
    found += _labels("workloads.monitorLabels", workloads.monitor_labels)
    if options.health_port == options.metrics_port != 0:
        found.append(f"metricsPort: {options.metrics_port} is healthPort, too. Give another port.")
    return found


def _programs(options: OperatorOptions) -> Iterator[str]:
    workloads = options.workloads
    for field, text in (
        ("workerImage", workloads.worker_image),
        ("redisImage", workloads.redis_image),
        ("python", workloads.python),
        ("redisServer", workloads.redis_server),
    ):
        if not text or text != text.strip() or (field.endswith("Image") and re.search(r"\s", text)):
            what = "the name of an image" if field.endswith("Image") else "a program of the image"
            yield f"workloads.{field}: {text!r} names nothing. Give {what}."
    for index, argument in enumerate(workloads.redis_ping):
        if not argument:
            yield f"workloads.redisPing[{index}]: '' is no word of a command. Give a command, or [] if there is none."


def _namespaces(field: str, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        if not _LABEL.fullmatch(name):
            yield f"{field}: {name!r} cannot be a namespace. Give at most 63 lower-case letters, digits and '-'."


def _subdomain(field: str, name: str) -> Iterator[str]:
    if len(name) > _LONGEST_SUBDOMAIN or not _SUBDOMAIN.fullmatch(name):
        yield f"{field}: {name!r} cannot be a name of an object. Give lower-case letters, digits, '-' and '.'."


def _labels(field: str, labels: Mapping[str, str]) -> Iterator[str]:
    for key, value in labels.items():
        prefix, slash, name = key.rpartition("/")
        is_key = bool(name) and _LABEL_VALUE.fullmatch(name) and (not slash or _SUBDOMAIN.fullmatch(prefix))
        if not is_key or len(prefix) > _LONGEST_SUBDOMAIN:
            cure = "Give letters, digits, '-', '_' and '.', after a domain and / if any"
            yield f"{field}: {key!r} cannot be a label's key. {cure}."
        if not _LABEL_VALUE.fullmatch(value):
            yield f"{field}.{key}: {value!r} cannot be a label. Give at most 63 letters, digits, '-', '_' and '.'."


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
        sentences = [_sentence(details) for details in error.errors(include_url=False)]
        raise ValueError("\n".join(f"--config: {path}: {sentence}" for sentence in sentences)) from error
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
