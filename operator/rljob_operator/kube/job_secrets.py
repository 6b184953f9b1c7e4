"""The Secret of a job: drawn and created once, read ever after, and never given another content.

Its token opens the coordinator. A copy of it under another name, and the operator's memory, are what it is made again
from where it was deleted. Secrets are not watched, since the operator may not list them: a census asks for the metadata
of each job's own by name.
"""

import asyncio
import base64
import binascii
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from rljob_api.cluster import LABEL_JOB, secret_copy_name, secret_name
from rljob_api.spec import RLJob
from rljob_operator.build import Owner, secret
from rljob_operator.build.mounted_objects import PASSWORD_KEY, TOKEN_KEY
from rljob_operator.kube.api import Api, Json
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.errors import ApiConflict, ApiNotFound, ApiRefused, ApiUnreachable
from rljob_operator.kube.kinds import SECRETS
from rljob_operator.kube.ownership import Foreign, ObjectHolder, foreign, holder
from rljob_operator.kube.views import JobKey, PodView, view_owned

DRAWN_BYTES = 32


COPY_AGAIN_SECONDS = 10.0
"""After a copy that could not be made: one of an earlier job is still there, or a quota refuses it."""


_log = logging.getLogger(__name__)


class Absent(Enum):
    """Why there is no token."""

    EARLIER_PODS = "earlier pods"
    """Something of an earlier job of the same name is still there."""
    LOST = "lost"
    """The Secret was deleted under the job's pods, and its content is unknown."""


@dataclass(frozen=True, slots=True)
class Held:
    """Content of the Secret."""

    token: str
    is_restored: bool = False
    """It was gone, and has been made again just now."""


@dataclass(frozen=True, slots=True)
class _Content:
    token: str
    password: str

    @classmethod
    def drawn(cls) -> "_Content":
        return cls(secrets.token_urlsafe(DRAWN_BYTES), secrets.token_urlsafe(DRAWN_BYTES))

    @classmethod
    def of(cls, found: Json) -> "_Content | None":
        """None: it is none that an operator has made."""
        try:
            token, password = (base64.b64decode(found["data"][name]).decode() for name in (TOKEN_KEY, PASSWORD_KEY))
        except (KeyError, TypeError, binascii.Error, UnicodeDecodeError):
            return None
        return cls(token, password)


