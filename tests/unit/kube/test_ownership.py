"""Whose an object is that has the name of one of a job's, and how that is said."""

from dataclasses import replace
from typing import Any

import pytest

from rljob_api.cluster import ANNOTATION_SPEC
from rljob_api.revision import retained_spec
from rljob_api.spec import RLJobSpec
from rljob_operator.build import ClaimedBy
from rljob_operator.kube.ownership import (
    MOST_NAMED,
    Foreign,
    ObjectHolder,
    control_claimed_by,
    foreign,
    holder,
    sentence,
)
from rljob_operator.kube.views import ClaimView, Controller, JobKey, OwnedView, view_owned
from tests.unit.api.manifests import GOOD

KEY, UID = JobKey("ns", "job"), "u1"
ROWS = [
    pytest.param(Controller("RLJob.rljob.dev", "job", UID), False, ObjectHolder.JOB, id="the job's own"),
    pytest.param(
        Controller("RLJob.rljob.dev", "job", UID), True, ObjectHolder.PASSING, id="the job's own, being deleted"
    ),
    pytest.param(Controller("RLJob.rljob.dev", "job", "u0"), False, ObjectHolder.PASSING, id="of an earlier job"),
    pytest.param(Controller("RLJob.rljob.dev", "job", "u0"), True, ObjectHolder.PASSING, id="of an earlier job, going"),
    pytest.param(Controller("RLJob.rljob.dev", "other", "u2"), False, ObjectHolder.OTHER, id="of another job"),
    pytest.param(
        Controller("RLJob.example.org", "job", "u2"), False, ObjectHolder.OTHER, id="of another kind of that name"
    ),
    pytest.param(Controller("Deployment.apps", "job", "u2"), False, ObjectHolder.OTHER, id="of another controller"),
    pytest.param(None, False, ObjectHolder.OTHER, id="nobody's"),
    pytest.param(None, True, ObjectHolder.OTHER, id="nobody's, being deleted: until it is gone"),
]


def there(controller: Controller | None, *, deleting: bool = False) -> OwnedView:
    return OwnedView("Service", "job-control", "o1", controller, "d1", "r1", "", deleting, None)


@pytest.mark.parametrize(("controller", "deleting", "expected"), ROWS)
def test_holder(controller: Controller | None, deleting: bool, expected: ObjectHolder) -> None:
    assert holder(there(controller, deleting=deleting), KEY, UID) is expected


RETAINED = ClaimView(run="r", run_of="u0", spec='{"seed":1}', size="10Gi")
CLAIM_ROWS = [
    pytest.param(replace(RETAINED, run_of=UID), None, False, ObjectHolder.JOB, id="the job's own, of no owner"),
    pytest.param(RETAINED, None, False, ObjectHolder.JOB, id="of an earlier job, of the same run"),
    pytest.param(
        replace(RETAINED, run="other"), None, False, ObjectHolder.OTHER, id="of an earlier job, of another run"
    ),
    pytest.param(RETAINED, None, True, ObjectHolder.PASSING, id="that somebody deletes"),
    pytest.param(
        replace(RETAINED, run="other"), None, True, ObjectHolder.PASSING, id="of another run, that somebody deletes"
    ),
    pytest.param(ClaimView(size="10Gi"), None, False, ObjectHolder.OTHER, id="of nobody"),
    pytest.param(
        RETAINED, Controller("RLJob.rljob.dev", "job", "u0"), False, ObjectHolder.PASSING, id="that goes with its job"
    ),
    pytest.param(
        RETAINED, Controller("Other.example.org", "job", "u0"), False, ObjectHolder.OTHER, id="that another one took"
    ),
]


@pytest.mark.parametrize(("claim", "controller", "deleting", "expected"), CLAIM_ROWS)
def test_holder_of_a_claim(
    claim: ClaimView, controller: Controller | None, deleting: bool, expected: ObjectHolder
) -> None:
    view = OwnedView(
        "PersistentVolumeClaim", "job-checkpoints", "o1", controller, "d1", "r1", "", deleting, None, claim=claim
    )
    assert holder(view, KEY, UID, "r") is expected


SETS = "StatefulSet", "job-control"
CLAIM = "PersistentVolumeClaim", "data-job-control-0"
OF_SET, OF_JOB = Controller("StatefulSet.apps", "job-control", "s0"), Controller("RLJob.rljob.dev", "job", UID)


def test_a_claim_that_a_control_redis_set_has_made_goes_with_it() -> None:
    assert holder(seen(CLAIM, OF_SET), KEY, UID) is ObjectHolder.PASSING
    assert holder(seen(CLAIM, replace(OF_SET, name="other-control")), KEY, UID) is ObjectHolder.OTHER


def seen(name: tuple[str, str], controller: Controller | None, *, makes_claims: bool = False) -> OwnedView:
    view = OwnedView(*name, "o1", controller, "d1", "r1", "", False, None)
    return replace(view, makes_claims=makes_claims)


