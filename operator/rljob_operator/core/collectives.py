"""Who broke a collective: the rank that is lost is named, not those that left because it was.

Pure. Called by `causes`. Ranks of a gang that lose one of theirs leave with an exit code of their own, and their
launchers hold that back for a while. Where the lost one is reported too, it alone is a cause. Where nobody else is, it
lives and does not come: each rank has told how many collectives it has entered, and the lowest number names it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rljob_api.names import EXIT_GROUP_BROKEN, Role
from rljob_api.status import RLJobStatus
from rljob_api.wire.identity import PodKey
from rljob_api.wire.launchers import RankProcess
from rljob_operator.core.observed import Observed
from rljob_operator.core.pods import is_parted
from rljob_operator.core.reasons import Reason
from rljob_operator.core.roster import staying
from rljob_operator.core.verdicts import Cause


def explained(observed: Observed, status: RLJobStatus, causes: Sequence[Cause], now: float) -> list[Cause]:
    """`causes` without those that another one explains; what is left of a broken gang names who did not come."""
    own = [cause for cause in causes if not _is_consequence(cause)]
    lost = {cause.pod.role for cause in own}
    left: dict[Role, list[Cause]] = {}
    for cause in causes:
        if _is_consequence(cause) and cause.pod.role not in lost:
            left.setdefault(cause.pod.role, []).append(cause)
    for role, consequences in left.items():
        behind = _behind(observed, status, role)
        if not behind:
            own += consequences
            continue
        named = _naming(behind, consequences[0])
        own.append(replace(named, counts=not _is_cut_off(observed, status, *behind[0], now)))
    return own


def _is_consequence(cause: Cause) -> bool:
    return cause.reason is Reason.RANK_EXITED and cause.exit_code == EXIT_GROUP_BROKEN


def _naming(behind: list[tuple[PodKey, RankProcess]], consequence: Cause) -> Cause:
    """One cause for all: the first that did not come, and what those say who waited for it."""
    pod, process = behind[0]
    who = ", ".join(f"{key}.{rank.rank}" for key, rank in behind)
    where = "has not come out of" if process.is_within_collective else "went no further than"
    message = f"{who} {where} collective {process.collectives or 0}: {consequence.message}"
    return replace(consequence, reason=Reason.HANG, pod=pod, message=message, exit_code=process.exit_code)


def _is_cut_off(observed: Observed, status: RLJobStatus, key: PodKey, process: RankProcess, now: float) -> bool:
    """Whether a rank did not come since it does not reach the coordinator: what its pod says of it may come later."""
    pods = observed.coordinator.pods if observed.coordinator is not None else []
    return process.cut_off or any(seen.pod == key and is_parted(observed, status, seen, now) for seen in pods)


def _behind(observed: Observed, status: RLJobStatus, role: Role) -> list[tuple[PodKey, RankProcess]]:
    """The ranks that the others of `role` waited for; none where nothing tells them apart.

    Of those in the collective that the fewest have passed, the ones that still run: the others have given up.
    """
    ranks = list(_ranks(observed, status, role))
    lowest = min((rank.collectives or 0 for _, rank in ranks), default=0)
    late = [(key, rank) for key, rank in ranks if (rank.collectives or 0) == lowest]
    running = [(key, rank) for key, rank in late if rank.exit_code is None]
    found = running or late
    return found if len(found) < len(ranks) else []


def _ranks(observed: Observed, status: RLJobStatus, role: Role) -> Iterator[tuple[PodKey, RankProcess]]:
    for key, pod in staying(status):
        seen = observed.seen(key, pod.life) if key.role is role else None
        for process in seen.processes if seen is not None else []:
            if (process.epoch, process.generation) == (status.restart.epoch, pod.generation):
                yield key, process