class JobSecret:
    """The content of one job's."""

    def __init__(self, api: Api, cache: Cache, key: JobKey, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._cache = cache
        self._key = key
        self._clock = clock
        self._known: _Content | None = None
        self._uid = ""
        self._copy_due: float | None = None
        """When the copy is to be made once more; None: it is there."""

    async def of(
        self, job: RLJob, owner: Owner, pods: Sequence[PodView], *, has_begun: bool
    ) -> Held | Absent | Foreign:
        """The Secret's content, or a foreign Secret of its name.

        Where there is none yet, it is drawn as soon as no pod of an earlier one is there.

        As long as such a pod is on a node, the node's kubelet gives its (immutable) Secret to every pod that names it.
        """
        if self._known is not None and self._is_there():
            await self._copy(job, owner, self._known)
            return Held(self._known.token)
        found, copied = await self._read(secret_name(self._key.name)), await self._copied(owner)
        content = self._known or copied
        is_restored = found is None and content is not None
        if found is None and (content is not None or not pods):
            content = content or _Content.drawn()
            found = await self._create(job, owner, content)
        whose = _holder(found, self._key, owner)
        if isinstance(whose, Foreign):  # once it is gone, ours is made again
            return whose
        if found is None or whose is not ObjectHolder.JOB:
            self._known = None
            return Absent.LOST if has_begun and pods else Absent.EARLIER_PODS
        has = _Content.of(found)
        if has is None or has != (content or has):  # replaced by one that running pods do not have
            return Foreign(SECRETS.kind, secret_name(self._key.name))
        self._known, self._uid = has, found["metadata"]["uid"]
        self._cache.put_owned(self._key, view_owned(SECRETS.kind, found), quietly=True)
        self._copy_due = None if copied is not None else self._clock()
        await self._copy(job, owner, has)
        return Held(has.token, is_restored=is_restored)

    def _is_there(self) -> bool:
        """As of the last census."""
        view = self._cache.owned(self._key).get((SECRETS.kind, secret_name(self._key.name)))
        return view is not None and view.uid == self._uid

    async def _read(self, name: str) -> Json | None:
        try:
            return await self._api.get(SECRETS, self._key.namespace, name)
        except ApiNotFound:
            return None

    async def _create(self, job: RLJob, owner: Owner, content: _Content) -> Json | None:
        made = secret(job, owner, content.token, content.password)
        try:
            return await self._api.create(SECRETS, self._key.namespace, made)
        except ApiConflict:  # another replica was faster
            return await self._read(secret_name(self._key.name))

    async def _copied(self, owner: Owner) -> _Content | None:
        """Content of the copy, where it is this job's."""
        found = await self._read(secret_copy_name(self._key.name))
        if found is None or _holder(found, self._key, owner) is not ObjectHolder.JOB:
            return None
        return _Content.of(found)

    async def _copy(self, job: RLJob, owner: Owner, content: _Content) -> None:
        """Makes the copy where it is due. The job goes on without: then only this operator can restore its Secret."""
        if self._copy_due is None or self._clock() < self._copy_due:
            return
        made = secret(job, owner, content.token, content.password, secret_copy_name(self._key.name))
        try:
            await self._api.create(SECRETS, self._key.namespace, made)
        except ApiRefused as error:
            _log.info("%s: the copy of its Secret was not made: %s", self._key, error)
            self._copy_due = self._clock() + COPY_AGAIN_SECONDS
        else:
            self._copy_due = None


def _holder(found: Json | None, key: JobKey, owner: Owner) -> ObjectHolder | Foreign:
    """The owner of the Secret; PASSING too where there is none. The job's own is its own until it is gone."""
    if found is None:
        return ObjectHolder.PASSING
    view = view_owned(SECRETS.kind, found)
    if view.controller is not None and view.controller.uid == owner.uid:
        return ObjectHolder.JOB
    whose = holder(view, key, owner.uid)
    return foreign(view) if whose is ObjectHolder.OTHER else whose


PERIOD_SECONDS = 3.0
"""Between two questions for one Secret, where jobs are few."""


MOST_A_SECOND = 20
"""Questions: with more jobs than 60 the period is longer."""


class SecretCensus:
    """Finds Secrets that are gone, of jobs that have pods: a pod that starts needs it."""

    def __init__(self, api: Api, cache: Cache) -> None:
        self._api = api
        self._cache = cache

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            keys = [key for key in self._cache.jobs_known() if self._cache.pods(key)]
            pause = max(PERIOD_SECONDS / max(1, len(keys)), 1 / MOST_A_SECOND)
            for key in keys:
                try:
                    await self.look(key)
                except (ApiRefused, ApiUnreachable) as error:
                    _log.info("%s: its Secret was not asked for: %s", key, error)
                await asyncio.sleep(pause)
            if not keys:
                await asyncio.sleep(PERIOD_SECONDS)

    async def look(self, key: JobKey) -> None:
        """The cache has the Secret as it is now; one that is gone, or is another one, wakes its job."""
        name = secret_name(key.name)
        known = self._cache.owned(key).get((SECRETS.kind, name))
        if known is None:  # its next turn reads it
            return
        try:
            found = await self._api.get_metadata(SECRETS, key.namespace, name)
        except ApiNotFound:
            gone = {"namespace": key.namespace, "name": name, "uid": known.uid, "labels": {LABEL_JOB: key.name}}
            self._cache.drop(SECRETS.kind, {"metadata": {**gone, "resourceVersion": str(known.version)}})
        else:
            self._cache.put_owned(key, view_owned(SECRETS.kind, found))
