"""kopf's part: startup, login, and the watch of RLJobs. Its events go into the cache, and nothing else happens here.

No timers, daemons, finalizers, annotations or events of kopf's own: each of those writes to every job. Handlers that
touch the cache are coroutines: others would be run in a thread beside the loop that reads it.
"""

import os
from typing import Any

import kopf

from rljob_api.cluster import API_GROUP
from rljob_operator.adapters.cache import Cache
from rljob_operator.adapters.informer import PAGE, SERVER_SECONDS, SILENCE_SECONDS


class _NoDifferences(kopf.DiffBaseStorage):
    """What changed in an object is not asked of kopf: by default it copies each whole object twice to find out."""

    def build(self, **_: object) -> kopf.BodyEssence:
        """Nothing that could differ."""
        return kopf.BodyEssence()

    def fetch(self, **_: object) -> kopf.BodyEssence | None:
        """Nothing was remembered."""
        return None

    def store(self, **_: object) -> None:
        """Nothing is remembered."""


def registry(cache: Cache) -> kopf.OperatorRegistry:
    """What kopf shall call."""
    made = kopf.OperatorRegistry()

    @kopf.on.startup(registry=made)
    async def configure(settings: kopf.OperatorSettings, **_: object) -> None:
        settings.persistence.diffbase_storage = _NoDifferences()
        settings.posting.enabled = False
        settings.scanning.disabled = True
        settings.peering.standalone = True
        settings.watching.inactivity_timeout = SILENCE_SECONDS
        settings.watching.server_timeout = SERVER_SECONDS
        settings.watching.chunk_size = PAGE

    @kopf.on.login(registry=made)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:  # noqa: ANN401 - kopf's own
        if in_cluster():
            return kopf.login_with_service_account(**kwargs)
        return kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.event(API_GROUP, "v1alpha1", "rljobs", registry=made)
    async def see(event: kopf.RawEvent, **_: object) -> None:
        raw: dict[str, Any] = dict(event["object"])
        if event["type"] == "DELETED":
            cache.bury(raw["metadata"]["uid"])
            cache.drop_job(raw)
        else:
            cache.put_job(raw)

    return made


def in_cluster() -> bool:
    """Whether the process is a pod's, with a service account; a KUBECONFIG that was given goes first."""
    return "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ
