"""Platform: which APIs beyond Kubernetes' own the cluster has. The process looks it up at its start and while it runs.

The watches follow from it. Where a job is refused for an API that is missing, and somebody installs its CRD, the
process begins anew, and takes the job.
"""

import asyncio
import logging
from collections.abc import Iterator
from http import HTTPStatus

from rljob_operator.adapters.api import Api
from rljob_operator.adapters.errors import ApiRefused, ApiUnreachable
from rljob_operator.adapters.resources import OWNED, POD_GROUPS, POD_MONITORS, Resource
from rljob_operator.build import Platform

ASK_AGAIN_SECONDS = 1.0
"""Before an API server that gave no answer is asked again what it has."""

LOOK_SECONDS = 10.0
"""How often it is looked whether the cluster has what a job was refused for."""

_log = logging.getLogger(__name__)


async def platform_of(api: Api) -> Platform:
    """What the cluster has, once it says so."""
    while True:
        try:
            return await _asked(api)
        except (ApiRefused, ApiUnreachable) as error:
            if isinstance(error, ApiRefused) and error.status < 500 and error.status != HTTPStatus.TOO_MANY_REQUESTS:
                raise
            _log.warning("cannot begin yet: %s; asked again in %g s", error, ASK_AGAIN_SECONDS)
            await asyncio.sleep(ASK_AGAIN_SECONDS)


async def until_another(api: Api, known: Platform, missed: asyncio.Event) -> None:
    """Returns when the cluster has something else than `known`, once a job has `missed` something.

    Nobody else has to bear that the process begins anew. A cluster that gives no answer is asked again.
    """
    await missed.wait()
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            if await _asked(api) != known:
                return
        except (ApiRefused, ApiUnreachable) as error:
            _log.debug("what the cluster has was not answered: %s", error)


def owned_kinds(platform: Platform) -> Iterator[Resource]:
    """What a job may be made of on this cluster."""
    missing = {POD_MONITORS: not platform.pod_monitors, POD_GROUPS: not platform.pod_groups}
    return (owned for owned in OWNED if not missing.get(owned, False))


async def _asked(api: Api) -> Platform:
    return Platform(pod_monitors=await api.serves(POD_MONITORS), pod_groups=await api.serves(POD_GROUPS))
