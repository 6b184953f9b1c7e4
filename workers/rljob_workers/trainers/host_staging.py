"""Host copies of a trainer's tensors that are made while the next step is computed.

    copies = staging.copy(decoder.views_of(decoder.flat), torch.bfloat16)     returns at once
    copies["model.norm.weight"]                                               waits for that one
    staging.settle()                                                          before the tensors are changed

For trainers. The tensors that are copied are the live ones: forward and backward passes only read them, so that a copy
has the time of a whole step, and the optimizer waits for what is left of it. On a CUDA device the bytes come on a
stream of their own through two pinned buffers, whatever the model's size; a thread hands them on to ordinary memory,
which may be held for as long as a publication or a checkpoint takes. On the CPU a copy is a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

from rljob_workers.models.weights import Bucket

K = TypeVar("K")

PIECE_BYTES = 64 << 20
"""Of one pinned buffer: large enough that a bus is busy with it, small beside any model that has a device."""


def _nothing_to_wait_for() -> None:
    """The copy is there."""


class HostCopies(Mapping[K, torch.Tensor]):
    """Tensors on the host by name; asking for one waits until it is copied, and raises what its copy failed of."""

    def __init__(self, tensors: Mapping[K, torch.Tensor], waits: Mapping[K, Callable[[], None]]) -> None:
        self._tensors = tensors
        self._waits = waits

    def __getitem__(self, name: K) -> torch.Tensor:
        self._waits.get(name, _nothing_to_wait_for)()
        return self._tensors[name]

    def __iter__(self) -> Iterator[K]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    @property
    def unfinished(self) -> Mapping[K, torch.Tensor]:
        """The same tensors, whatever has been copied of them so far: for their shapes."""
        return self._tensors

    def wait(self) -> None:
        """Until all are copied."""
        for wait in self._waits.values():
            wait()


def _copied(tensors: Mapping[K, torch.Tensor], dtype: torch.dtype | None) -> dict[K, torch.Tensor]:
    return {name: one.detach().to(dtype or one.dtype, copy=True) for name, one in tensors.items()}


class HostStaging:
    """Makes the copies of one trainer."""

    def __init__(self, device: torch.device) -> None:
        self._lane = _Lane(device) if device.type == "cuda" else None

    def stage(self, buckets: Iterable[Bucket], dtype: torch.dtype) -> Mapping[str, torch.Tensor]:
        """All tensors of an export on the host, in `dtype`; those that are live as `copy` does."""
        live: dict[str, torch.Tensor] = {}
        own: dict[str, torch.Tensor] = {}
        for bucket in buckets:
            if bucket.is_live:
                live |= bucket.tensors
            else:
                own |= {name: tensor.to("cpu", dtype) for name, tensor in bucket.tensors.items()}
            del bucket  # before the next one is made
        copies = self.copy(live, dtype)
        return {**own, **copies} if own else copies

    def copy(self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype | None = None) -> Mapping[str, torch.Tensor]:
        """Begins to copy tensors as they are after what was computed so far; null keeps their dtype.

        They must not be changed before `settle`. Asking the result for one waits until it is copied.
        """
        if self._lane is None:
            return _copied(tensors, dtype)
        return self._lane.copies(tensors, dtype)

    def begin(self, tensors: Mapping[K, torch.Tensor]) -> tuple[Mapping[K, torch.Tensor], Callable[[], None]]:
        """As `copy`; the copies, which may be unfinished, and what waits until all are done."""
        if self._lane is None:
            return _copied(tensors, None), _nothing_to_wait_for
        copies = self._lane.copies(tensors, None)
        return copies.unfinished, copies.wait

    def settle(self) -> None:
        """Until nothing that was to be copied is needed as it is any more."""
        if self._lane is not None:
            self._lane.settle()


class _Lane:
    """From a CUDA device to ordinary host memory, beside what the device computes."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._buffers = [torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self._thread = ThreadPoolExecutor(1, "host-staging")
        self._pending: list[Future[None]] = []

    def copies(self, sources: Mapping[K, torch.Tensor], dtype: torch.dtype | None) -> HostCopies[K]:
        """Begins to copy, in their order."""
        targets = {name: torch.empty(one.shape, dtype=dtype or one.dtype) for name, one in sources.items()}
        computed = torch.cuda.Event()  # type: ignore[no-untyped-call]
        computed.record(torch.cuda.current_stream(self._stream.device))
        self._pending = [future for future in self._pending if not future.done()]
        waits: dict[K, Callable[[], None]] = {}
        for name, source in sources.items():
            future = self._thread.submit(self._fetch, source.detach(), targets[name], computed)
            self._pending.append(future)
            waits[name] = future.result
        return HostCopies(targets, waits)

    def settle(self) -> None:
        """Until the device's tensors have been read."""
        for future in self._pending:
            future.result()
        self._pending.clear()

    def _fetch(self, source: torch.Tensor, target: torch.Tensor, computed: torch.cuda.Event) -> None:
        """In the thread. While one buffer is filled by the device the other is emptied."""
        whole = target.view(-1)
        length = PIECE_BYTES // target.element_size()
        arriving: tuple[torch.cuda.Event, torch.Tensor, torch.Tensor] | None = None
        with torch.no_grad(), torch.cuda.stream(self._stream):
            self._stream.wait_event(computed)
            rows = source.reshape(-1)  # on this stream, where it has to copy
            for number, start in enumerate(range(0, whole.numel(), length)):
                piece = rows[start : start + length].to(target.dtype)
                buffer = self._buffers[number % 2].view(target.dtype)[: piece.numel()]
                buffer.copy_(piece, non_blocking=True)
                arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
                arrived.record(self._stream)
                if arriving is not None:
                    _take(*arriving)
                arriving = (arrived, buffer, whole[start : start + length])
            if arriving is not None:
                _take(*arriving)


def _take(arrived: torch.cuda.Event, buffer: torch.Tensor, target: torch.Tensor) -> None:
    arrived.synchronize()
    target.copy_(buffer)
