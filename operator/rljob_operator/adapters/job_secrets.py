"""The Secret of a job: drawn and created once, read ever after, never written again.

What is in it is kept in memory, by job: its token opens the coordinator. Nobody watches secrets.
"""

import base64
import secrets

from rljob_api.cluster import secret_name
from rljob_api.spec import RLJob
from rljob_operator.adapters.api import Api, Json
from rljob_operator.adapters.errors import ApiConflict, ApiNotFound
from rljob_operator.adapters.resources import SECRETS
from rljob_operator.adapters.views import JobKey, view_owned
from rljob_operator.build import Owner, secret

DRAWN_BYTES = 32


class JobSecrets:
    """Tokens by job."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._tokens: dict[JobKey, tuple[str, str]] = {}

    def forget(self, key: JobKey) -> None:
        """The job is gone."""
        self._tokens.pop(key, None)

    async def token(self, key: JobKey, job: RLJob, owner: Owner, *, is_clear: bool) -> str | None:
        """The job's token; None while the Secret of an earlier job of the same name is still there.

        Where it is not `is_clear`, none is drawn: as long as a pod of the earlier job is on a node, the node's kubelet
        gives its (immutable) Secret to every pod that names it.
        """
        name = secret_name(key.name)
        known = self._tokens.get(key)
        if known is not None and known[0] == owner.uid:
            return known[1]
        found = await self._read(key, name)
        if found is None and is_clear:
            found = await self._create(key, name, job, owner)
        if found is None:
            return None
        view = view_owned(SECRETS.kind, found)
        if view.deleting or view.owner_uid != owner.uid:
            return None
        token = base64.b64decode(found["data"]["token"]).decode()
        self._tokens[key] = (owner.uid, token)
        return token

    async def _read(self, key: JobKey, name: str) -> Json | None:
        try:
            return await self._api.get(SECRETS, key.namespace, name)
        except ApiNotFound:
            return None

    async def _create(self, key: JobKey, name: str, job: RLJob, owner: Owner) -> Json | None:
        drawn = secret(job, owner, secrets.token_urlsafe(DRAWN_BYTES), secrets.token_urlsafe(DRAWN_BYTES))
        try:
            return await self._api.create(SECRETS, key.namespace, drawn)
        except ApiConflict:  # another replica was faster
            return await self._read(key, name)
