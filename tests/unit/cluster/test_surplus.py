"""Which jobs of a namespace wait where the operator serves only so many of each."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_operator.cluster.surplus import surplus
from rljob_operator.kube.stored_spec import StoredSpec
from rljob_operator.kube.views import JobKey

ENDED: dict[str, Any] = {"conditions": [{"type": "Succeeded", "status": "True"}]}
BEGUN: dict[str, Any] = {"restart": {"epoch": 2}}


def make_job(
    name: str, created: int, status: dict[str, Any] | None = None, *, namespace: str = "ns", **spec: Any
) -> dict[str, Any]:
    metadata = {"namespace": namespace, "name": name, "creationTimestamp": f"2026-01-01T00:00:{created:02}Z"}
    return {"metadata": metadata, "spec": StoredSpec.of(spec), "status": status or {}}


def waiting(jobs: list[dict[str, Any]], most: int | None) -> str:
    keys = [JobKey(raw["metadata"]["namespace"], raw["metadata"]["name"]) for raw in jobs]
    return "".join(key.name for key in keys if surplus(key, jobs, most) is not None)


@pytest.mark.parametrize(
    ("jobs", "most", "expected"),
    [
        pytest.param([make_job("a", 1), make_job("b", 2)], None, "", id="any number, by default"),
        pytest.param([make_job("a", 1), make_job("b", 2)], 2, "", id="as many as are allowed"),
        pytest.param([make_job("b", 2), make_job("a", 1), make_job("c", 3)], 2, "c", id="the youngest waits"),
        pytest.param([make_job("b", 1), make_job("a", 1)], 1, "b", id="of the same second, by name"),
        pytest.param([make_job("a", 1, ENDED), make_job("b", 2)], 1, "", id="an ended one does not count"),
        pytest.param([make_job("a", 1), make_job("b", 2, BEGUN)], 1, "a", id="one that has begun goes on"),
        pytest.param([make_job("a", 1, BEGUN), make_job("b", 2, BEGUN)], 1, "", id="so do all, under a smaller option"),
        pytest.param(
            [make_job("a", 1, namespace="other"), make_job("b", 2)], 1, "", id="namespaces count for themselves"
        ),
        pytest.param([make_job("a", 1, managedBy="kueue"), make_job("b", 2)], 1, "", id="another controller's job"),
        pytest.param([make_job("a", 1, {"conditions": 7, "restart": 7}), make_job("b", 2)], 1, "b", id="odd statuses"),
    ],
)
def test_which_jobs_wait(jobs: list[dict[str, Any]], most: int | None, expected: str) -> None:
    assert waiting(jobs, most) == expected


def test_one_that_is_being_deleted_makes_room() -> None:
    leaving = make_job("a", 1)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:09Z"
    assert waiting([leaving, make_job("b", 2)], 1) == ""


def test_the_sentence_names_option_bound_and_cure() -> None:
    found = surplus(JobKey("ns", "b"), [make_job("a", 1), make_job("b", 2)], 1)
    assert found is not None
    assert found.sentence == (
        "the operator's option jobsPerNamespace is 1, and namespace ns has as many other jobs that have not ended: this"
        " one begins when there are fewer. Delete one, or ask the cluster's administrator for more"
    )


@pytest.mark.parametrize(
    ("place", "seconds"), [(0, 10.0), (49, 10.0), (50, 20.0), (1000, 210.0), (1450, 300.0), (2000, 300.0)]
)
def test_a_job_that_begins_late_is_looked_at_seldom(place: int, seconds: float) -> None:
    jobs = [make_job(f"job-{number:05}", 1) for number in range(2002)]
    found = surplus(JobKey("ns", f"job-{place + 1:05}"), jobs, 1)
    assert found is not None
    assert (found.place, found.again_seconds) == (place, seconds)
