"""Requests that belong together: all are answered, or the first that fails ends the others.

For engines' clients and the generate stage, which ask for each sample on its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

_Answer = TypeVar("_Answer")


async def all_or_none(requests: Iterable[Coroutine[Any, Any, _Answer]]) -> list[_Answer]:
    """The answers, in order. Raises what the first failure raised, once the others are cancelled and gone."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(request) for request in requests]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return [task.result() for task in tasks]
