"""The claim of the checkpoints: what becomes of it when its job goes, and what it says then."""

from typing import Any

import pytest

from rljob_api import cluster
from rljob_api.names import Epoch
from rljob_api.revision import read_retained_spec, run_digest
from rljob_api.spec import RLJob
from rljob_api.status import RestartStatus, RLJobStatus
from rljob_operator.build import Found, FoundClaims, Manifest, Owner, manifests
from rljob_operator.build.parts import Platform
from rljob_operator.options import OperatorOptions
from tests.unit.build.jobs import OWNER, changed, make_status, quickstart

NAMES = (cluster.ANNOTATION_RUN, cluster.ANNOTATION_RUN_OF, cluster.ANNOTATION_SPEC, cluster.ANNOTATION_RETAINED)


def claim(
    job: RLJob, found: Found = Found.NOTHING, owner: Owner = OWNER, status: RLJobStatus | None = None
) -> Manifest:
    made = manifests(job, owner, status or make_status(), OperatorOptions(), Platform(), FoundClaims(found))
    return next(each for each in made if each["kind"] == "PersistentVolumeClaim")


def on_delete(text: str | None) -> RLJob:
    return changed(quickstart(), checkpoint={"volume": {"onDelete": text}})


@pytest.mark.parametrize(
    ("text", "found", "stays"),
    [
        pytest.param(None, Found.NOTHING, True, id="nothing is said"),
        pytest.param("Retain", Found.NOTHING, True, id="it stays"),
        pytest.param("Delete", Found.NOTHING, False, id="it goes"),
        pytest.param(None, Found.PROMISED, False, id="it was promised to go"),
        pytest.param("Retain", Found.PROMISED, True, id="it was promised to go and is to stay"),
        pytest.param("Delete", Found.PROMISED, False, id="it was promised to go and is to"),
    ],
)
def test_it_has_an_owner_if_it_is_to_go(text: str | None, found: Found, stays: bool) -> None:
    owners = claim(on_delete(text), found)["metadata"].get("ownerReferences", [])
    assert [each["uid"] for each in owners] == ([] if stays else [OWNER.uid])


def test_it_states_whose_it_is_and_what_is_on_it() -> None:
    notes = claim(quickstart())["metadata"]["annotations"]
    assert notes[cluster.ANNOTATION_RUN] == run_digest(quickstart().spec)
    assert notes[cluster.ANNOTATION_RUN_OF] == OWNER.uid
    assert read_retained_spec(notes[cluster.ANNOTATION_SPEC]) == quickstart().spec


_OF_0_2_0 = changed(
    quickstart(),
    model={"config": {"tokenizer": {"alphabet": "0123456789="}}},
    data={"prompts": "data/reverse-digits.jsonl"},
    rollout={"sampling": {"stopTokenIds": []}},
)
"""The quickstart of that release."""


def test_a_promised_one_is_the_claim_of_release_0_2_0_to_the_byte() -> None:
    """So that neither an upgrade nor a rollback writes to it."""
    promised = claim(_OF_0_2_0, Found.PROMISED)
    assert not set(NAMES) & set(promised["metadata"]["annotations"])
    assert promised["metadata"]["annotations"][cluster.ANNOTATION_APPLIED] == "10af63257159b9f3"


def test_one_that_stays_has_the_digest_of_one_that_goes() -> None:
    """As release 0.2.0 wrote it: an operator goes by the digest of what it would apply itself."""
    stays, promised = claim(quickstart()), claim(quickstart(), Found.PROMISED)
    assert _note(stays, cluster.ANNOTATION_APPLIED) == _note(promised, cluster.ANNOTATION_APPLIED)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"checkpoint": {"volume": {"onDelete": "Delete"}}}, id="it is to go"),
        pytest.param({"rollout": {"numRollouts": 7}}, id="another spec"),
    ],
)
def test_what_it_states_is_written_again(fields: dict[str, Any]) -> None:
    before, after = claim(quickstart()), claim(changed(quickstart(), **fields))
    assert _note(before, cluster.ANNOTATION_RETAINED) != _note(after, cluster.ANNOTATION_RETAINED)
    later = claim(quickstart(), owner=Owner(OWNER.namespace, "another-uid"))
    assert _note(before, cluster.ANNOTATION_RETAINED) != _note(later, cluster.ANNOTATION_RETAINED)


def test_a_very_long_spec_is_not_retained() -> None:
    patch = {"metadata": {"annotations": {"example.org/long": "x" * 200_000}}}
    job = changed(quickstart(), roles={"actor": {"template": patch}})
    notes = claim(job, status=RLJobStatus(restart=RestartStatus(epoch=Epoch(1))))["metadata"]["annotations"]
    assert cluster.ANNOTATION_SPEC not in notes
    assert cluster.ANNOTATION_RUN in notes


def _note(manifest: Manifest, name: str) -> str:
    return str(manifest["metadata"]["annotations"][name])
