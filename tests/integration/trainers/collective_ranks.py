"""Ranks that meet inside a library: rank 1 comes late, leaves, or does not fit, as the test says."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import torch
from torch import distributed

from rljob_workers.trainers.data_parallel import DataParallelGroup, GroupError
from tests.integration.trainers.worlds import meet


class Signs:
    """What was reported to waiters, and whether two threads ever said it at once."""

    def __init__(self) -> None:
        self.stated: list[str] = []
        self._speaking = threading.Lock()

    def __call__(self, waiting_for: str) -> None:
        assert self._speaking.acquire(blocking=False), "two threads give signs of life at once"
        time.sleep(0.02)
        self.stated.append(waiting_for)
        self._speaking.release()


def main(folder: Path, rank: int, does: str) -> None:
    signs = Signs()
    group = meet(folder, rank, 2, timeout_seconds=60, on_wait=signs)
    late = rank == 1
    if does == "come late":
        _meet(group, folder, signs, late=late)
    elif does == "leave":
        _leave(group, late=late)
    else:
        _fail_alone(group, late=late)
    group.close()


def _meet(group: DataParallelGroup, folder: Path, signs: Signs, *, late: bool) -> None:
    """Rank 0 is blocked in the library until it has given pulses; they end with the block."""
    seen = folder / "seen"
    while late and not seen.exists():
        time.sleep(0.01)
    values = torch.ones(2)
    with group.collective("a gather"):
        watcher = threading.Thread(target=_await_signs, args=(signs, seen))
        watcher.start()
        distributed.all_reduce(values)
        group.add_up(values, "a sum within")
        with group.collective("a block within"):
            distributed.all_reduce(values)
        watcher.join()
    given = list(signs.stated)
    time.sleep(1)
    assert signs.stated == given, "nobody gives signs after the block"
    assert values.tolist() == [8, 8]
    if not late:
        assert set(given) == {"a gather, with 1 other ranks"}
    group.add_up(values, "a sum after it")
    sys.stderr.write(f"{values.tolist()}\n")


def _await_signs(signs: Signs, seen: Path) -> None:
    while not signs.stated and not seen.exists():
        time.sleep(0.01)
    seen.touch()


def _leave(group: DataParallelGroup, *, late: bool) -> None:
    values = torch.ones(2)
    group.add_up(values, "a first sum")
    if late:
        return
    with group.collective("the second forward"):
        distributed.all_reduce(values)


def _fail_alone(group: DataParallelGroup, *, late: bool) -> None:
    """An error of its own stays what it is."""
    if not late:
        with group.collective("a product"):
            torch.ones(2) @ torch.ones(3)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    except GroupError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(3)
