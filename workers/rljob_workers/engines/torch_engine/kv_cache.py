"""Keys and values of running samples: one slot a sample, [slots, kv_heads, tokens, head_dim] per layer.

Used by the model loop only. Grows as needed and moves whole slots; knows nothing about samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rljob_workers.devices import moved

if TYPE_CHECKING:
    from rljob_workers.engines.torch_engine.geometry import Geometry

_WIDTH_STEP = 64
"""Slots grow by at least this many tokens: smaller steps would copy the cache every few tokens."""


def round_width(tokens: int) -> int:
    """The width of a slot that holds so many tokens."""
    return -(-tokens // _WIDTH_STEP) * _WIDTH_STEP


class KvCache:
    """Preallocated slots. `keys[layer]` and `values[layer]` may be replaced by `reserve`: never keep them."""

    def __init__(self, geometry: Geometry, max_cells: int) -> None:
        """Starts empty. `max_cells`: slots x width that are allocated at most, where what is asked for allows it."""
        self._geometry = geometry
        self._max_cells = max_cells
        self.num_slots = 0
        self.width = 0
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self.drop()

    def drop(self) -> None:
        """Frees everything."""
        self.num_slots = self.width = 0
        self.keys = [self._allocate() for _ in range(self._geometry.num_layers)]
        self.values = [self._allocate() for _ in range(self._geometry.num_layers)]

    def reserve(self, num_slots: int, width: int) -> None:
        """Makes room for `num_slots` slots of `width` tokens; what they hold stays. Grows in large steps."""
        if num_slots <= self.num_slots and width <= self.width:
            return
        slots = max(num_slots, self.num_slots * 2) if num_slots > self.num_slots else self.num_slots
        tokens = max(width, self.width + self.width // 2) if width > self.width else self.width
        if slots * round_width(tokens) > self._max_cells:
            slots, tokens = num_slots, width
        self.num_slots, self.width = slots, round_width(tokens)
        for store in (self.keys, self.values):
            for layer, old in enumerate(store):
                store[layer] = self._allocate()
                kept = old[:slots, :, : self.width]
                store[layer][: kept.shape[0], :, : kept.shape[2]] = kept

    def move(self, sources: torch.Tensor, targets: torch.Tensor, width: int) -> None:
        """Copies the first `width` tokens of slots `sources` into slots `targets`, all at once."""
        sources, targets = (moved(slots, self._geometry.device) for slots in (sources, targets))
        for store in (self.keys, self.values):
            for layer in store:
                layer[targets, :, :width] = layer[sources, :, :width]

    def write_prompts(self, layer: int, first_slot: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Stores [slots, kv_heads, tokens, head_dim] from slot `first_slot` on, at tokens 0."""
        slots = slice(first_slot, first_slot + keys.shape[0])
        self.keys[layer][slots, :, : keys.shape[2]] = keys
        self.values[layer][slots, :, : values.shape[2]] = values

    def _allocate(self) -> torch.Tensor:
        g = self._geometry
        return torch.zeros(self.num_slots, g.num_kv_heads, self.width, g.head_dim, dtype=g.dtype, device=g.device)
