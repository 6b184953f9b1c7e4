"""Pages for probes and scrapers: a GET request in pieces, and its answer. One request a connection; no socket here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus

MAX_REQUEST_BYTES = 8192


PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Reply:
    """Status and body of an answer."""

    status: int
    body: str
    content_type: str = PROMETHEUS_TEXT


NO_QUESTION = Reply(HTTPStatus.BAD_REQUEST, "this is not a GET request\n")


def not_found(paths: Iterable[str]) -> Reply:
    """Names the pages that there are."""
    return Reply(HTTPStatus.NOT_FOUND, f"there are {', '.join(paths)}\n")


class PageRequest:
    """The head of a request, as its bytes come."""

    def __init__(self) -> None:
        self._received = bytearray()

    def take(self, data: bytes) -> bool:
        """Whether the head is whole, or too long to be one."""
        self._received += data
        return b"\r\n\r\n" in self._received or len(self._received) > MAX_REQUEST_BYTES

    @property
    def path(self) -> str | None:
        """The path of the page, without a query; None: this is no GET request."""
        parts = self._line()
        is_asked = len(parts) == 3 and parts[0] in (b"GET", b"HEAD") and len(self._received) <= MAX_REQUEST_BYTES
        return parts[1].decode(errors="replace").partition("?")[0] if is_asked else None

    def answer(self, reply: Reply) -> bytes:
        """The reply, after which the connection is closed."""
        body = reply.body.encode()
        head = (
            f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}\r\nContent-Type: {reply.content_type}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + (b"" if self._line()[0] == b"HEAD" else body)

    def _line(self) -> list[bytes]:
        return bytes(self._received).split(b"\r\n", 1)[0].split(b" ")
