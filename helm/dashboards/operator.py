"""The operator: who leads, how soon jobs have their turn, how soon they are restarted, what others answer it."""

from helm.dashboards.panels import Board, Query, Row, choice, figure, lines, rate, sources

_OPERATOR = 'namespace="$namespace",service="$service"'


def _rate(name: str, by: str, also: str = "") -> str:
    return rate(name, f"{_OPERATOR}{also}", by)


def _quantile(share: float, name: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, {_rate(f'{name}_bucket', labels)})"


def _or_none(expression: str) -> str:
    """A line at zero instead of no data, for a series that begins with its first event."""
    return f"{expression} or on() vector(0)"


_NOW = Row(
    "Now",
    [
        figure(
            "Leaders",
            "One replica leads, the others stand by.",
            "none",
            Query(f"sum(rljob_operator_leader{{{_OPERATOR}}})", "leaders"),
        ),
        figure("Replicas", "Scraped pods.", "none", Query(f"count(rljob_operator_leader{{{_OPERATOR}}})", "replicas")),
        figure("Jobs", "Jobs in its care.", "none", Query(f"sum(rljob_operator_jobs{{{_OPERATOR}}})", "jobs")),
        figure(
            "Jobs that wait for a turn",
            "Now.",
            "none",
            Query(f"sum(rljob_operator_queue_depth{{{_OPERATOR}}})", "jobs"),
        ),
        figure(
            "Longest wait for a turn",
            "Now. Restarts are late by as much.",
            "s",
            Query(f"max(rljob_operator_queue_lag_seconds{{{_OPERATOR}}})", "wait"),
        ),
        figure(
            "Most silent watch",
            "Since its last sign of life.",
            "s",
            Query(f"max(rljob_operator_watch_age_seconds{{{_OPERATOR}}})", "silence"),
        ),
    ],
)

_TURNS = Row(
    "Turns",
    [
        lines(
            "Turns a second",
            "A turn looks at one job and does what is to be done.",
            "none",
            Query(_rate("rljob_operator_reconcile_seconds_count", "result"), "{{result}}"),
        ),
        lines(
            "Duration of a turn",
            "Median and 99th percentile.",
            "s",
            Query(_quantile(0.5, "rljob_operator_reconcile_seconds"), "median"),
            Query(_quantile(0.99, "rljob_operator_reconcile_seconds"), "99 %"),
        ),
        lines(
            "Wait for a turn",
            "99th percentile; alarms go before progress.",
            "s",
            Query(_quantile(0.99, "rljob_operator_queue_wait_seconds", "urgency"), "{{urgency}}"),
        ),
        lines(
            "Failed turns a second",
            "Turns by their error; they are tried again.",
            "none",
            Query(_or_none(_rate("rljob_operator_reconcile_errors_total", "kind")), "{{kind}}"),
        ),
        lines(
            "What was told",
            "Events of its jobs by reason, since the operator began: each step of a line is one.",
            "none",
            Query(f"sum by (reason) (rljob_operator_decisions_total{{{_OPERATOR}}})", "{{reason}}"),
        ),
        lines(
            "Restarts",
            "99th percentile from a failure that was seen to a stage of its restart.",
            "s",
            Query(_quantile(0.99, "rljob_operator_restart_seconds", "stage"), "{{stage}}"),
        ),
    ],
)

_OTHERS = Row(
    "API server and coordinators",
    [
        lines(
            "Requests a second",
            "To the API server, by verb and resource.",
            "none",
            Query(_rate("rljob_operator_api_requests_total", "verb, resource"), "{{verb}} {{resource}}"),
        ),
        lines(
            "Their duration",
            "99th percentile, by verb.",
            "s",
            Query(_quantile(0.99, "rljob_operator_api_request_seconds", "verb"), "{{verb}}"),
        ),
        lines(
            "Requests that failed a second",
            "The API server's answers. An object that is not there, or was changed meanwhile, is no failure.",
            "none",
            Query(
                _or_none(
                    _rate("rljob_operator_api_requests_total", "verb, resource, code", ',code!~"2..|404|409|410"')
                ),
                "{{verb}} {{resource}} {{code}}",
            ),
        ),
        lines(
            "Requests to coordinators a second",
            "Requests by their result.",
            "none",
            Query(_rate("rljob_operator_coordinator_requests_total", "request, result"), "{{request}} {{result}}"),
        ),
        lines(
            "Silence of watches",
            "Since the last sign of life.",
            "s",
            Query(f"max by (resource) (rljob_operator_watch_age_seconds{{{_OPERATOR}}})", "{{resource}}"),
        ),
        lines(
            "Watches begun anew a second",
            "Watches by cause: ended and gone are usual.",
            "none",
            Query(_or_none(_rate("rljob_operator_watch_restarts_total", "cause")), "{{cause}}"),
        ),
    ],
)

BOARD = Board(
    uid="rljob-operator",
    title="RLJob: the operator",
    description="Leadership, turns, restarts, and the requests to the API server and to coordinators.",
    variables=[
        sources(),
        choice("namespace", "Namespace of the operator", "label_values(rljob_operator_leader, namespace)"),
        choice("service", "Operator", 'label_values(rljob_operator_leader{namespace="$namespace"}, service)'),
    ],
    rows=[_NOW, _TURNS, _OTHERS],
)
