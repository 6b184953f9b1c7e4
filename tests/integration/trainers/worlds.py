"""Worlds of real ranks over Gloo: a program forked once for each rank, and what each of them begins with.

run_world("tests.integration.trainers.some_ranks", world=4, folder=tmp_path)      # the test

def main(folder: Path, group: DataParallelGroup, mesh: DeviceMesh) -> None: ...   # some_ranks.py
if __name__ == "__main__":
    as_rank(main)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.integration.preloaded.client import fork_program

if TYPE_CHECKING:
    from rljob_workers.trainers.data_parallel import DataParallelGroup

PATIENCE_SECONDS = 300.0
RENDEZVOUS_SECONDS = 120.0


def run_world(program: str, *, world: int, folder: Path, arguments: Sequence[str] = ()) -> None:
    """Runs `program` as each of `world` ranks; an assertion with what a rank wrote where one fails."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"output{rank}.txt" for rank in range(world)]
    started = []
    try:
        for rank, file in enumerate(files):
            with file.open("wb") as output:
                started.append(fork_program(program, [str(folder), str(rank), str(world), *arguments], output=output))
        codes = [process.wait(PATIENCE_SECONDS) for process in started]
    finally:
        for process in started:
            process.kill()
    failed = [file.read_text() for file, code in zip(files, codes, strict=True) if code]
    assert not failed, "\n".join(failed)


def as_rank(main: Callable[..., None]) -> None:
    """Joins the world of the command line and calls main(folder, group, mesh, *arguments)."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    folder, rank, world = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    group = _joined(folder, rank, world)
    main(folder, group, init_device_mesh("cpu", (world,)), *sys.argv[4:])
    group.close()


def _joined(folder: Path, rank: int, world: int) -> DataParallelGroup:
    from torch import distributed
    from torch.distributed import HashStore  # type: ignore[attr-defined] # exported without saying so

    from rljob_workers.trainers.data_parallel import SingleRank

    if world == 1:
        distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        return SingleRank()
    return meet(folder, rank, world, timeout_seconds=RENDEZVOUS_SECONDS)


def meet(
    folder: Path, rank: int, world: int, *, timeout_seconds: float, on_wait: Callable[[str], None] | None = None
) -> DataParallelGroup:
    """The group of `world` processes that all call this with the same folder."""
    from rljob_workers.trainers.data_parallel import host_store, join_group, no_wait

    rendezvous, hosted = folder / "address", None
    if rank == 0:
        hosted = host_store("127.0.0.1", timeout_seconds=timeout_seconds)
        (folder / "address.new").write_text(hosted.address)
        (folder / "address.new").rename(rendezvous)
    deadline = time.monotonic() + RENDEZVOUS_SECONDS
    while not rendezvous.exists():
        assert time.monotonic() < deadline, "rank 0 never told where the ranks meet"
        time.sleep(0.01)
    return join_group(
        rendezvous.read_text(),
        rank,
        world,
        timeout_seconds=timeout_seconds,
        hosted=hosted,
        on_wait=no_wait if on_wait is None else on_wait,
    )
