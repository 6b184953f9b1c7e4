"""What can go wrong between the supervisor and what it supervises.

SupervisorError
├── CoordinatorUnreachable   it did not answer in time; asked again later
└── CoordinatorRefused       it answered with a reason; observed anew, then decided anew
RunRefused                   the user's to cure: the folder is in use, of another manifest, or finished
"""


class SupervisorError(Exception):
    """Base of the errors of this room."""


class CoordinatorUnreachable(SupervisorError):
    """No answer."""


class CoordinatorRefused(SupervisorError):
    """An answer that says no."""


class RunRefused(ValueError):
    """The run cannot start; the sentence says what to do."""
