"""Where specs are parsed and objects built: threads beside the loop, and which jobs keep what was made of them.

The reconciler's. Building a job takes from a hundredth of a second to a tenth, in which the loop would answer no watch
and no other job; what was built is many times its spec, and most jobs have no turn for long.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rljob_operator.kube.views import JobKey

_T = TypeVar("_T")


LARGE_BYTES = 16 * 1024
"""From this size on specs are built one at a time, so that jobs of a usual size never wait behind several."""


class BuildThreads:
    """Two threads, of which at most one has a large spec."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="build")
        self._large = asyncio.Lock()

    async def run(self, num_bytes: int, work: Callable[[], _T]) -> _T:
        """The result of work on a spec of this size."""
        if num_bytes <= LARGE_BYTES:
            return await self._run(work)
        async with self._large:
            return await self._run(work)

    async def _run(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


def cost_of(num_bytes: int) -> int:
    """Bytes that the parsed spec and the objects of a job take, whose JSON has `num_bytes`; as measured."""
    return (256 << 10) + 50 * num_bytes


RETAINED_BYTES = 384 << 20
"""Bound of all jobs together. The chart's limit is 1Gi, of which the process takes a sixth without jobs."""


class RetainedBuilds:
    """Jobs that keep what was built for them, until they are used least recently of all."""

    def __init__(self, retained_bytes: int = RETAINED_BYTES) -> None:
        self._retained_bytes = retained_bytes
        self._sizes: OrderedDict[JobKey, int] = OrderedDict()
        self._total = 0

    def used(self, key: JobKey, num_bytes: int) -> list[JobKey]:
        """A job for which so much is kept has had a turn. Which jobs are to forget what was built."""
        self.forgotten(key)
        self._sizes[key] = num_bytes
        self._total += num_bytes
        gone = []
        while self._total > self._retained_bytes:
            oldest = next(iter(self._sizes))
            self.forgotten(oldest)
            gone.append(oldest)
        return gone

    def forgotten(self, key: JobKey) -> None:
        """A job keeps nothing."""
        self._total -= self._sizes.pop(key, 0)
