"""Refused before: objects of a job that the API server did not take, and when it is asked for them again.

A job has several turns in a second while its pods come and go. A quota would be asked in each of them, and so would
every webhook on the way, though hardly anything has changed.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rljob_api.cluster import ANNOTATION_APPLIED
from rljob_operator.adapters.api import Json
from rljob_operator.adapters.backoff import backoff_seconds
from rljob_operator.adapters.errors import ApiRefused

ASK_AGAIN_SECONDS = (1.0, 8.0)
"""Less than after what a job with a refused object is looked at anyway."""


@dataclass(frozen=True, slots=True)
class _Refused:
    digest: str
    error: ApiRefused
    times: int
    until: float


@dataclass(slots=True)
class RefusedBefore:
    """Of one job. What is wanted of an object now is another object than what was refused."""

    clock: Callable[[], float] = time.monotonic
    _known: dict[tuple[str, str], _Refused] = field(default_factory=dict)

    def answer(self, manifest: Json) -> ApiRefused | None:
        """What the API server said to just this, if it is too early to ask again."""
        known = self._of(manifest)
        return known.error if known is not None and self.clock() < known.until else None

    def note(self, manifest: Json, error: ApiRefused) -> None:
        """It was refused now."""
        known = self._of(manifest)
        times = 1 + (known.times if known is not None else 0)
        until = self.clock() + backoff_seconds(times, *ASK_AGAIN_SECONDS)
        self._known[_name(manifest)] = _Refused(_digest(manifest), error, times, until)

    def forget(self, manifest: Json) -> None:
        """It was taken."""
        self._known.pop(_name(manifest), None)

    def _of(self, manifest: Json) -> _Refused | None:
        known = self._known.get(_name(manifest))
        return known if known is not None and known.digest == _digest(manifest) else None


def _name(manifest: Json) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def _digest(manifest: Json) -> str:
    digest: str = manifest["metadata"]["annotations"][ANNOTATION_APPLIED]
    return digest
