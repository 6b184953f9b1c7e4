"""The client of a running job's coordinator: found by its run folder on this machine, by its name on a cluster.

Used by `rljob queue` and `rljob logs`. Says in a sentence why there is no answer; decides nothing.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import httpx
from pydantic import ValidationError

from rljob_api.base import ApiModel
from rljob_api.cluster import COORDINATOR_PORT, coordinator_name, secret_name
from rljob_api.names import EXIT_BAD_MANIFEST, EXIT_FAILED
from rljob_api.status import Phase
from rljob_api.wire.identity import Endpoints

if TYPE_CHECKING:
    from rljob_cli.jobs.cluster import Cluster


ANSWER_SECONDS = 20.0
"""A proof of a large queue takes a second; a control Redis that is being restarted, a few."""


_TOKEN = "X-RLJob-Token"  # noqa: S105 - the name of a header


_BAD = (400, 404, 422)


A = TypeVar("A", bound=ApiModel)


class QueueProblem(Exception):
    """Why a command cannot do what it was asked for, and its exit code."""

    def __init__(self, sentence: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


class NoAnswer(QueueProblem):
    """There was none this time: the coordinator is restarted, or the job has ended."""


class CoordinatorApi(ABC):
    """One job's."""

    def ask(self, kind: type[A], path: str, query: Mapping[str, str | int] | None = None) -> A:
        """A question and its typed answer."""
        asked = {name: str(value) for name, value in (query or {}).items()}
        return self._understood(kind, path, self._send("GET", path, asked, None))

    def order(self, kind: type[A], path: str, body: ApiModel) -> A:
        """Sends an order, and reads its typed answer. An order is idempotent."""
        return self._understood(kind, path, self._send("PUT", path, {}, body))

    def _understood(self, kind: type[A], path: str, reply: tuple[int, bytes]) -> A:
        status, answer = reply
        if status >= 400:
            raise _refused(status, answer)
        try:
            return kind.model_validate_json(answer)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise QueueProblem(
                f"The coordinator's answer to {path} is not understood ({where}: {first['msg']}): it is of another"
                " version of rljob. Use the rljob of its image."
            ) from error

    @abstractmethod
    def has_ended(self) -> bool:
        """Whether it is known that the job runs no more."""

    @abstractmethod
    def close(self) -> None:
        """Ends its connections."""

    @abstractmethod
    def _send(self, method: str, path: str, query: Mapping[str, str], body: ApiModel | None) -> tuple[int, bytes]:
        """Status and body of an answer of the coordinator; raises NoAnswer."""


class LocalCoordinator(CoordinatorApi):
    """The coordinator of a run on this machine."""

    def __init__(self, folder: Path, endpoints: Endpoints) -> None:
        self._folder = folder
        # Environment proxies are not asked: the coordinator is on this machine.
        headers = {_TOKEN: endpoints.token}
        self._http = httpx.Client(
            base_url=endpoints.coordinator, headers=headers, trust_env=False, timeout=ANSWER_SECONDS
        )

    def has_ended(self) -> bool:
        """A run removes its endpoints at its end."""
        return not _endpoints_file(self._folder).exists()

    def close(self) -> None:
        """The one to the coordinator."""
        self._http.close()

    def _send(self, method: str, path: str, query: Mapping[str, str], body: ApiModel | None) -> tuple[int, bytes]:
        content = None if body is None else body.model_dump_json()
        headers = {"Content-Type": "application/json"} if body is not None else {}
        try:
            answer = self._http.request(method, path, params=query, content=content, headers=headers)
        except httpx.TransportError as error:
            raise NoAnswer(
                f"The coordinator of the run in {self._folder} does not answer ({error}). See whether `rljob run` still"
                " runs there."
            ) from error
        return answer.status_code, answer.content


