"""What engines raise.

EngineError
├── EngineGone      the server died, or another incarnation answers
├── EngineTimeout   no answer within the deadline (who waited for what)
└── EngineRefused   the server refuses, with its sentence
"""


class EngineError(Exception):
    """Base of everything an engine client raises."""


class EngineGone(EngineError):  # noqa: N818 -- the names say what happened
    """The server died, or another incarnation of it answers."""


class EngineTimeout(EngineError):  # noqa: N818
    """No answer within the deadline."""


class EngineRefused(EngineError):  # noqa: N818
    """The server refuses the request, with its sentence."""
