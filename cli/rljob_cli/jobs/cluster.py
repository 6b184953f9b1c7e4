"""RLJobs on a cluster, as commands see them: reads one, changes one, and says in a sentence why that failed.

Used by the commands that need a cluster. The package kubernetes is imported when a cluster is asked: nothing else waits
for it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from rljob_api.cluster import API_GROUP, API_VERSION, RLJOB_PLURAL
from rljob_api.names import EXIT_FAILED

if TYPE_CHECKING:
    from kubernetes.client import CustomObjectsApi


_SECONDS = 10
"""Longest time for one answer of the API server."""


_FIELD_MANAGER = "rljob"


class ClusterProblem(Exception):
    """The cluster does not let a command do something; the message is a sentence."""


class Unreachable(ClusterProblem):
    """The API server did not answer: it may the next time."""


class NoSuchJob(ClusterProblem):
    """There is no RLJob of that name."""


class Cluster:
    """The RLJobs of one namespace, by the user's own kubeconfig."""

    def __init__(self, api: CustomObjectsApi, namespace: str) -> None:
        self.namespace = namespace
        self._api = api

    @classmethod
    def connect(cls, namespace: str | None) -> Cluster:
        """Connects by `KUBECONFIG` or ~/.kube/config, as kubectl; the namespace None is the current context's."""
        try:
            from kubernetes import client, config
        except ImportError:
            raise ClusterProblem(
                "This command needs the package kubernetes, which is not installed: it comes with the extra operator."
                " Install it: pip install 'rljob[operator]'."
            ) from None
        try:
            _, context = config.list_kube_config_contexts()  # type: ignore[no-untyped-call]
            config.load_kube_config()  # type: ignore[no-untyped-call]
        except (config.ConfigException, OSError) as error:
            raise ClusterProblem(
                f"There is no cluster to ask: {str(error).rstrip('.')}. Set KUBECONFIG to a file that kubectl can use."
            ) from None
        chosen = namespace or context.get("context", {}).get("namespace") or "default"
        return cls(client.CustomObjectsApi(), chosen)

    def close(self) -> None:
        """Ends the connections; nothing is asked any more."""
        self._api.api_client.rest_client.pool_manager.clear()

    def job(self, name: str) -> dict[str, Any]:
        """The RLJob of that name, as the API server has it."""
        return dict(self._ask(name, self._api.get_namespaced_custom_object))

    def change(self, name: str, patch: dict[str, Any]) -> None:
        """Merges `patch` into the RLJob. Nothing is sent twice: a lost answer raises Unreachable."""
        self._ask(name, self._api.patch_namespaced_custom_object, body=patch, field_manager=_FIELD_MANAGER)

    def secret(self, name: str, key: str) -> str:
        """A value of a Secret."""
        from kubernetes import client

        core = client.CoreV1Api(self._api.api_client)
        found = self.called(f"the Secret {name}", lambda: core.read_namespaced_secret(name, self.namespace))
        try:
            return base64.b64decode((found.data or {})[key]).decode()
        except (KeyError, ValueError):
            raise ClusterProblem(f"The Secret {name} in the namespace {self.namespace} has no {key}.") from None

    def claim(self, name: str) -> dict[str, Any] | None:
        """A PersistentVolumeClaim; None where there is none, or nothing that this user may read."""
        from kubernetes import client
        from kubernetes.client import ApiException

        core = client.CoreV1Api(self._api.api_client)

        def read() -> dict[str, Any] | None:
            try:
                answer = core.read_namespaced_persistent_volume_claim(
                    name, self.namespace, _preload_content=False, _request_timeout=_SECONDS
                )
            except ApiException as error:
                if error.status in (403, 404):
                    return None
                raise
            found: dict[str, Any] = json.loads(answer.data)  # type: ignore[attr-defined]
            return found

        found: dict[str, Any] | None = self.called(f"the claim {name}", read)
        return found

    def proxy(
        self,
        service: str,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: object | None,
    ) -> tuple[int, bytes]:
        """Status and body of what a Service of the namespace (`name:port`) answers through the API server."""
        api = self._api.api_client
        where = f"/api/v1/namespaces/{self.namespace}/services/{service}/proxy{path}"
        request = api.param_serialize(
            method,
            where,
            query_params=list(query.items()),
            header_params={"Accept": "application/json", "Content-Type": "application/json", **headers},
            body=body,
            auth_settings=["BearerToken"],
        )
        answer = self.called(f"the Service {service}", lambda: api.call_api(*request, _request_timeout=_SECONDS))
        return answer.status, answer.read()

    @property
    def client(self) -> Any:  # noqa: ANN401 - a client without types
        """Makes the other APIs of the client; their calls go through `called`."""
        return self._api.api_client

    def called(self, what: str, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - a client without types
        """The answer of a call about `what`; raises ClusterProblem with a sentence."""
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            return call()
        except ApiException as error:
            problem = f"The API server refuses ({error.status}) {what}: {_message(error.body)}"
            raise (Unreachable if (error.status or 0) >= 500 else ClusterProblem)(problem) from error
        except (HTTPError, OSError) as error:
            raise Unreachable(
                f"The API server does not answer about {what} ({type(error).__name__}). See whether kubectl reaches it."
            ) from error

    def _ask(self, name: str, call: Any, **arguments: object) -> Any:  # noqa: ANN401 - a client without types
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            return call(
                API_GROUP, API_VERSION, self.namespace, RLJOB_PLURAL, name, _request_timeout=_SECONDS, **arguments
            )
        except ApiException as error:
            raise self._problem(name, error.status, _message(error.body)) from error
        except (HTTPError, OSError) as error:
            raise Unreachable(
                f"The API server does not answer about the RLJob {name} ({type(error).__name__}). See whether kubectl"
                " reaches it."
            ) from error

    def _problem(self, name: str, status: int | None, message: str) -> ClusterProblem:
        if status == 404 and f'"{name}"' in message:
            return NoSuchJob(
                f"There is no RLJob {name} in the namespace {self.namespace}. `kubectl get rljobs -A` lists all."
            )
        if status == 404:
            return ClusterProblem(
                "The cluster does not know RLJobs. Install them: rljob crd | kubectl apply --server-side -f -"
            )
        problem = f"The API server refuses ({status}) the RLJob {name}: {message}"
        return Unreachable(problem) if status == 429 or (status or 0) >= 500 else ClusterProblem(problem)


def give_up(problem: ClusterProblem) -> click.exceptions.Exit:
    """Prints the sentence; raise what this returns."""
    click.echo(str(problem), err=True)
    return click.exceptions.Exit(EXIT_FAILED)


def _message(body: object) -> str:
    """The message of a Status object; the body as it is where it is none."""
    try:
        return str(json.loads(str(body))["message"])
    except (ValueError, KeyError, TypeError):
        return str(body)
