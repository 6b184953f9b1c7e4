"""Objects as the API server has them, over one connection that is kept: for tests, which look again and again.

A kubectl that starts takes a tenth of a second of a processor, and each wait of each test would start three a second.
Called by `Kubectl` alone. Kinds are spelled as kubectl takes them: plural, singular, short, or with their group.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from kubernetes import client, config
from urllib3.exceptions import HTTPError

Object = dict[str, Any]
_SECONDS = 120
_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


class ReadFailed(Exception):
    """The API server refused, did not answer, or has no such kind; its message says which."""


@dataclass(frozen=True)
class _Resource:
    """A kind of objects that the API server has."""

    group: str
    version: str
    plural: str
    kind: str
    is_namespaced: bool

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str) -> str:
        """Of its objects in a namespace, or of all where they are in none."""
        return "/".join(
            [
                "/apis" if self.group else "/api",
                self.api_version,
                *(["namespaces", namespace] if self.is_namespaced else []),
                self.plural,
            ]
        )


class Reader:
    """One cluster, as a kubeconfig reaches it."""

    def __init__(self, kubeconfig: str) -> None:
        self._client = config.new_client_from_config(kubeconfig)  # type: ignore[no-untyped-call]
        self._kinds: dict[str, _Resource] = {}

    def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """The object, or None if there is none."""
        return self._ask(f"{self._resource(kind).path(namespace)}/{name}")

    def all(self, kinds: str, namespace: str, selector: str) -> list[Object]:
        """The objects of these kinds, separated by commas, which a label selector picks."""
        return [found for kind in kinds.split(",") for found in self._list(self._resource(kind), namespace, selector)]

    def _list(self, resource: _Resource, namespace: str, selector: str) -> Iterator[Object]:
        found = self._ask(resource.path(namespace), labelSelector=selector)
        for item in (found or {}).get("items", []):  # which say of themselves what they are only one by one
            yield {"apiVersion": resource.api_version, "kind": resource.kind, **item}

    def _resource(self, kind: str) -> _Resource:
        kind = kind.lower()
        if kind not in self._kinds:
            self._kinds = self._discovered()  # perhaps a definition has come since
        if kind not in self._kinds:
            raise ReadFailed(f"the API server has no kind {kind}")
        return self._kinds[kind]

    def _discovered(self) -> dict[str, _Resource]:
        """By every name; where two have one name, the first counts, as with kubectl: the core's before others."""
        named: dict[str, _Resource] = {}
        for root in ("/api", "/apis"):
            for group in (self._ask(root, accept=_DISCOVERY) or {})["items"]:
                name, version = group["metadata"].get("name", ""), group["versions"][0]
                for reported in version["resources"]:
                    resource = _Resource(
                        name,
                        version["version"],
                        reported["resource"],
                        reported["responseKind"]["kind"],
                        reported["scope"] == "Namespaced",
                    )
                    for text in (
                        reported["resource"],
                        reported.get("singularResource"),
                        *reported.get("shortNames", []),
                    ):
                        if text:
                            named.setdefault(text, resource)
                            named.setdefault(f"{text}.{name}", resource)
        return named

    def _ask(self, path: str, *, accept: str = "application/json", **query: str) -> Object | None:
        """The answer, None where nothing is found."""
        request = self._client.param_serialize(
            "GET",
            path,
            query_params=[(name, value) for name, value in query.items() if value],
            header_params={"Accept": accept},
            auth_settings=["BearerToken"],
        )
        try:
            answer = self._client.call_api(*request, _request_timeout=_SECONDS)
            answer.read()
        except (HTTPError, client.ApiException) as error:
            raise ReadFailed(f"GET {path}: {error}") from error
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise ReadFailed(f"GET {path}: {answer.status} {answer.data.decode(errors='replace')}")
        found: Object = json.loads(answer.data)
        return found


@cache
def reader(kubeconfig: str) -> Reader:
    """One for each cluster in this process."""
    return Reader(kubeconfig)
