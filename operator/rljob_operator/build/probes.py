"""Probes of the containers: what the kubelet asks, how often, and how long it is patient."""

from typing import Any

LAST_WORDS = "FallbackToLogsOnError"
"""Termination message policy: the end of a container's log is what it said of its end, for whoever tells of that."""

_STOPPED_GRACE_SECONDS = 5
"""A container that fails its liveness probe does not handle SIGTERM either: it is not given its drain."""

_START_SECONDS = 900
"""For imports, at least: `engine.startupTimeoutSeconds` is for a machine or a disk that needs longer."""


def worker_probes(startup_seconds: int) -> dict[str, Any]:
    """Of a launcher. Startup is its imports: seconds with byte code, minutes on a machine that swaps."""
    return {
        "startupProbe": {**_http("/startupz"), **_startup(startup_seconds)},
        # Within a second of the coordinator's word, so that `kubectl rollout status` and the budget see a restart.
        "readinessProbe": {**_http("/readyz"), "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 1},
        # About the heartbeat's time: the launcher's loop never computes, so half a minute of silence is the end of it.
        "livenessProbe": {**_liveness(), **_http("/livez"), "failureThreshold": 6},
    }


def coordinator_probes(startup_seconds: int) -> dict[str, Any]:
    """Of the coordinator: it is alive while its control Redis is away, and not ready."""
    return {
        "startupProbe": {**_http("/healthz"), **_startup(startup_seconds)},
        "readinessProbe": {**_http("/readyz"), "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 1},
        "livenessProbe": {**_liveness(), **_http("/healthz"), "failureThreshold": 3},
    }


def redis_probes(ping: list[str]) -> dict[str, Any]:
    """Of a Redis server, `ping` being a command of its image, or empty where it has none.

    A port also answers for a server that is stopped or caught in a script: only a command can tell. A server that
    loads its file answers, and is left in peace.
    """
    readiness = {"tcpSocket": {"port": "redis"}, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 2}
    if not ping:
        return {"readinessProbe": readiness}
    return {
        "readinessProbe": readiness,
        "livenessProbe": {**_liveness(), "exec": {"command": ping}, "failureThreshold": 3},
    }


def _startup(seconds: int) -> dict[str, Any]:
    return {"periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": max(_START_SECONDS, seconds)}


def _liveness() -> dict[str, Any]:
    return {
        "periodSeconds": 5,
        "timeoutSeconds": 5,
        "terminationGracePeriodSeconds": _STOPPED_GRACE_SECONDS,
    }


def _http(path: str) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": "http"}}
