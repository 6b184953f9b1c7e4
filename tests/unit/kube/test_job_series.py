"""What a scrape shows of jobs: texts and numbers of their statuses, and nothing of one that is gone or garbled."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from rljob_operator.kube.operator_metrics import JobSeries


def reported(*statuses: dict[str, Any]) -> set[str]:
    registry = CollectorRegistry()
    series = JobSeries(registry)
    series.source = lambda: [
        {"metadata": {"namespace": "team", "name": f"job{number}"}, "status": status}
        for number, status in enumerate(statuses)
    ]
    lines = generate_latest(registry).decode().splitlines()
    return {line.removeprefix("rljob_operator_job_") for line in lines if not line.startswith("#")}


WHOLE = {
    "phase": "Failed",
    "conditions": [
        {"type": "Accepted", "status": "True"},
        {"type": "Ready", "status": "False"},
        {"type": "Progressing", "status": "True"},
    ],
    "restart": {"globalRestarts": 3},
    "training": {"step": 7, "totalSteps": 30},
    "endedAt": "1970-01-01T00:10:00.500000Z",
}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param({}, {'phase{job="job0",namespace="team",phase="Pending"} 1.0'}, id="a job without a status waits"),
        pytest.param(
            WHOLE,
            {
                'phase{job="job0",namespace="team",phase="Failed"} 1.0',
                'condition{condition="Accepted",job="job0",namespace="team"} 1.0',
                'condition{condition="Ready",job="job0",namespace="team"} 0.0',
                'global_restarts_total{job="job0",namespace="team"} 3.0',
                'step{job="job0",namespace="team"} 7.0',
                'total_steps{job="job0",namespace="team"} 30.0',
                'ended_timestamp_seconds{job="job0",namespace="team"} 600.5',
            },
            id="a whole status",
        ),
        pytest.param(
            {"phase": "Napping", "training": {"step": None}, "restart": {}},
            {'phase{job="job0",namespace="team",phase="Napping"} 1.0'},
            id="a newer operator's phase is told as it is, and what is not known not at all",
        ),
        pytest.param(
            {
                "phase": 7,
                "conditions": {"Ready": True},
                "training": "none",
                "restart": {"globalRestarts": []},
                "endedAt": "now",
            },
            {'phase{job="job0",namespace="team",phase="Pending"} 1.0'},
            id="a garbled status costs its own series alone",
        ),
    ],
)
def test_a_job_is_reported(status: dict[str, Any], expected: set[str]) -> None:
    assert reported(status) == expected


def test_a_job_that_is_gone_leaves_nothing() -> None:
    assert reported() == set()


def test_each_job_has_series_of_its_own() -> None:
    assert len(reported(WHOLE, WHOLE)) == 2 * len(reported(WHOLE))
