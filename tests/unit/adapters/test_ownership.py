"""Whose an object is that has the name of one of a job's, and how that is said."""

from typing import Any

import pytest

from rljob_operator.adapters.ownership import MOST_NAMED, Foreign, Holder, foreign, holder, sentence
from rljob_operator.adapters.views import Controller, JobKey, OwnedView, view_owned

KEY, UID = JobKey("ns", "job"), "u1"
ROWS = [
    pytest.param(Controller("RLJob.rljob.dev", "job", UID), False, Holder.JOB, id="the job's own"),
    pytest.param(Controller("RLJob.rljob.dev", "job", UID), True, Holder.PASSING, id="the job's own, being deleted"),
    pytest.param(Controller("RLJob.rljob.dev", "job", "u0"), False, Holder.PASSING, id="of an earlier job"),
    pytest.param(Controller("RLJob.rljob.dev", "job", "u0"), True, Holder.PASSING, id="of an earlier job, going"),
    pytest.param(Controller("RLJob.rljob.dev", "other", "u2"), False, Holder.OTHER, id="of another job"),
    pytest.param(Controller("RLJob.example.org", "job", "u2"), False, Holder.OTHER, id="of another kind of that name"),
    pytest.param(Controller("Deployment.apps", "job", "u2"), False, Holder.OTHER, id="of another controller"),
    pytest.param(None, False, Holder.OTHER, id="nobody's"),
    pytest.param(None, True, Holder.OTHER, id="nobody's, being deleted: until it is gone"),
]


def there(controller: Controller | None, *, deleting: bool = False) -> OwnedView:
    return OwnedView("Service", "job-control", "o1", controller, "d1", "r1", "", deleting, None)


@pytest.mark.parametrize(("controller", "deleting", "expected"), ROWS)
def test_holder(controller: Controller | None, deleting: bool, expected: Holder) -> None:
    assert holder(there(controller, deleting=deleting), KEY, UID) is expected


def test_the_labels_and_annotations_of_the_job_make_nothing_its_own() -> None:
    reference = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "name": "job", "uid": UID}
    metadata: dict[str, Any] = {"name": "job-control", "uid": "o1", "resourceVersion": "1"}
    metadata |= {"labels": {"rljob.dev/job": "job"}, "annotations": {"rljob.dev/applied": "d1"}}
    metadata |= {"ownerReferences": [reference]}

    assert holder(view_owned("Service", {"metadata": metadata}), KEY, UID) is Holder.OTHER


def test_the_sentence_names_each_once_in_one_order_with_the_cure() -> None:
    found = [foreign(there(Controller("Deployment.apps", "web", "u2"))), Foreign("Secret", "job-secret")]

    said = sentence([*found, found[1]], KEY)

    assert said == sentence(found[::-1], KEY)
    assert said == (
        "names of this job's objects are taken by what is not its own: Secret job-secret, Service job-control (of "
        "Deployment web). Nothing is done to that, and nothing of the job is started. Delete it, or give the job "
        "another name; the job then goes on by itself"
    )


def test_a_volume_can_be_kept() -> None:
    said = sentence([Foreign("PersistentVolumeClaim", "job-checkpoints")], KEY)

    assert "set spec.checkpoint.volume.claimName to job-checkpoints" in said


def test_of_very_many_some_are_named() -> None:
    said = sentence([Foreign("Pod", f"job-{number:02}") for number in range(MOST_NAMED + 3)], KEY)

    assert "Pod job-00" in said
    assert f"Pod job-{MOST_NAMED}" not in said
    assert " and 3 more." in said
