"""Weight transports behind one base class; the factories choose by `spec.weightSync.backend`.

Called by roles. A role never asks which backend it has.
"""

from __future__ import annotations

from rljob_api.spec.weights import WeightBackend
from rljob_workers.dcs.membership.rank_context import RankContext
from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.dcs.weights.transport import WeightPublisher, WeightReceiver

__all__ = ["WeightPublisher", "WeightReceiver", "build_publisher", "build_receiver"]


def build_publisher(context: RankContext, session: RankSession) -> WeightPublisher:
    """The trainer's end of the transport that the job asks for."""
    match context.job.spec.weight_sync.backend:
        case WeightBackend.HOST_STAGED:
            from rljob_workers.dcs.weights.host_staged import HostStagedPublisher

            return HostStagedPublisher(context, session)


def build_receiver(context: RankContext, session: RankSession) -> WeightReceiver:
    """A consumer's end of the transport that the job asks for."""
    match context.job.spec.weight_sync.backend:
        case WeightBackend.HOST_STAGED:
            from rljob_workers.dcs.weights.host_staged import HostStagedReceiver

            return HostStagedReceiver(context, session)
