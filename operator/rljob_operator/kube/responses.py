"""HTTP responses read within bounds: length of the body, number of bytes per connection, nesting depth of JSON.

Called by every HTTP client of the operator. Servers may be hostile; what was requested is not known here.
"""

import asyncio
import os
import re
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import aiohttp
import orjson
from aiohttp.client_proto import ResponseHandler

from rljob_operator.kube.errors import AnswerTooLong

FRAME_BYTES = 64 * 1024
"""What may come beside an answer: status line, headers, the marks between its chunks."""


_BEFORE_HEAD_BYTES = FRAME_BYTES + 256 * 1024
"""Before the head of an answer was read: one read of a socket brings so much of its body, too."""


_PIECE_BYTES = 16 * 1024
"""So much is read before it is judged."""


async def read_at_most(answer: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """The body, piece by piece. AnswerTooLong ends it, and with it the connection, before the rest has come."""
    protocol = answer.connection.protocol if answer.connection is not None else None
    if isinstance(protocol, _MeteredHandler):
        protocol.allow(most_bytes)
    pieces: list[bytes] = []
    come = 0
    try:
        async for piece in answer.content.iter_any():
            pieces.append(piece)
            come += len(piece)
            if come > most_bytes:
                raise _TooLong
    except _TooLong as error:
        answer.close()
        raise AnswerTooLong(f"more than {most_bytes} bytes") from error
    return b"".join(pieces)


def what_came_back(error: Exception, timeout: float, connect_timeout: float) -> str:
    """What became of a question that has no answer, in a sentence that stays the same as long as it does."""
    match error:
        case aiohttp.ConnectionTimeoutError():
            return f"no connection within {connect_timeout:g} s"
        case TimeoutError():
            return f"no answer within {timeout:g} s"
        case _Unasked():
            return "more came than the answer to one question"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError():
            return "the connection was closed before the end of an answer"
        case aiohttp.ClientConnectorDNSError():
            return "the name is not known"
        case OSError(errno=int(number)):
            return os.strerror(number).lower()
        case aiohttp.ClientResponseError(message=problem):
            return f"what came is no HTTP: {problem}"
        case _:
            return type(error).__name__


class MeteredConnector(aiohttp.TCPConnector):
    """Makes connections that end when an answer brings more than it may, whatever it is made of.

    aiohttp bounds a line and the number of headers. It takes any number of interim answers (100 Continue) and of
    extensions of chunks, for as long as the question may last.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - aiohttp's own
        super().__init__(**options)
        # There is no public way to another protocol; a test with a server that sends too much notices if this is none.
        self._factory = cast("partial[ResponseHandler]", partial(_MeteredHandler, loop=self._loop))


class _MeteredHandler(ResponseHandler):
    """Counts what comes in answer to one request."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._come = 0
        self._most_bytes = _BEFORE_HEAD_BYTES

    def set_response_params(self, **options: Any) -> None:  # noqa: ANN401 - aiohttp's own; called for each request
        """The next answer is another one."""
        self._come, self._most_bytes = 0, _BEFORE_HEAD_BYTES
        super().set_response_params(**options)

    def allow(self, most_bytes: int) -> None:
        """The answer has begun, and may have a body of this length."""
        self._most_bytes = max(self._most_bytes, most_bytes + FRAME_BYTES)

    def data_received(self, data: bytes) -> None:
        """Anything from the other side.

        An answer without a body is two dozen bytes, and costs as much as a large one: what is no answer to the question
        is noticed before there are many.
        """
        self._come += len(data)
        if self._come > self._most_bytes:
            self._end(_TooLong())
            return
        for begin in range(0, max(1, len(data)), _PIECE_BYTES):
            super().data_received(data[begin : begin + _PIECE_BYTES])
            if len(self) > 1:
                self._end(_Unasked())
                return

    def _end(self, error: Exception) -> None:
        self._buffer.clear()
        self.set_exception(error)
        if self._payload is not None:
            self._payload.set_exception(error)
        if self.transport is not None:
            self.transport.abort()  # not `close`, which forgets the error


class _Unasked(aiohttp.ClientPayloadError):
    """More answers than questions."""


class _TooLong(aiohttp.ClientPayloadError):
    """An answer is longer than it may be."""


DEEPEST = 500
"""Less than orjson reads (1024), and more than it writes (254), by which `accept` knows what was cut."""


_MARK = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
"""Texts, which may hold brackets, and brackets."""


def decoded(text: bytes) -> dict[str, Any]:
    """An object. orjson.JSONDecodeError where it is none."""
    try:
        found: dict[str, Any] = orjson.loads(text)
    except orjson.JSONDecodeError:
        found = orjson.loads(b"".join(_shallow(text)))
    return found


def _shallow(text: bytes) -> Iterator[bytes]:
    """The same with null for each object and list that lies too deep."""
    depth, start = 0, 0
    for mark in _MARK.finditer(text):
        if mark[0] in (b"{", b"["):
            depth += 1
            if depth == DEEPEST + 1:
                yield text[start : mark.start()] + b"null"
        elif mark[0] in (b"}", b"]"):
            depth -= 1
            if depth == DEEPEST:
                start = mark.end()
    yield text[start:] if depth <= DEEPEST else b""
