"""What engines raise.

EngineError
├── EngineAway      nobody listens: the server is being started, and the request has reached nobody
├── EngineGone      the server died, or another incarnation answers
├── EngineTimeout   no answer within the deadline (who waited for what)
│   └── EngineStandsStill   it has requests and has made no token of any for too long
├── EngineEmptied   the request was aborted with all others: what its engine had made is not wanted
└── EngineRefused   the server refuses, with its sentence
"""


class EngineError(Exception):
    """Base of everything an engine client raises."""


class EngineAway(EngineError):
    """Nobody listens at the server's port: it is being started, and the request has reached nobody."""


class EngineGone(EngineError):
    """The server died, or another incarnation of it answers."""


class EngineTimeout(EngineError):
    """No answer within the deadline."""


class EngineStandsStill(EngineTimeout):
    """It has requests and has made no token of any for too long."""

    def __init__(self, sentence: str, *, found_at: float) -> None:
        """`found_at` in monotonic seconds: it says nothing of a life that was begun later."""
        super().__init__(sentence)
        self.found_at = found_at


class EngineEmptied(EngineError):
    """The request was aborted with all others: what its engine had made is not wanted."""


class EngineRefused(EngineError):
    """The server refuses the request, with its sentence."""
