"""What is too large for the API server, or for a process, is refused with its field, size, bound and cure."""

from typing import Any

import pytest

from rljob_api.names import Epoch
from rljob_api.status import RestartStatus, RLJobStatus
from rljob_operator.build.mounted_objects import JOB_KEY
from rljob_operator.build.sizes import LARGEST_BYTES, LONGEST_VARIABLE_BYTES, stored_bytes
from tests.unit.build import jobs
from tests.unit.build.jobs import changed, quickstart
from tests.unit.kube.managed import fields_of

param = pytest.param


def build(job: Any) -> dict[str, Any]:
    """Of a job that has begun, so that the bound of its whole spec is not what refuses it."""
    return jobs.build(job, RLJobStatus(restart=RestartStatus(epoch=Epoch(1))))


def with_env(count: int, length: int, part: str = "actor") -> Any:
    env = [{"name": f"E{index}", "value": "x" * length} for index in range(count)]
    container = "redis" if part == "infrastructure" else "worker"
    template = {"template": {"spec": {"containers": [{"name": container, "env": env}]}}}
    return changed(quickstart(), **({part: template} if part == "infrastructure" else {"roles": {part: template}}))


@pytest.mark.parametrize(
    ("count", "length"),
    [param(4, 120_000, id="480 kB in few variables"), param(2_000, 200, id="400 kB in many"), param(0, 0, id="none")],
)
def test_what_the_api_server_stores_is_built(count: int, length: int) -> None:
    assert build(with_env(count, length))


@pytest.mark.parametrize(
    ("job", "field", "kind"),
    [
        param(with_env(9, 120_000), "spec.roles.actor.template", "ConfigMap quickstart-job", id="too many bytes"),
        param(
            with_env(12_000, 30), "spec.roles.actor.template", "Deployment quickstart-actor", id="with owners of fields"
        ),
        param(
            with_env(9, 120_000, "infrastructure"),
            "spec.infrastructure.template",
            "ConfigMap quickstart-job",
            id="of coordinator and Redis",
        ),
    ],
)
def test_what_it_does_not_store_is_refused_with_field_size_bound_and_cure(job: Any, field: str, kind: str) -> None:
    with pytest.raises(ValueError, match="bytes as JSON make") as refused:
        build(job)

    (sentence,) = str(refused.value).splitlines()
    assert sentence.startswith(field)
    assert f"make the {kind} " in sentence
    assert f"and {LARGEST_BYTES} is the bound. Put them into a ConfigMap or volume of yours and mount it." in sentence


@pytest.mark.parametrize(
    ("part", "field", "container"),
    [
        param("actor", "spec.roles.actor.template", "worker", id="of a role"),
        param("infrastructure", "spec.infrastructure.template", "redis", id="of Redis"),
    ],
)
def test_a_variable_with_which_no_process_starts_is_refused(part: str, field: str, container: str) -> None:
    longest = LONGEST_VARIABLE_BYTES - len("E0=")
    assert build(with_env(1, longest, part))
    with pytest.raises(ValueError, match="Linux starts no process") as refused:
        build(with_env(1, longest + 1, part))

    first = str(refused.value).splitlines()[0]
    assert first.startswith(f"{field}: env E0 of container {container} has {LONGEST_VARIABLE_BYTES + 1} bytes, and ")


def test_the_jobs_file_is_compact_and_its_size_is_that_of_what_was_given() -> None:
    config = build(with_env(2_000, 0))["ConfigMap/quickstart-job"]
    text = config["data"][JOB_KEY]
    assert "\n" not in text.strip()
    assert text.count(" ") < 2_000


def test_an_object_counts_with_the_owners_of_its_fields() -> None:
    manifest = {"kind": "ConfigMap", "metadata": {"name": "a"}, "data": {f"key{n}": "v" for n in range(100)}}
    fields = str(fields_of(manifest)).replace(" ", "")
    assert stored_bytes(manifest) >= len(str(manifest).replace(" ", "")) + 0.9 * len(fields)
