"""What this cluster serves and accepts: its optional APIs, and dry runs of the manifests before they are used.

The process rehearses the administrator's options before it becomes ready; the reconciler rehearses each new spec
before it accepts it. A refusal by a webhook or quota is not a refusal by the API server and is ignored.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from rljob_api.spec import RLJob
from rljob_api.status import RLJobStatus
from rljob_operator.build import Owner, Platform, manifests
from rljob_operator.core.conditions import terminal
from rljob_operator.kube.api import Api, Json
from rljob_operator.kube.apply import Refusal
from rljob_operator.kube.errors import ApiRefused, ApiUnreachable
from rljob_operator.kube.kinds import (
    CLAIM_TEMPLATES,
    OWNED,
    POD_GROUPS,
    POD_MONITORS,
    RLJOBS,
    WORKLOADS,
    Resource,
    resource_of,
)
from rljob_operator.kube.views import JobKey
from rljob_operator.options import OperatorOptions, OptionsRefused
from rljob_operator.rate_limit import backoff_seconds

PLATFORM_RETRY_SECONDS = 1.0
"""Before an API server that gave no answer is asked again what it has."""


RETRY_SECONDS = 10.0
"""How often the cluster is polled for what a job was refused for."""


_log = logging.getLogger(__name__)


async def platform_of(api: Api, options: OperatorOptions) -> Platform:
    """The APIs that the cluster has and the options let jobs use; asked again until it answers."""
    while True:
        try:
            return await _served_platform(api, options)
        except (ApiRefused, ApiUnreachable) as error:
            if isinstance(error, ApiRefused) and error.status < 500 and error.status != HTTPStatus.TOO_MANY_REQUESTS:
                raise
            _log.warning("cannot begin yet: %s; asked again in %g s", error, PLATFORM_RETRY_SECONDS)
            await asyncio.sleep(PLATFORM_RETRY_SECONDS)


async def until_another(api: Api, options: OperatorOptions, known: Platform, missed: asyncio.Event) -> None:
    """Returns when the cluster has something else than `known`, once a job has `missed` something.

    Only such a job needs the process to start again. A cluster that gives no answer is asked again.
    """
    await missed.wait()
    while True:
        await asyncio.sleep(RETRY_SECONDS)
        try:
            if await _served_platform(api, options) != known:
                return
        except (ApiRefused, ApiUnreachable) as error:
            _log.debug("what the cluster has was not answered: %s", error)


def owned_kinds(platform: Platform) -> Iterator[Resource]:
    """What a job may be made of on this cluster."""
    missing = {
        POD_MONITORS: not platform.pod_monitors,
        POD_GROUPS: not platform.pod_groups,
        CLAIM_TEMPLATES: not platform.device_claims,
        WORKLOADS: not platform.workloads,
    }
    return (owned for owned in OWNED if not missing.get(owned, False))


async def _served_platform(api: Api, options: OperatorOptions) -> Platform:
    return Platform(
        pod_monitors=await api.serves(POD_MONITORS),
        pod_groups=await api.serves(POD_GROUPS),
        device_claims=await api.serves(CLAIM_TEMPLATES),
        # Else the operator has no right to them, and would ask for ever.
        workloads=options.kueue.enabled and await api.serves(WORKLOADS),
    )


REHEARSAL_RETRY_SECONDS = 1.0


_NAME = "rljob-options-rehearsal"


_MADE_OF_OPTIONS = ("Deployment", "StatefulSet", "NetworkPolicy", "PodMonitor")


_WRONG = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY)
"""It is not understood, too large, or not valid."""


_OF_OTHERS = ("admission webhook", "ValidatingAdmissionPolicy", "MutatingAdmissionPolicy")


async def rehearse(api: Api, options: OperatorOptions, platform: Platform, namespace: str) -> None:
    """Raises OptionsRefused. `namespace` is one in which the operator may make objects."""
    owner = Owner(namespace=namespace, uid="00000000-0000-0000-0000-000000000000")
    made = manifests(_job(namespace), owner, RLJobStatus(), options, platform)
    refused = [
        sentence for each in made if each["kind"] in _MADE_OF_OPTIONS and (sentence := await _refused_by_api(api, each))
    ]
    if refused:
        raise OptionsRefused("\n".join(dict.fromkeys(refused)))


async def _own_refusal(api: Api, namespace: str, manifest: Json) -> ApiRefused | None:
    """Why the API server itself never takes the object; refusals of webhooks and policies come and go."""
    try:
        await api.rehearse(resource_of(manifest["kind"]), namespace, manifest)
    except ApiRefused as error:
        return error if error.status in _WRONG and not any(each in error.message for each in _OF_OTHERS) else None
    return None


async def _refused_by_api(api: Api, manifest: Json) -> str | None:
    """What is wrong with an object, as the API server reports it."""
    kind, name, namespace = manifest["kind"], manifest["metadata"]["name"], manifest["metadata"]["namespace"]
    while True:
        try:
            error = await _own_refusal(api, namespace, manifest)
        except ApiUnreachable as unreachable:
            _log.warning("cannot begin yet: %s; asked again in %g s", unreachable, REHEARSAL_RETRY_SECONDS)
            await asyncio.sleep(REHEARSAL_RETRY_SECONDS)
            continue
        if error is None:
            return None
        part, refusal = name.removeprefix(f"{_NAME}-"), " ".join(error.message.split()).rstrip(".")
        return f"workloads: the API server refuses the {kind} {part} that is made by them: {refusal}. Mend the option."


def _job(namespace: str) -> RLJob:
    """One with every kind of object."""
    document: Json = {
        "apiVersion": RLJOBS.api_version,
        "kind": RLJOBS.kind,
        "metadata": {"name": _NAME, "namespace": namespace},
        "spec": {
            "model": {"config": {}},
            "data": {"prompts": "data/prompts.jsonl"},
            "rollout": {"numRollouts": 1, "batchSize": 1, "samplesPerPrompt": 2, "reward": {"characterMatch": {}}},
            "training": {"globalBatchSize": 2, "microBatchSize": 2, "optimizer": {"learningRate": 1e-3}},
        },
    }
    return RLJob.model_validate(document)


SPEC_RETRY_SECONDS = (10.0, 120.0)


_CURE = "Mend the template, or whatever field of the spec it comes from."


@dataclass(frozen=True, slots=True)
class _Rehearsed:
    generation: int
    refused: tuple[str, ...]
    times: int
    until: float


class SpecRehearsal:
    """Of one job."""

    def __init__(self, api: Api, key: JobKey, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._key = key
        self._clock = clock
        self._asked: _Rehearsed | None = None

    async def refused(self, generation: int, wanted: Sequence[Json], status: RLJobStatus) -> tuple[str, ...]:
        """A sentence for each object that is never taken, as the API server reports it."""
        if self._is_accepted(generation, status):
            self._asked = None
            return ()
        known = self._asked if self._asked is not None and self._asked.generation == generation else None
        if known is not None and (not known.refused or self._clock() < known.until):
            return known.refused
        sentences = await asyncio.gather(*map(self._ask, wanted))
        times = 1 + (known.times if known is not None else 0)
        until = self._clock() + backoff_seconds(times, *SPEC_RETRY_SECONDS)
        self._asked = _Rehearsed(generation, tuple(filter(None, sentences)), times, until)
        return self._asked.refused

    @property
    def due_in(self) -> float | None:
        """In how many seconds to ask again for what was refused."""
        return self._asked.until - self._clock() if self._asked is not None and self._asked.refused else None

    def _is_accepted(self, generation: int, status: RLJobStatus) -> bool:
        accepted = status.accepted is not None and status.accepted.generation >= generation
        return accepted or terminal(status) is not None

    async def _ask(self, manifest: Json) -> str:
        error = await _own_refusal(self._api, self._key.namespace, manifest)
        if error is None:
            return ""
        return f"{str(Refusal(manifest['kind'], manifest['metadata']['name'], error)).rstrip('.')}. {_CURE}"
