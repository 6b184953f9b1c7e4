"""A job that is being deleted and that a finalizer keeps: what its status and its Event say."""

import pytest

from rljob_api.status import Phase
from rljob_operator.core import Reason
from rljob_operator.core.conditions import find, is_true
from rljob_operator.core.deletion import deletion_event, leaves_everything, with_deletion
from tests.unit.core.worlds import START, make_running

NOW = START + 100
param = pytest.param
RUNS = make_running().status
FOREIGN = ["example.com/audit"]


def test_while_its_pods_end_nothing_of_it_is_ready_and_it_is_in_progress() -> None:
    status = with_deletion(RUNS, FOREIGN, NOW, has_pods=True)

    assert (status.phase, status.reason) == (Phase.DELETING, "Deleting")
    assert not is_true(status, "Ready")
    assert is_true(status, "Progressing")
    assert [role.replicas for role in status.roles] == [role.replicas for role in RUNS.roles]
    assert not any(pod.ready for role in status.roles for pod in role.pods)


def test_once_none_is_left_it_has_no_replicas_and_is_in_progress_no_more() -> None:
    status = with_deletion(with_deletion(RUNS, FOREIGN, NOW, has_pods=True), FOREIGN, NOW, has_pods=False)

    assert (status.phase, status.reason) == (Phase.DELETING, "Deleting")
    assert not is_true(status, "Progressing")
    assert [(role.replicas, role.ready) for role in status.roles] == [(0, 0) for _ in RUNS.roles]
    assert status.training == RUNS.training


@pytest.mark.parametrize(
    ("finalizers", "has_pods", "expected"),
    [
        param(FOREIGN, True, "its pods end; the finalizer example.com/audit must be removed by", id="one is named"),
        param(FOREIGN, False, "its pods have ended; the finalizer example.com/audit must be", id="after its pods"),
        param(["a.io/x", "b.io/y"], False, "; the finalizers a.io/x, b.io/y must be removed", id="and so are several"),
        param(
            ["foregroundDeletion"],
            True,
            "its pods end; it goes when everything that it is made of is gone",
            id="the collector's own is removed by itself",
        ),
        param(["foregroundDeletion", "a.io/x"], True, "; the finalizer a.io/x must be", id="and is not to be removed"),
    ],
)
def test_the_status_names_what_keeps_it(finalizers: list[str], has_pods: bool, expected: str) -> None:
    ready = find(with_deletion(RUNS, finalizers, NOW, has_pods=has_pods), "Ready")

    assert ready is not None
    assert ready.message.startswith("the job is being deleted, its pods ")
    assert expected in ready.message


def test_the_event_is_emitted_once_for_what_keeps_the_job() -> None:
    event = deletion_event(FOREIGN, NOW)

    assert event.reason is Reason.DELETING
    assert "example.com/audit" in event.message
    assert event.once == deletion_event(FOREIGN, NOW + 60).once != deletion_event(["a.io/x"], NOW).once


@pytest.mark.parametrize(
    ("finalizers", "expected"),
    [
        param(["orphan"], True, id="the deletion orphans what the job is made of"),
        param(["foregroundDeletion"], False, id="it waits for what the job is made of"),
        param(FOREIGN, False, id="another program's"),
        param([], False, id="there is none"),
    ],
)
def test_only_an_orphaning_deletion_leaves_pods(finalizers: list[str], expected: bool) -> None:
    assert leaves_everything(finalizers) is expected
