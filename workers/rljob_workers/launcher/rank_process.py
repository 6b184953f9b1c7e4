"""The rank's side of the fork: threads and chance; then the role.

Called in the forked child only. The roles are imported here and not at the head: the launcher needs none of them.
"""

from __future__ import annotations

import hashlib
import random
import sys
from typing import TYPE_CHECKING

from rljob_api.names import EXIT_CUT_OFF, EXIT_FENCED, EXIT_GROUP_BROKEN
from rljob_api.role_traits import TRAITS
from rljob_workers.dcs.errors import CoordinatorUnreachable, DamageReported, LifeOver
from rljob_workers.launcher.device_slices import require_cuda
from rljob_workers.transfer_queue.errors import ControlRefused, ControlUnreachable, Fenced

if TYPE_CHECKING:
    from collections.abc import Callable

    from rljob_api.names import Role
    from rljob_api.spec import RLJobSpec
    from rljob_api.wire.identity import RankKey
    from rljob_workers.dcs.context import RankContext


def live(context: RankContext) -> int:
    """One life of a rank, from the fork to its exit code."""
    spec, key = context.job.spec, context.life.key
    require_cuda()
    use_threads(rank_threads(spec, key.role))
    seed_everything(seed_of(spec.seed, key))
    from rljob_workers.roles.main import main

    return until_broken(main, context)


def until_broken(main: Callable[[RankContext], int], context: RankContext) -> int:
    """As `until_fenced`; a rank that lost another one of its gang leaves with a code of its own, too.

    So does one that has reported a damaged checkpoint, which all of its gang leave for: that is reported already.
    """
    from rljob_workers.trainers.errors import GroupBroken

    try:
        return until_fenced(main, context)
    except (GroupBroken, DamageReported) as broken:
        sys.stderr.write(f"{context.life.key}: {broken}\n")
        return EXIT_GROUP_BROKEN


def until_fenced(main: Callable[[RankContext], int], context: RankContext) -> int:
    """Runs `main`; a life that is over by the word of coordinator or queue leaves with a code of its own.

    So does one that could reach them no more: it is begun anew once its launcher can.
    """
    try:
        return main(context)
    except (LifeOver, Fenced) as over:
        sys.stderr.write(f"{context.life.key}: this life is over: {over}\n")
        return EXIT_FENCED
    except ControlRefused:
        raise  # a wrong password, or too many connections: no network is at fault
    except (CoordinatorUnreachable, ControlUnreachable) as absent:
        sys.stderr.write(f"{absent}\n")
        return EXIT_CUT_OFF


def rank_threads(spec: RLJobSpec, role: Role) -> int:
    """CPU threads of tensor operations in a rank; where there are engines, the threads are theirs."""
    given = spec.roles.of(role)
    return 1 if given is None or TRAITS[role].has_engines else given.threads


def use_threads(num_threads: int) -> None:
    """Sets torch's pools. After the fork: a pool is threads, and threads do not survive one."""
    import torch

    torch.set_num_threads(num_threads)
    torch.set_num_interop_threads(1)


def seed_of(job_seed: int, key: RankKey) -> int:
    """A seed of 32 bits: the same for every life of a rank, another for every rank."""
    return int.from_bytes(hashlib.blake2b(f"{job_seed}/{key}".encode(), digest_size=4).digest(), "big")


def seed_everything(seed: int) -> None:
    """Python's, NumPy's and torch's generators, which all forks would otherwise share."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
