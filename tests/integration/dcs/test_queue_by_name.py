"""`rljob queue` of a job on a cluster: a real coordinator behind a server that speaks as the API server does."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from click.testing import CliRunner, Result

from rljob_api.names import EXIT_BAD_MANIFEST, EXIT_FAILED
from rljob_cli.main import cli
from tests.integration.dcs.world import World

NAMESPACE = "/api/v1/namespaces/team-a"
PROXY = f"{NAMESPACE}/services/demo-coordinator:8080/proxy"


class ApiServer(ThreadingHTTPServer):
    """One RLJob, its Secret, and the way to its coordinator."""

    daemon_threads = False

    def __init__(self, world: World) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.token = base64.b64encode(world.endpoints.token.encode()).decode()
        self.coordinator = world.endpoints.coordinator
        self.refuses: tuple[int, str] | None = None
        """What the proxy itself answers."""

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        if path == "/apis/rljob.dev/v1alpha1/namespaces/team-a/rljobs/demo":
            return 200, json.dumps({"spec": {}, "status": {"phase": "Running"}}).encode()
        if path == f"{NAMESPACE}/secrets/demo-secret":
            return 200, json.dumps({"kind": "Secret", "data": {"token": self.token}}).encode()
        if not path.startswith(PROXY):
            return self.refusal(404, f'"{path.rpartition("/")[2]}" not found')
        if self.refuses is not None:
            return self.refusal(*self.refuses)
        headers.pop("Authorization", None)  # as the proxy does
        url = self.coordinator + path.removeprefix(PROXY)
        answer = httpx.request(method, url, headers=headers, content=body, timeout=60)
        return answer.status_code, answer.content

    @staticmethod
    def refusal(code: int, message: str) -> tuple[int, bytes]:
        status = {"kind": "Status", "code": code, "message": message}
        return code, json.dumps(status, separators=(",", ":")).encode()


class _Handler(BaseHTTPRequestHandler):
    server: ApiServer

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        passed = {name: value for name, value in self.headers.items() if name.lower().startswith(("x-", "content-t"))}
        status, answer = self.server.answer(self.command, self.path, passed, body)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def do_PUT(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def api_server(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """What the kubeconfig names."""
    world.begin()
    server = ApiServer(world)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    config: dict[str, Any] = {"clusters": [{"name": "c", "cluster": {"server": address}}], "current-context": "x"}
    config |= {"users": [{"name": "u", "user": {"token": "mine"}}]}
    config |= {"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]}
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
    yield server
    server.shutdown()
    serving.join()
    server.server_close()


def rljob(command: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["queue", command, "demo", "-n", "team-a", *arguments])


def test_a_job_is_found_by_its_name_and_its_coordinator_through_the_api_server(api_server: ApiServer) -> None:
    stats = rljob("stats", "--output", "json")
    assert (stats.exit_code, stats.stderr) == (0, "")
    assert json.loads(stats.stdout)["job"] == "test"
    assert rljob("check").stdout == "Holds: 0 partitions, every row where it should be.\n"
    drained = rljob("drain", "--output", "json")
    assert drained.stderr == ""
    assert [json.loads(line)["kind"] for line in drained.stdout.splitlines()] == ["drain", "result"]
    assert rljob("drain", "--off").stdout == "Tickets are given.\n"
    refused = rljob("peek", "training", "--limit", "3")
    assert (refused.exit_code, refused.stdout) == (EXIT_BAD_MANIFEST, "")
    assert refused.stderr.startswith("task: 'training' is no task of this job.")

    api_server.refuses = (403, 'services "demo-coordinator:8080" is forbidden')
    forbidden = rljob("stats")
    assert forbidden.exit_code == EXIT_FAILED
    assert forbidden.stderr.startswith('The API server refuses (403): services "demo-coordinator:8080" is forbidden.')
    assert "needs get (and for drain, update) on services/proxy" in forbidden.stderr
    api_server.refuses = (503, "no endpoints available")
    away = rljob("stats")
    assert away.exit_code == EXIT_FAILED
    assert away.stderr == "The coordinator of the RLJob demo does not answer (503: no endpoints available).\n"
