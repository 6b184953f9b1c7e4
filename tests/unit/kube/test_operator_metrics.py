"""The names and labels of the operator's metrics: dashboards and alerts are made of them."""

from rljob_operator.kube.operator_metrics import Metrics

EXPECTED = {
    "rljob_build_info": ("component", "version"),
    "rljob_operator_api_request_seconds": ("verb", "resource"),
    "rljob_operator_api_requests": ("verb", "resource", "code"),
    "rljob_operator_census_age_seconds": (),
    "rljob_operator_coordinator_requests": ("request", "result"),
    "rljob_operator_decisions": ("reason", "scope"),
    "rljob_operator_jobs": ("phase",),
    "rljob_operator_leader": (),
    "rljob_operator_namespace_contended": ("job_namespace",),
    "rljob_operator_queue_depth": (),
    "rljob_operator_queue_lag_seconds": (),
    "rljob_operator_queue_wait_seconds": ("urgency",),
    "rljob_operator_reconcile_errors": ("kind",),
    "rljob_operator_reconcile_seconds": ("result",),
    "rljob_operator_restart_seconds": ("scope", "stage"),
    "rljob_operator_watch_age_seconds": ("resource",),
    "rljob_operator_watch_open": ("resource",),
    "rljob_operator_watch_restarts": ("resource", "cause"),
}


def test_names_and_labels_stay_as_they_are() -> None:
    metrics = Metrics()
    known = {metric._name: metric._labelnames for metric in vars(metrics).values() if hasattr(metric, "_labelnames")}

    assert known == EXPECTED
