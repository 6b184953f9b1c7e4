"""Options that cannot work are refused where they are read: one sentence each, with field, value and cure."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api.names import EXIT_BAD_MANIFEST
from rljob_operator.cluster.options_file import load_options

COMMAND = {"spec": {"containers": [{"name": "worker", "command": ["sleep"]}]}}


def refused(tmp_path: Path, text: str) -> str:
    file = tmp_path / "operator.yaml"
    file.write_text(text)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the sentence is asserted
        load_options(file)
    return str(caught.value).replace(str(file), "FILE")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"workloads": {"podTemplate": COMMAND}},
            "workloads.podTemplate.spec.containers[worker].command: cannot be patched: the operator starts the program."
            " Remove it.",
        ),
        (
            {"workloads": {"podTemplate": {"spec": {"tolerations": "all"}}}},
            "workloads.podTemplate.spec.tolerations: 'all' is not a list of objects."
            " Give tolerations as in a pod template.",
        ),
        ({"workloads": {"workerImage": ""}}, "workloads.workerImage: '' names nothing. Give the name of an image."),
        (
            {"workloads": {"redisImage": "redis :8"}},
            "workloads.redisImage: 'redis :8' names nothing. Give the name of an image.",
        ),
        ({"workloads": {"python": " "}}, "workloads.python: ' ' names nothing. Give a program of the image."),
        (
            {"workloads": {"redisPing": ["redis-cli", ""]}},
            "workloads.redisPing[1]: '' is no word of a command. Give a command, or [] if there is none.",
        ),
        (
            {"workloads": {"pullSecrets": ["Registry"]}},
            "workloads.pullSecrets[0]: 'Registry' cannot be a name of an object."
            " Give lower-case letters, digits, '-' and '.'.",
        ),
        (
            {"workloads": {"scraperNamespace": "a.b"}},
            "workloads.scraperNamespace: 'a.b' cannot be a namespace."
            " Give at most 63 lower-case letters, digits and '-'.",
        ),
        (
            {"workloads": {"operatorLabels": {"app": "my operator"}}},
            "workloads.operatorLabels.app: 'my operator' cannot be a label."
            " Give at most 63 letters, digits, '-', '_' and '.'.",
        ),
        (
            {"workloads": {"monitorLabels": {"a/b/c": "d"}}},
            "workloads.monitorLabels: 'a/b/c' cannot be a label's key."
            " Give letters, digits, '-', '_' and '.', after a domain and / if any.",
        ),
        (
            {"workloads": {"reach": {"refusedLabels": [""]}}},
            "workloads.reach.refusedLabels[0]: '' is refused. String should match pattern"
            " '^[*]?[-A-Za-z0-9_./]{1,317}$'.",
        ),
        (
            {"workloads": {"reservedObjects": {"secrets": ["a*"]}}},
            "workloads.reservedObjects.secrets[0]: 'a*' is refused. String should match pattern"
            " '^[*]?[-a-z0-9.]{1,253}$'.",
        ),
        ({"namespaces": ["team", "team"]}, "namespaces: team is there 2 times. Name it once."),
        (
            {"lease": {"name": "Lease"}},
            "lease.name: 'Lease' cannot be a name of an object. Give lower-case letters, digits, '-' and '.'.",
        ),
        (
            {"lease": {"name": "jobs.rljob.dev"}},
            "lease.name: jobs.rljob.dev is the Lease by which namespaces are claimed. Give another name.",
        ),
        (
            {"lease": {"durationSeconds": 5.0}},
            "lease: durationSeconds 5, renewSeconds 20 and retrySeconds 2 must fall in this order, else two replicas"
            " could lead at once. Set for example 30, 20 and 2.",
        ),
        (
            {"healthPort": 9090},
            "metricsPort: 9090 is healthPort, too. Give another port.",
        ),
        ({"concurrency": 0}, "concurrency: 0 is refused. Input should be greater than or equal to 1."),
        (
            {"jobsPerNamespace": 0},
            "jobsPerNamespace: 0 is refused. Input should be greater than or equal to 1.",
        ),
        (
            {"workloads": {"scraperNamespace": "**"}},
            "workloads.scraperNamespace: '**' cannot be a namespace."
            " Give at most 63 lower-case letters, digits and '-'.",
        ),
        ({"concurency": 4}, "concurency: there is no such option. Remove it."),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_work_is_one_sentence(tmp_path: Path, options: dict[str, Any], sentence: str) -> None:
    assert refused(tmp_path, yaml.safe_dump(options)) == f"--config: FILE: {sentence}"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("- a\n", "--config: FILE: ['a'] is refused. Input should be an object."),
        (
            "workloads: {python: 2026-11-23}\n",
            "--config: FILE has what JSON cannot say (Object of type date is not JSON",
        ),
        ("workloads: {\n", "--config: FILE is not YAML: while parsing a flow node"),
        ("false\n", "--config: FILE: False is refused. Input should be an object."),
    ],
    ids=["a list", "a date", "no YAML", "a word"],
)
def test_a_file_that_holds_no_options_is_one_line(tmp_path: Path, text: str, sentence: str) -> None:
    message = refused(tmp_path, text)
    assert message.startswith(sentence)
    assert "\n" not in message


def test_an_empty_file_and_none_at_all_are_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("")
    assert load_options(tmp_path / "empty.yaml") == load_options(None)


@pytest.mark.parametrize(
    "arguments",
    [["--config", "{folder}/operator.yaml"], pytest.param(["--log-level", "loud"], marks=pytest.mark.long)],
    ids=str,
)
def test_the_process_ends_with_the_exit_code_of_wrong_options(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "operator.yaml").write_text(yaml.safe_dump({"workloads": {"podTemplate": COMMAND}}))
    command = [sys.executable, "-m", "rljob_operator", *(text.format(folder=tmp_path) for text in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == EXIT_BAD_MANIFEST, done.stderr
    assert "cannot be patched" in done.stderr or "invalid choice" in done.stderr
    assert "Traceback" not in done.stderr
