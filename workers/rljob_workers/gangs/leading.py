"""Who leads the checkpoints: the incarnation by which all ranks that save name one folder.

Used by the assembly of roles that save. The leading role's ranks learn it of each other, those of other roles from the
coordinator; each wait has a deadline, and its error names the rank that does not come.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

from rljob_api.roles import LEADING_ROLE
from rljob_api.spec.restart import absence_seconds
from rljob_api.wire.identity import RankKey
from rljob_api.wire.ranks import FirstRank
from rljob_workers.dcs.membership.coordinator_http import CoordinatorClient
from rljob_workers.gangs.rendezvous import BUSY_SECONDS, POLL_SECONDS, incarnation_of_leader
from rljob_workers.trainers.data_parallel import GroupNotComplete

if TYPE_CHECKING:
    from rljob_api.names import Role
    from rljob_workers.dcs.membership.rank_context import RankContext
    from rljob_workers.dcs.membership.session import RankSession
    from rljob_workers.trainers.data_parallel import DataParallelGroup


def leader_of_checkpoints(context: RankContext, session: RankSession, group: DataParallelGroup) -> str:
    """Incarnation of global rank 0 of the leading role, the same on every rank that saves in this epoch.

    A collective of the leading role's gang. Of another role each rank asks the coordinator, announced as busy, until
    that rank has registered. Raises GroupNotComplete, IncarnationOver, CoordinatorUnreachable.
    """
    if context.incarnation.key.role is LEADING_ROLE:
        return incarnation_of_leader(group, context.incarnation)
    with closing(CoordinatorClient(context.endpoints)) as client:
        return _await_first_rank(LEADING_ROLE, context, session, client)


def _await_first_rank(role: Role, context: RankContext, session: RankSession, client: CoordinatorClient) -> str:
    """Its incarnation. Time in which its pod has not begun does not count: that is its platform's."""
    limit = float(context.job.spec.restart_policy.rendezvous_timeout_seconds)
    first, since, wait = RankKey(role=role, replica=0, rank=0), time.monotonic(), 0.0
    while True:
        with session.busy(f"the rendezvous: it waits for {first}", BUSY_SECONDS):
            answer = _ask(role, context, client, wait)
        if answer.incarnation is not None:
            return answer.incarnation.id
        wait = min(POLL_SECONDS, limit)
        if not answer.has_begun:
            since = time.monotonic()
        if time.monotonic() - since > limit:
            raise GroupNotComplete(
                f"rendezvous in epoch {context.incarnation.epoch}: {first}, which leads the checkpoints, did not come "
                f"in {limit:g} s (restartPolicy.rendezvousTimeoutSeconds). Its log says what it does."
            )


def _ask(role: Role, context: RankContext, client: CoordinatorClient, wait: float) -> FirstRank:
    own = context.incarnation
    path = f"/v1/roles/{role.value}/first-rank?epoch={own.epoch}&incarnation={own.id}&wait={wait}"
    deadline = time.monotonic() + absence_seconds(context.job.spec.restart_policy)
    return FirstRank.model_validate_json(client.call("GET", path, None, deadline=deadline, wait=wait))
