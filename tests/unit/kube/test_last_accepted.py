"""The spec that was accepted last: remembered, or read from the ConfigMap if the status vouches for what is there."""

import asyncio
import hashlib
from typing import Any, cast

import pytest

from rljob_api.cluster import config_name
from rljob_api.spec import Metadata
from rljob_api.status import AcceptedStatus, RLJobStatus
from rljob_operator.build import JOB_KEY, job_file
from rljob_operator.kube.accepted_spec import AcceptedSpec
from rljob_operator.kube.api import Api
from rljob_operator.kube.kinds import CONFIG_MAPS
from rljob_operator.kube.views import JobKey
from tests.unit.build.jobs import quickstart
from tests.unit.kube.fake_api import ApiOfAnswers

KEY = JobKey("ns", "job")
PATH = CONFIG_MAPS.path("ns", config_name("job"))
JOB = quickstart()
FILE = job_file(JOB, KEY.namespace)


def accepted_spec(api: ApiOfAnswers) -> AcceptedSpec:
    return AcceptedSpec(cast(Api, api), KEY)


def status() -> RLJobStatus:
    """As it was written when the job was accepted."""
    return RLJobStatus(accepted=accepted_spec(ApiOfAnswers({})).note(JOB, 7))


def test_what_was_noted_is_read_without_asking_anybody() -> None:
    api = ApiOfAnswers({})
    spec = accepted_spec(api)
    accepted = spec.note(JOB, 7)
    assert asyncio.run(spec.last(RLJobStatus())) == (JOB, accepted)
    assert (accepted.generation, api.asked) == (7, [])


def test_another_operator_reads_the_same_spec_once() -> None:
    api = ApiOfAnswers({PATH: {"data": {JOB_KEY: FILE}}})
    spec = accepted_spec(api)
    for _ in range(2):
        found = asyncio.run(spec.last(status()))
        assert found is not None
        assert (found[0].spec, found[1].generation) == (JOB.spec, 7)
    assert len(api.asked) == 1


def test_a_digest_of_the_indented_file_of_release_0_2_0_vouches_for_the_compact_one() -> None:
    given = JOB.model_copy(update={"metadata": Metadata(name="job", namespace="ns")})
    indented = given.model_dump_json(indent=2, exclude_defaults=True) + "\n"
    before = AcceptedStatus(generation=7, digest=hashlib.sha256(indented.encode()).hexdigest())
    api = ApiOfAnswers({PATH: {"data": {JOB_KEY: job_file(given, "ns")}}})
    found = asyncio.run(accepted_spec(api).last(RLJobStatus(accepted=before)))
    assert found is not None
    assert (found[0].spec, found[1]) == (JOB.spec, before)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({"data": {JOB_KEY: FILE.replace("64", "63")}}, id="somebody has changed it"),
        pytest.param({"data": {}}, id="somebody has emptied it"),
        pytest.param({}, id="it has no data"),
        pytest.param(404, id="it is gone"),
    ],
)
def test_what_the_status_does_not_vouch_for_is_not_gone_by(answer: dict[str, Any] | int) -> None:
    assert asyncio.run(accepted_spec(ApiOfAnswers({PATH: answer})).last(status())) is None


def test_a_job_of_which_nothing_was_accepted_has_none() -> None:
    api = ApiOfAnswers({PATH: {"data": {JOB_KEY: FILE}}})
    assert asyncio.run(accepted_spec(api).last(RLJobStatus())) is None
    assert api.asked == []


def test_a_spec_that_the_rules_of_this_version_refuse_is_not_gone_by() -> None:
    text = '{"apiVersion": "rljob.dev/v1alpha1"}'
    digest = hashlib.sha256(text.encode()).hexdigest()
    api = ApiOfAnswers({PATH: {"data": {JOB_KEY: text}}})
    accepted = AcceptedStatus(generation=1, digest=digest)
    assert asyncio.run(accepted_spec(api).last(RLJobStatus(accepted=accepted))) is None
