"""How many bytes of tensors are alive at once: what a device would have to hold, measured on the CPU.

    with MemoryMeter() as meter:
        trainer.accumulate(rows)
    meter.peak_bytes                  # above what was there before the block, at most

Looks after every operation at the storages of all tensors that were ever seen in one. What an operation allocates and
frees inside itself is not seen.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class MemoryMeter(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch's
    """See above."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's
        self.peak_bytes = 0
        self._before: weakref.WeakKeyDictionary[torch.UntypedStorage, int] = weakref.WeakKeyDictionary()
        """Storage -> its size before the block: 0 of one that was made in it."""

    @property
    def live_bytes(self) -> int:
        """Now, above what was there before."""
        # Asked each time: libraries resize storages behind torch's operations.
        return sum(storage.nbytes() - before for storage, before in self._before.items())

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for storage in _storages((args, kwargs)):
            self._before.setdefault(storage, storage.nbytes())
        result = function(*args, **(kwargs or {}))
        for storage in _storages(result):
            self._before.setdefault(storage, 0)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return result


def _storages(values: Any) -> list[torch.UntypedStorage]:
    """Of all tensors that have memory: of a sharded one what is held here, of one on the meta device none."""
    tensors = [getattr(value, "_local_tensor", value) for value in tree_iter(values) if isinstance(value, torch.Tensor)]
    return [tensor.untyped_storage() for tensor in tensors if not tensor.is_meta]
