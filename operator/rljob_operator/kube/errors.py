"""Errors of requests to the API server and to the lease. Raised by `kube`, handled by `cluster`."""


class AdapterError(Exception):
    """Base of the errors of this room."""


class ApiUnreachable(AdapterError):
    """No answer in time."""


class AnswerTooLong(AdapterError):
    """A coordinator's answer is longer than any that makes sense."""


class ApiRefused(AdapterError):
    """A refusal of the API server."""

    def __init__(self, what: str, status: int, reason: str, message: str, retry_after: float = 0.0) -> None:
        super().__init__(f"{what}: {status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


class ApiConflict(ApiRefused):
    """Another client wrote first, or it exists already."""


class ApiNotFound(ApiRefused):
    """It is not there."""


class ApiGone(ApiRefused):
    """The resource version is too old: list again."""


class LeadershipLost(AdapterError):
    """This replica is not the leader."""


_BY_STATUS: dict[int, type[ApiRefused]] = {404: ApiNotFound, 409: ApiConflict, 410: ApiGone}


def refusal(what: str, status: int, reason: str, message: str, retry_after: float = 0.0) -> ApiRefused:
    """The error for an HTTP status."""
    return _BY_STATUS.get(status, ApiRefused)(what, status, reason, message, retry_after)
