"""The Secret of a job: drawn and created once, read ever after, and never given another content.

Its content stays in memory: its token opens the coordinator. Secrets are not watched but polled now and then. One that
was deleted by hand is made again from memory; without that, as after a restart of the operator, it is lost as long as
pods run that have the old one.
"""

import base64
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from rljob_api.cluster import secret_name
from rljob_api.spec import RLJob
from rljob_operator.build import Owner, secret
from rljob_operator.build.mounted_objects import PASSWORD_KEY, TOKEN_KEY
from rljob_operator.kube.api import Api, Json
from rljob_operator.kube.errors import ApiConflict, ApiNotFound
from rljob_operator.kube.kinds import SECRETS
from rljob_operator.kube.ownership import Foreign, ObjectHolder, foreign, holder
from rljob_operator.kube.views import JobKey, PodView, view_owned

DRAWN_BYTES = 32


CHECK_SECONDS = 120.0
"""Between two checks whether the Secret is there."""


WAITING_SECONDS = 20.0
"""It is checked sooner for a pod made since that has not started for so long: without its Secret it never does."""


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


@dataclass(slots=True)
class _Known:
    token: str
    password: str
    seen_at: float


class JobSecret:
    """The content of one job's."""

    def __init__(self, api: Api, key: JobKey, clock: Callable[[], float] = time.time) -> None:
        self._api = api
        self._key = key
        self._clock = clock
        self._known: _Known | None = None

    async def of(
        self, job: RLJob, owner: Owner, pods: Sequence[PodView], *, has_begun: bool
    ) -> Held | Absent | Foreign:
        """The Secret's content, or a foreign Secret of its name.

        Where there is none yet, it is drawn as soon as no pod of an earlier one is there.

        As long as such a pod is on a node, the node's kubelet gives its (immutable) Secret to every pod that names it.
        """
        if self._known is not None:
            return await self._checked(job, owner, pods, self._known)
        found = await self._read()
        if found is None and not pods:
            token, password = secrets.token_urlsafe(DRAWN_BYTES), secrets.token_urlsafe(DRAWN_BYTES)
            found = await self._create(job, owner, token, password)
        whose = _holder(found, self._key, owner)
        if isinstance(whose, Foreign):
            return whose
        if found is None or whose is not ObjectHolder.JOB:
            return Absent.LOST if has_begun and pods else Absent.EARLIER_PODS
        token, password = (base64.b64decode(found["data"][name]).decode() for name in (TOKEN_KEY, PASSWORD_KEY))
        self._known = _Known(token, password, self._clock())
        return Held(token)

    async def _checked(
        self, job: RLJob, owner: Owner, pods: Sequence[PodView], known: _Known
    ) -> Held | Absent | Foreign:
        waiting = [pod.created_at for pod in pods if not pod.started and pod.created_at > known.seen_at]
        if self._clock() < min([known.seen_at + CHECK_SECONDS, *(at + WAITING_SECONDS for at in waiting)]):
            return Held(known.token)
        found = await self._read()
        is_gone = found is None
        if found is None:
            found = await self._create(job, owner, known.token, known.password)
        whose = _holder(found, self._key, owner)
        if isinstance(whose, Foreign):  # once it is gone, ours is made again
            return whose
        if found is None or whose is not ObjectHolder.JOB:
            self._known = None
            return Absent.LOST if pods else Absent.EARLIER_PODS
        known.seen_at = self._clock()
        return Held(known.token, is_restored=is_gone)

    async def _read(self) -> Json | None:
        try:
            return await self._api.get(SECRETS, self._key.namespace, secret_name(self._key.name))
        except ApiNotFound:
            return None

    async def _create(self, job: RLJob, owner: Owner, token: str, password: str) -> Json | None:
        try:
            return await self._api.create(SECRETS, self._key.namespace, secret(job, owner, token, password))
        except ApiConflict:  # another replica was faster
            return await self._read()


def _holder(found: Json | None, key: JobKey, owner: Owner) -> ObjectHolder | Foreign:
    """Whose it is; PASSING too where there is none."""
    if found is None:
        return ObjectHolder.PASSING
    view = view_owned(SECRETS.kind, found)
    whose = holder(view, key, owner.uid)
    return foreign(view) if whose is ObjectHolder.OTHER else whose