@pytest.mark.parametrize(
    ("views", "expected"),
    [
        pytest.param([], ClaimedBy.JOB, id="nothing is there"),
        pytest.param([seen(SETS, OF_JOB)], ClaimedBy.JOB, id="its set makes no claim"),
        pytest.param([seen(SETS, OF_JOB), seen(CLAIM, OF_JOB)], ClaimedBy.JOB, id="the claim is the job's"),
        pytest.param([seen(CLAIM, OF_JOB)], ClaimedBy.JOB, id="the claim is the job's and the set is gone"),
        pytest.param(
            [seen(SETS, OF_JOB, makes_claims=True), seen(CLAIM, OF_SET)], ClaimedBy.SET, id="release 0.2.0 began it"
        ),
        pytest.param(
            [seen(SETS, OF_JOB, makes_claims=True), seen(CLAIM, OF_JOB)],
            ClaimedBy.SET,
            id="release 0.2.0 made the set again after a rollback",
        ),
        pytest.param([seen(SETS, OF_JOB, makes_claims=True)], ClaimedBy.SET, id="the claim is not made yet"),
        pytest.param([seen(CLAIM, None)], ClaimedBy.SET, id="a set was deleted that left its claim"),
        pytest.param([seen(CLAIM, OF_SET)], ClaimedBy.JOB, id="its set is gone and takes the claim along"),
    ],
)
def test_who_makes_the_claim_of_the_control_redis(views: list[OwnedView], expected: ClaimedBy) -> None:
    assert control_claimed_by(KEY, {(view.kind, view.name): view for view in views}) is expected


def test_a_view_of_a_set_states_whether_it_makes_claims() -> None:
    raw = {"metadata": {"name": "job-control", "uid": "o1", "resourceVersion": "1"}}
    assert not view_owned("StatefulSet", {**raw, "spec": {"replicas": 1}}).makes_claims
    assert view_owned("StatefulSet", {**raw, "spec": {"volumeClaimTemplates": [{"metadata": {}}]}}).makes_claims


def test_the_checkpoints_of_another_run_are_reported_by_the_fields_that_differ() -> None:
    def spec(**fields: Any) -> str:
        return retained_spec(RLJobSpec.model_validate({**GOOD["spec"], **fields}))

    claim = replace(RETAINED, spec=spec(seed=1))
    view = OwnedView("PersistentVolumeClaim", "job-checkpoints", "o1", None, "d1", "r1", "", False, None, claim=claim)

    message = sentence([foreign(view, {ANNOTATION_SPEC: spec(seed=7)})], KEY)

    assert message == (
        "names of this job's objects are taken by what is not its own: PersistentVolumeClaim job-checkpoints. Nothing "
        "is done to that, and nothing of the job is started. Delete it, or give the job another name; the job then goes"
        " on by itself. job-checkpoints keeps the checkpoints of an earlier job of this name, which was another run: "
        "spec.seed: 7 differs from 1. Set that back to train on from them, or begin a new job with their weights: "
        "rljob clone job --from-checkpoint. They go with the claim"
    )
    unknown = replace(view, claim=replace(claim, spec="what another version wrote"))
    assert "another run: its spec differs in a field that cannot change." in sentence([foreign(unknown)], KEY)


def test_the_labels_and_annotations_of_the_job_make_nothing_its_own() -> None:
    reference = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "name": "job", "uid": UID}
    metadata: dict[str, Any] = {"name": "job-control", "uid": "o1", "resourceVersion": "1"}
    metadata |= {"labels": {"rljob.dev/job": "job"}, "annotations": {"rljob.dev/applied": "d1"}}
    metadata |= {"ownerReferences": [reference]}

    assert holder(view_owned("Service", {"metadata": metadata}), KEY, UID) is ObjectHolder.OTHER


def test_the_sentence_names_each_once_in_one_order_with_the_cure() -> None:
    found = [foreign(there(Controller("Deployment.apps", "web", "u2"))), Foreign("Secret", "job-secret")]

    message = sentence([*found, found[1]], KEY)

    assert message == sentence(found[::-1], KEY)
    assert message == (
        "names of this job's objects are taken by what is not its own: Secret job-secret, Service job-control (of "
        "Deployment web). Nothing is done to that, and nothing of the job is started. Delete it, or give the job "
        "another name; the job then goes on by itself"
    )


def test_a_volume_can_be_retained() -> None:
    message = sentence([Foreign("PersistentVolumeClaim", "job-checkpoints")], KEY)

    assert "set spec.checkpoint.volume.claimName to job-checkpoints" in message


def test_of_very_many_some_are_named() -> None:
    message = sentence([Foreign("Pod", f"job-{number:02}") for number in range(MOST_NAMED + 3)], KEY)

    assert "Pod job-00" in message
    assert f"Pod job-{MOST_NAMED}" not in message
    assert " and 3 more." in message