class ClusterCoordinator(CoordinatorApi):
    """The coordinator of a job on a cluster, through the API server's proxy, the only way in from outside."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self._token = cluster.secret(secret_name(name), "token")

    def has_ended(self) -> bool:
        """Its phase says so, or it is not there any more."""
        from rljob_cli.jobs.cluster import ClusterProblem, Unreachable

        try:
            phase = self._cluster.job(self._name).get("status", {}).get("phase")
        except Unreachable:
            return False
        except ClusterProblem:
            return True
        return phase in (Phase.SUCCEEDED, Phase.FAILED, Phase.SUSPENDED, Phase.DELETING)

    def close(self) -> None:
        """Ends connections to the API server."""
        self._cluster.close()

    def _send(self, method: str, path: str, query: Mapping[str, str], body: ApiModel | None) -> tuple[int, bytes]:
        from rljob_cli.jobs.cluster import ClusterProblem, Unreachable

        service = f"{coordinator_name(self._name)}:{COORDINATOR_PORT}"
        content = None if body is None else body.model_dump(mode="json")
        try:
            status, answer = self._cluster.proxy(service, method, path, query, {_TOKEN: self._token}, content)
        except Unreachable as error:
            raise NoAnswer(str(error)) from error
        except ClusterProblem as problem:
            raise QueueProblem(str(problem)) from problem
        if b'"kind":"Status"' in answer:
            sentence = _message(answer)
            if status in (401, 403):
                raise QueueProblem(
                    f"The API server refuses ({status}): {sentence}. `rljob queue` needs get (and for drain, update) on"
                    " services/proxy in the job's namespace."
                )
            raise NoAnswer(f"The coordinator of the RLJob {self._name} does not answer ({status}: {sentence}).")
        return status, answer


def coordinator_of(job: str, namespace: str | None) -> CoordinatorApi:
    """A folder is that of a run on this machine; anything else, or anything with a namespace, is a name."""
    folder = Path(job)
    if namespace is None and folder.is_dir():
        return _local(folder)
    if "/" in job or job in (".", ".."):
        raise QueueProblem(
            f"{job} is not a folder. Give the folder of a run (its --out, by default rljob-out/NAME), or the name of an"
            " RLJob on a cluster.",
            EXIT_BAD_MANIFEST,
        )
    from rljob_cli.jobs.cluster import Cluster, ClusterProblem

    try:
        cluster = Cluster.connect(namespace)
        cluster.job(job)
        return ClusterCoordinator(cluster, job)
    except ClusterProblem as problem:
        raise QueueProblem(f"{job} is no folder here, so it is taken for a name. {problem}") from None


def _local(folder: Path) -> LocalCoordinator:
    file = _endpoints_file(folder)
    if not (folder / "job.json").exists():
        raise QueueProblem(
            f"{folder} is not the folder of a run: it has no job.json. Give the --out of a run.", EXIT_BAD_MANIFEST
        )
    try:
        return LocalCoordinator(folder, Endpoints.model_validate_json(file.read_bytes()))
    except FileNotFoundError:
        raise QueueProblem(
            f"Nothing runs in {folder}: a run has its endpoints.json there from its start to its end. Start it with"
            " rljob run.",
            EXIT_BAD_MANIFEST,
        ) from None
    except (OSError, ValidationError) as error:
        raise QueueProblem(
            f"{file} cannot be read ({type(error).__name__}). It is written by `rljob run` for its user alone; ask as"
            " that user.",
            EXIT_BAD_MANIFEST,
        ) from None


def _endpoints_file(folder: Path) -> Path:
    return folder / "endpoints.json"


def _refused(status: int, answer: bytes) -> QueueProblem:
    sentence = _message(answer)
    if status in _BAD:
        return QueueProblem(sentence, EXIT_BAD_MANIFEST)
    if status == 503:
        return NoAnswer(sentence)
    return QueueProblem(f"The coordinator refuses ({status}): {sentence}")


def _message(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["message"])
    except (ValueError, KeyError, TypeError):
        return answer[:200].decode(errors="replace")
