"""The token that every request carries, but for probes and scrapes. Around all routes; knows none of them."""

from __future__ import annotations

import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from rljob_workers.dcs.coordinator.hot_routes import send_json
from rljob_workers.dcs.coordinator.refusals import bad_request

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
"""Probes and scrapes carry no secret, and are told none."""
UNAUTHORIZED = 401
_HEADER = b"x-rljob-token"


class TokenGuard:
    """An ASGI application around another, which gets only what carries the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._is_given(scope):
            await self._app(scope, receive, send)
            return
        refused = bad_request("X-RLJob-Token is missing or wrong. Send the job's token.")
        await send_json(send, UNAUTHORIZED, refused.body)

    def _is_given(self, scope: Scope) -> bool:
        """Compared in constant time."""
        given = next((value for name, value in scope["headers"] if name == _HEADER), b"")
        return hmac.compare_digest(given, self._token)
