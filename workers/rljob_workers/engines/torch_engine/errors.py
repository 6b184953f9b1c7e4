"""What the engine's own parts raise; the HTTP edge turns each into a status and a sentence.

EngineFault
├── BadRequest      400: a request that can never be served, as the user wrote it
├── NotServing      503: no weights are loaded, or the request was dropped with them
└── StepFailed      500: computing failed (out of memory, logits that are not finite)
"""


class EngineFault(Exception):
    """Base: a sentence and the HTTP status that it is answered with."""

    status = 500


class BadRequest(EngineFault):
    """The request can never be served."""

    status = 400


class NotServing(EngineFault):
    """No weights are loaded, or they went while the request ran."""

    status = 503


class StepFailed(EngineFault):
    """Computing failed; the requests that took part are lost, the server is not."""

    status = 500
