"""What makes two jobs of one name the same run, and what a claim keeps of a spec."""

from typing import Any

import pytest

from rljob_api.revision import REFUSED, RUN_FIELDS, read_retained_spec, retained_spec, run_differences, run_digest
from rljob_api.spec import RLJobSpec
from tests.unit.api.manifests import changed
from tests.unit.api.test_revision import CHANGES

SAME = [
    pytest.param({"rollout.numRollouts": 900}, id="more rollouts"),
    pytest.param({"training.optimizer": {"learningRate": 1e-5}}, id="another learning rate"),
    pytest.param({"roles.rollout": {"replicas": 4}, "image": "worker:2"}, id="other pods"),
    pytest.param({"checkpoint.volume": {"size": "99Gi", "onDelete": "Retain"}}, id="a larger volume"),
    pytest.param({"transferQueue.redis.persistence": {"kind": "EmptyDir"}}, id="another control Redis"),
    pytest.param({"managedBy": "rljob.dev/operator"}, id="the operator by its name"),
    pytest.param({"seed": 0, "model.dtype": "float32"}, id="defaults that are written out"),
]
OF_THE_RUN = [field for field in RUN_FIELDS if CHANGES[field] is not None]


def spec(changes: dict[str, Any]) -> RLJobSpec:
    return RLJobSpec.model_validate(changed({f"spec.{field}": value for field, value in changes.items()})["spec"])


@pytest.mark.parametrize("changes", SAME)
def test_the_same_run(changes: dict[str, Any]) -> None:
    assert run_digest(spec(changes)) == run_digest(spec({}))
    assert run_differences(spec({}), spec(changes)) == []


@pytest.mark.parametrize("field", OF_THE_RUN)
def test_another_run_is_reported_by_the_field_that_differs(field: str) -> None:
    other = spec({field: CHANGES[field]})
    assert run_digest(other) != run_digest(spec({}))
    (change,) = run_differences(spec({}), other)
    assert change.row.field == field


def test_what_is_fixed_and_of_no_run() -> None:
    left = {row.field for row in REFUSED} - set(RUN_FIELDS)
    assert left == {"managedBy", "transferQueue.redis.persistence", "checkpoint.volume.claimName"}


def test_the_digest_stays() -> None:
    assert run_digest(spec({})) == "3c5af4322731", "claims that were kept by earlier versions are taken for other runs"


def test_a_claim_keeps_the_spec_without_the_requests_of_the_day() -> None:
    asked = {"suspend": True, "restartRequest": {"id": "again"}, "seed": 3}
    assert read_retained_spec(retained_spec(spec(asked))) == spec({"seed": 3})


@pytest.mark.parametrize("text", ["", "{}", "[", '{"model": {"layers": 3}}'])
def test_what_another_version_or_somebody_wrote_is_none(text: str) -> None:
    assert read_retained_spec(text) is None
