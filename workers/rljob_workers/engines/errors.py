"""What engines raise.

EngineError
├── EngineGone      the server died, or another incarnation answers
├── EngineTimeout   no answer within the deadline (who waited for what)
└── EngineRefused   the server refuses, with its sentence
"""


class EngineError(Exception):
    """Base of everything an engine client raises."""


class EngineGone(EngineError):
    """The server died, or another incarnation of it answers."""


class EngineTimeout(EngineError):
    """No answer within the deadline."""


class EngineRefused(EngineError):
    """The server refuses the request, with its sentence."""
