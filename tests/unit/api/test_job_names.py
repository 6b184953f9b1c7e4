"""Which names a job may have: those whose derived names Kubernetes takes, by the models and by the CRD alike."""

from __future__ import annotations

import re

import cel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.generate.crd import crd
from rljob_api.rule import VALIDATIONS
from rljob_api.spec import FORM_OF_NAME, JOB_NAME

RULE, *_ = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"][VALIDATIONS]


def accepted_by_cel(name: str, **beside: object) -> bool:
    return bool(cel.evaluate(RULE["rule"], {"self": {"metadata": {"name": name}, **beside}}))


@pytest.mark.parametrize(
    ("name", "is_accepted"),
    [
        pytest.param("math-7b", True, id="a digit within"),
        pytest.param("a", True, id="one letter"),
        pytest.param("a" * 40, True, id="as long as may be"),
        pytest.param("a" * 41, False, id="longer"),
        pytest.param("7b-math", False, id="a digit first: no Service may be called so"),
        pytest.param("math-", False, id="a dash last"),
        pytest.param("Math", False, id="a capital"),
        pytest.param("math.7b", False, id="a dot"),
    ],
)
def test_names(name: str, is_accepted: bool) -> None:
    assert (bool(re.search(JOB_NAME, name)), accepted_by_cel(name)) == (is_accepted, is_accepted)
    assert RULE["message"] == f"metadata.name is not of the right form. {FORM_OF_NAME}"


@given(st.text(alphabet="a7-Z.", min_size=1, max_size=42))
def test_models_and_crd_accept_the_same_names(name: str) -> None:
    assert bool(re.search(JOB_NAME, name)) == accepted_by_cel(name)


def test_a_job_of_an_earlier_release_can_still_be_written_once_it_has_a_status() -> None:
    assert accepted_by_cel("7b-math", status={"phase": "Pending", "conditions": []})
    assert not accepted_by_cel("7b-math", status={"observedGeneration": 0}), "the API server has filled it in"
