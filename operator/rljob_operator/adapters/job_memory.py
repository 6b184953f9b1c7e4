"""The memory of a job: all that the operator keeps of it between turns. Lost with the operator, and with the job.

Owned by the reconciler, one for each job of a uid. Nothing in it is a fact that anything depends on: what has to
outlive the operator is in the job's status.
"""

import asyncio
from dataclasses import dataclass, field

from rljob_operator.adapters.accept import Accepted
from rljob_operator.adapters.actions import Actions
from rljob_operator.adapters.api import Api
from rljob_operator.adapters.cache import Cache
from rljob_operator.adapters.checkpoint_claim import CheckpointClaim
from rljob_operator.adapters.cluster_events import ClusterEvents
from rljob_operator.adapters.contact import Contact
from rljob_operator.adapters.coordinators import Coordinators
from rljob_operator.adapters.hindrances import Hindrances
from rljob_operator.adapters.infrastructure_facts import Ends
from rljob_operator.adapters.job_secrets import JobSecret
from rljob_operator.adapters.last_accepted import LastAccepted
from rljob_operator.adapters.manifests_memo import ManifestsMemo
from rljob_operator.adapters.metrics import Metrics
from rljob_operator.adapters.refused_before import RefusedBefore
from rljob_operator.adapters.remains import Remains
from rljob_operator.adapters.restart_clock import RestartClock
from rljob_operator.adapters.spec_rehearsal import SpecRehearsal
from rljob_operator.adapters.startups import Startups
from rljob_operator.adapters.status_writer import StatusWriter
from rljob_operator.adapters.views import JobKey
from rljob_operator.adapters.wait_events import WaitEvents
from rljob_operator.build import Platform
from rljob_operator.options import OperatorOptions


@dataclass(frozen=True, slots=True)
class World:
    """What all jobs share."""

    api: Api
    cache: Cache
    coordinators: Coordinators
    metrics: Metrics
    options: OperatorOptions
    platform: Platform
    identity: str
    missed: asyncio.Event = field(default_factory=asyncio.Event)
    """A job was refused for an API that the platform lacks."""


@dataclass(frozen=True, slots=True)
class JobMemory:
    """Of one job."""

    uid: str
    accepted: Accepted
    last_accepted: LastAccepted
    contact: Contact
    secret: JobSecret
    manifests: ManifestsMemo
    remains: Remains
    claim: CheckpointClaim
    ends: Ends
    startups: Startups
    cluster_events: ClusterEvents
    hindrances: Hindrances
    refused: RefusedBefore
    status: StatusWriter
    actions: Actions
    restart_clock: RestartClock
    rehearsal: SpecRehearsal
    waits: WaitEvents

    @classmethod
    def of_new(cls, key: JobKey, uid: str, world: World) -> "JobMemory":
        """Of a job that nothing is known of yet."""
        return cls(
            uid=uid,
            accepted=Accepted(key),
            last_accepted=LastAccepted(world.api, key),
            contact=Contact(world.identity),
            secret=JobSecret(world.api, key),
            manifests=ManifestsMemo(world.options, world.platform),
            remains=Remains(world.api, key),
            claim=CheckpointClaim(world.api, world.cache, key),
            ends=Ends(),
            startups=Startups(),
            cluster_events=ClusterEvents(world.api, key),
            hindrances=Hindrances(),
            refused=RefusedBefore(),
            status=StatusWriter(world.api, world.cache, key),
            actions=Actions(world.api, key),
            restart_clock=RestartClock(world.metrics),
            rehearsal=SpecRehearsal(world.api, key),
            waits=WaitEvents(),
        )
