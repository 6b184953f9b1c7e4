"""Whether the API server would ever take what a job's newest spec is made of: asked by a dry run before it is accepted.

A template may say much that only the API server can judge. Found out when the objects are written, it would be a job
that waits, and of a running one the pods would be gone. Called by the reconciler, once for each spec; a refusal is
asked for again, since a newer API server may know a field.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rljob_api.status import RLJobStatus
from rljob_operator.adapters.api import Api, Json
from rljob_operator.adapters.apply import WITH_PODS, Refusal
from rljob_operator.adapters.backoff import backoff_seconds
from rljob_operator.adapters.errors import ApiRefused
from rljob_operator.adapters.rehearsal import is_never_taken
from rljob_operator.adapters.resources import resource_of
from rljob_operator.adapters.views import JobKey
from rljob_operator.core.conditions import terminal

ASK_AGAIN_SECONDS = (10.0, 120.0)

_CURE = "Mend the template, or whatever field of the spec it comes from."


@dataclass(frozen=True, slots=True)
class _Asked:
    generation: int
    refused: tuple[str, ...]
    times: int
    until: float


class SpecRehearsal:
    """Of one job."""

    def __init__(self, api: Api, key: JobKey, clock: Callable[[], float] = time.time) -> None:
        self._api = api
        self._key = key
        self._clock = clock
        self._asked: _Asked | None = None

    async def refused(self, generation: int, wanted: Sequence[Json], status: RLJobStatus) -> tuple[str, ...]:
        """A sentence for each object that is never taken, in the API server's words."""
        if self._is_accepted(generation, status):
            self._asked = None
            return ()
        known = self._asked if self._asked is not None and self._asked.generation == generation else None
        if known is not None and (not known.refused or self._clock() < known.until):
            return known.refused
        with_pods = [each for each in wanted if each["kind"] in WITH_PODS]
        said = await asyncio.gather(*map(self._ask, with_pods))
        times = 1 + (known.times if known is not None else 0)
        until = self._clock() + backoff_seconds(times, *ASK_AGAIN_SECONDS)
        self._asked = _Asked(generation, tuple(filter(None, said)), times, until)
        return self._asked.refused

    @property
    def look_again_at(self) -> float | None:
        """When to ask again for what was refused."""
        return self._asked.until if self._asked is not None and self._asked.refused else None

    def _is_accepted(self, generation: int, status: RLJobStatus) -> bool:
        """A job that has begun without that note was begun by release 0.1.0: what it is made of was taken."""
        has_begun = status.restart.epoch > 0
        accepted = status.accepted.generation >= generation if status.accepted is not None else has_begun
        return accepted or terminal(status) is not None

    async def _ask(self, manifest: Json) -> str:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        try:
            await self._api.rehearse(resource_of(kind), self._key.namespace, manifest)
        except ApiRefused as error:
            return f"{str(Refusal(kind, name, error)).rstrip('.')}. {_CURE}" if is_never_taken(error) else ""
        return ""
