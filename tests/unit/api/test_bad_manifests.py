"""The sentence that each kind of bad manifest gets. Field, value, bound and cure, as a user will read them."""

from typing import Any

import pytest
import yaml

from rljob_api.manifest import ManifestError, parse_manifest
from tests.unit.api.manifests import changed
from tests.unit.api.sentences import CROSS_FIELD, SINGLE_FIELDS, STATED_BY_PYTHON_ALONE, SYNTAX


def _problems(manifest: dict[str, Any]) -> list[str]:
    with pytest.raises(ManifestError) as refused:
        parse_manifest(yaml.safe_dump(manifest), "job.yaml")
    return list(refused.value.problems)


@pytest.mark.parametrize(("changes", "sentence"), [*SINGLE_FIELDS, *CROSS_FIELD, *STATED_BY_PYTHON_ALONE])
def test_each_problem_has_its_sentence(changes: dict[str, Any], sentence: str) -> None:
    assert _problems(changed(changes)) == [sentence]


def test_a_missing_field_is_named() -> None:
    manifest = changed({})
    del manifest["spec"]["training"]["globalBatchSize"]
    assert _problems(manifest) == ["spec.training.globalBatchSize: is missing. Give an integer from 1 to 1000000000."]


def test_all_problems_are_reported_at_once_in_the_order_of_the_fields() -> None:
    broken = changed({"spec.mode": "Sync", "spec.model": {}, "spec.rollout.batchSize": 0})
    assert [problem.split(":")[0] for problem in _problems(broken)] == [
        "spec.mode",
        "spec.model.path",
        "spec.rollout.batchSize",
    ]


@pytest.mark.parametrize(("text", "sentence"), SYNTAX)
def test_what_is_no_manifest_is_refused_with_its_line(text: str, sentence: str) -> None:
    with pytest.raises(ManifestError) as refused:
        parse_manifest(text, "job.yaml")
    assert refused.value.problems == (sentence,)
