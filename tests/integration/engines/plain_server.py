"""A server of the dialect without our extensions: the torch engine behind a proxy that takes them away.

It answers as SGLang does: no incarnation, no lineage, no spans, `weight_version` as it was given, `/model_info` only
under its newer name.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream: httpx.Client
    weight_version = "default"
    prompts_asked: list[int]

    def do_GET(self) -> None:
        if self.path in ("/get_model_info", "/get_server_info"):
            self._answer(404, {"detail": "Not Found"})
            return
        reply = self.upstream.get(self.path)
        self._answer(reply.status_code, self._without_extensions(reply.json()))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        assert "compact" not in body
        assert "lineage" not in body
        if self.path == "/generate":
            self.prompts_asked.append(len(body["input_ids"]))
        reply = self.upstream.post(self.path, json=body)
        if self.path == "/update_weights_from_disk" and reply.status_code == 200:
            type(self).weight_version = body["weight_version"]
        self._answer(reply.status_code, self._without_extensions(reply.json()))

    def _without_extensions(self, body: Any) -> Any:
        if isinstance(body, list):
            return [self._without_extensions(one) for one in body]
        if not isinstance(body, dict):
            return body
        kept = {
            name: self._without_extensions(value)
            for name, value in body.items()
            if name not in ("incarnation", "lineage", "extensions", "weight_versions")
        }
        return kept | ({"weight_version": self.weight_version} if "weight_version" in kept else {})

    def _answer(self, status: int, body: object) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def plain_server(engine_url: str) -> Iterator[tuple[str, list[int]]]:
    """The url of the proxy, and how many prompts each request to it had."""
    prompts_asked: list[int] = []
    with httpx.Client(base_url=engine_url, timeout=60) as upstream:
        handler = type("Handler", (_Handler,), {"upstream": upstream, "prompts_asked": prompts_asked})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", prompts_asked
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
