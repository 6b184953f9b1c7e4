"""Continuous batching: which samples run, one token a step, and what happens to them when weights change.

Used by the model loop's thread only. Computes and keeps books; knows neither HTTP nor threads. Life of a sample:

    submit -> waiting -> admit (prompt computed once per group, KV copied to its samples) -> running
           -> drawn a token per step -> stop | length | abort -> its batch's row
    weights change while it runs: its tokens stay, its KV is computed anew (Retract), a weight mark is set
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from rljob_workers.devices import moved
from rljob_workers.engines.torch_engine.decoder import Decoder
from rljob_workers.engines.torch_engine.errors import BadRequest, EngineFault, NotServing, StepFailed
from rljob_workers.engines.torch_engine.kv_cache import KvCache, round_width
from rljob_workers.engines.torch_engine.length_runs import (
    Moves,
    Run,
    needs_sorting,
    plan_compaction,
    plan_runs,
    plan_sorting,
    shrink_runs,
)
from rljob_workers.engines.torch_engine.prompts import PaddedPrompts, cut_chunks, pad_prompts
from rljob_workers.engines.torch_engine.requests import Batch, FinishReason, IntArray, PromptGroup
from rljob_workers.engines.torch_engine.sampling import draw_tokens
from rljob_workers.engines.torch_engine.slots import Admission, SlotTable
from rljob_workers.engines.torch_engine.stop_sets import StopSets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from rljob_api.wire.identity import WeightId
    from rljob_workers.engines.torch_engine.geometry import Geometry
    from rljob_workers.engines.torch_engine.weights import DecoderWeights


_CACHE_SHARE = 8
"""The part of a device's memory that goes to keys and values, as one of so many."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one engine; what is beyond them waits."""

    max_running_samples: int = 2048
    """Slots. More samples than this of one request run one after another."""
    max_cache_bytes: int = 4 << 30
    """Keys and values of all slots, counted as if every sample reached its longest output."""
    max_prefill_tokens: int = 16384
    """Padded prompt tokens that are computed in one forward pass."""

    @classmethod
    def on(cls, device: torch.device) -> Limits:
        """Those of an engine on `device`, of whose memory the cache takes an eighth: a trainer may share it."""
        if device.type == "cpu":
            return cls()
        memory = torch.cuda.get_device_properties(device).total_memory
        return cls(max_cache_bytes=memory // _CACHE_SHARE)


@dataclass(slots=True)
class _Waiting:
    """Samples of a group that do not run yet."""

    batch: int
    group_index: int
    next_sample: int


class Scheduler:
    """All state of the engine but its threads.

    scheduler.install(weights, weight_id)
    scheduler.submit(batch)
    while scheduler.has_work:
        scheduler.step()
    """

    def __init__(self, geometry: Geometry, limits: Limits) -> None:
        """Starts without weights: submissions are refused."""
        self.held: WeightId | None = None
        self._geometry = geometry
        self._limits = limits
        self._max_cells = max(1, limits.max_cache_bytes // geometry.cell_bytes)
        self._weights: DecoderWeights | None = None
        self._decoder = Decoder(geometry)
        self._cache = KvCache(geometry, self._max_cells)
        self._slots = SlotTable()
        self._stops = StopSets(geometry.vocab_size)
        self._runs: list[Run] = []
        self._is_stale = False
        """KV of running samples is missing or of older weights."""
        self._batches: dict[int, Batch] = {}
        self._next_batch = 0
        self._waiting: deque[_Waiting] = deque()
        self._admitting: list[Admission] = []

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return self._slots.count > 0 or bool(self._waiting)

    @property
    def num_running(self) -> int:
        """Samples with a slot."""
        return self._slots.count

    @property
    def capacity(self) -> int:
        """Samples that may run at once, if the cache has room for them."""
        return self._limits.max_running_samples

    @property
    def num_waiting(self) -> int:
        """Groups that have samples without a slot."""
        return len(self._waiting)

    def submit(self, batch: Batch) -> None:
        """Queues a batch. Raises BadRequest or NotServing; then nothing of it is queued."""
        if self.held is None:
            raise NotServing(
                "No weights are loaded yet: call /update_weights_from_disk with weight_version and lineage first."
            )
        for group in batch.groups:
            self._check_fits(len(group.prompt), group.max_new_tokens)
        key, self._next_batch = self._next_batch, self._next_batch + 1
        self._batches[key] = batch
        self._waiting.extend(_Waiting(key, index, 0) for index in range(len(batch.groups)))

    def step(self) -> None:
        """Admits what fits, draws one token for every running sample. A failure costs the batches that took part."""
        self._guarded(self._admit_and_draw)

    def step_running(self) -> None:
        """As `step`, but whoever waits goes on waiting."""
        self._guarded(self._draw_running)

    def drawn(self, batch: Batch) -> int:
        """Tokens that were drawn for a batch until now."""
        running = sum(
            int(self._slots.ints("num_drawn")[self._slots.ints("batch") == key].sum())
            for key, one in self._batches.items()
            if one is batch
        )
        return running + int(batch.lengths.sum())

    def score(self, tokens: Sequence[int]) -> list[float]:
        """Log-probs of tokens[1:] at temperature 1 under the weights that are held. Touches no running sample."""
        if self._weights is None or self.held is None:
            raise NotServing("No weights are loaded, so that nothing can be scored.")
        self._check_fits(len(tokens), 0)
        return self._decoder.score(self._weights, tokens).tolist()

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except EngineFault as error:
            self._fail_running(error)
        except (RuntimeError, MemoryError) as error:  # torch reports lack of memory as RuntimeError
            self._fail_running(StepFailed(f"The engine could not compute this request: {str(error).splitlines()[0]}"))

    def abort(self, should_abort: Callable[[PromptGroup], bool]) -> int:
        """Ends every group that is chosen; its samples keep the tokens drawn so far. Returns how many groups."""
        chosen = {
            (key, index)
            for key, batch in self._batches.items()
            for index, group in enumerate(batch.groups)
            if should_abort(group)
        }
        for waiting in self._waiting:
            if (waiting.batch, waiting.group_index) in chosen:
                batch = self._batches[waiting.batch]
                batch.abort_unstarted(batch.groups[waiting.group_index].num_samples - waiting.next_sample)
        self._waiting = deque(one for one in self._waiting if (one.batch, one.group_index) not in chosen)
        pairs = zip(self._slots.ints("batch").tolist(), self._slots.ints("group").tolist(), strict=True)
        ended = np.array([pair in chosen for pair in pairs], dtype=np.bool_)
        self._finish(ended, np.full(self._slots.count, FinishReason.ABORT, dtype=np.int64))
        self._forget_done()
        return len(chosen)

    def install(self, weights: DecoderWeights, weight: WeightId) -> None:
        """New weights from the next token on; running samples keep their tokens and get their KV computed anew."""
        self.install_in_place(weights, weight)
        self._is_stale = self._slots.count > 0

    def install_in_place(self, weights: DecoderWeights, weight: WeightId) -> None:
        """New weights from the next token on, over the KV that the old ones made."""
        self._weights, self.held = weights, weight
        self._mark_weight(0)

    def drop_weights(self) -> None:
        """Serves nothing until the next `install`; what runs or waits is refused."""
        self._weights, self.held = None, None
        self.fail_all(NotServing("The engine lost its weights in an update that failed; load a full weight first."))

    def fail_all(self, error: EngineFault) -> None:
        """Ends every batch with an error and drops the cache."""
        for batch in list(self._batches.values()):
            batch.fail(error)
        self._waiting.clear()
        self._batches.clear()
        self._slots = SlotTable()
        self._runs = []
        self.drop_cache()

    def retract(self) -> None:
        """Drops the cache of running samples, which keep their tokens; the next step computes it anew."""
        self.drop_cache()
        self._is_stale = self._slots.count > 0

    def drop_cache(self) -> None:
        """Frees all keys and values. Running samples must be retracted."""
        self._cache.drop()

    def _check_fits(self, prompt_tokens: int, new_tokens: int) -> None:
        longest, bound = prompt_tokens + new_tokens, self._geometry.max_positions
        if longest > bound:
            raise BadRequest(
                f"max_new_tokens: {prompt_tokens} prompt tokens and {new_tokens} new ones are {longest}, but the model "
                f"has {bound} positions. Shorten the prompt or lower max_new_tokens."
            )
        if round_width(longest) > self._max_cells:
            raise BadRequest(
                f"max_new_tokens: a sample of {longest} tokens does not fit into the KV cache of {self._max_cells} "
                "tokens. Lower max_new_tokens."
            )

    def _admit_and_draw(self) -> None:
        if self._is_stale:
            self._recompute()
        self._admitting = self._take_waiting()
        for chunk in cut_chunks(self._admitting, self._limits.max_prefill_tokens):
            self._admit(chunk)
        self._admitting = []
        self._forget_done()
        self._draw_running()

    def _draw_running(self) -> None:
        if self._is_stale:
            self._recompute()
        if self._slots.count:
            self._decode()
            self._forget_done()

    def _take_waiting(self) -> list[Admission]:
        """The oldest waiting samples that there is room for, in order; a group may be taken in parts."""
        taken: list[Admission] = []
        count = self._slots.count
        if count == 0:
            self._stops.forget_if_many()
        width = round_width(int(self._slots.ints("reserved").max(initial=0)))
        while self._waiting:
            waiting = self._waiting[0]
            batch = self._batches[waiting.batch]
            group = batch.groups[waiting.group_index]
            width = max(width, round_width(group.longest))
            room = min(self._limits.max_running_samples, self._max_cells // width) - count
            taking = min(room, group.num_samples - waiting.next_sample)
            if taking <= 0:
                break
            taken.append(
                Admission(
                    batch=waiting.batch,
                    group_index=waiting.group_index,
                    group=group,
                    first_sample=waiting.next_sample,
                    first_row=int(batch.first_rows[waiting.group_index]),
                    count=taking,
                    stop_set=self._stops.index_of(group.stop_token_ids),
                )
            )
            count += taking
            waiting.next_sample += taking
            if waiting.next_sample == group.num_samples:
                self._waiting.popleft()
        return taken

    def _admit(self, admitted: list[Admission]) -> None:
        """Computes prompts once, copies their KV to their samples, draws the first tokens."""
        assert self._weights is not None, "samples are only admitted while weights are held"
        start = self._slots.count
        self._slots.append(admitted)
        padded = pad_prompts([one.group.prompt for one in admitted])
        self._cache.reserve(self._slots.count, round_width(max(padded.width, self._longest())))
        prefilled = self._decoder.prefill(self._weights, padded.ids, padded.lengths)
        counts = torch.tensor([one.count for one in admitted])
        source = moved(torch.arange(len(admitted)).repeat_interleave(counts), self._geometry.device)
        for layer, (keys, values) in enumerate(zip(prefilled.keys, prefilled.values, strict=True)):
            self._cache.write_prompts(layer, start, keys[source], values[source])
        self._mark_weight(start)
        self._runs = plan_runs(self._slots.ints("length"))
        self._draw(start, prefilled.logits[source])

    def _decode(self) -> None:
        assert self._weights is not None, "samples only run while weights are held"
        self._sort_by_length()
        self._cache.reserve(self._slots.count, round_width(self._longest() + 1))
        lengths = self._slots.ints("length")
        logits = self._decoder.decode(self._weights, self._slots.ints("last_token"), lengths, self._runs, self._cache)
        lengths += 1
        self._draw(0, logits)

    def _draw(self, start: int, logits: torch.Tensor) -> None:
        """Draws a token for every slot from `start` on and ends what is complete."""
        answer = draw_tokens(logits, self._slots.sampling(start), self._slots.ints("num_drawn")[start:])
        tokens, log_probs = (column.cpu() for column in answer)
        if not bool(torch.isfinite(log_probs).all()):
            raise StepFailed(
                f"The model's logits are not finite under weights {self.held}: training may have diverged."
            )
        drawn = tokens.numpy()
        self._slots.record(start, drawn, log_probs.numpy())
        is_stop = self._stops.contains(self._slots.ints("stop_set")[start:], drawn)
        is_full = self._slots.ints("num_drawn")[start:] >= self._slots.ints("limit")[start:]
        ended = np.zeros(self._slots.count, dtype=np.bool_)
        ended[start:] = is_stop | is_full
        reasons = np.zeros(self._slots.count, dtype=np.int64)
        reasons[start:] = np.where(is_stop, FinishReason.STOP, FinishReason.LENGTH)
        self._finish(ended, reasons)

    def _finish(self, ended: npt.NDArray[np.bool_], reasons: IntArray) -> None:
        """Hands ended samples to their batches and closes their gaps."""
        slots = np.flatnonzero(ended)
        if slots.size == 0:
            return
        width = int(self._slots.ints("num_drawn")[slots].max())
        owners = self._slots.ints("batch")[slots]
        for key in np.unique(owners).tolist():
            own = slots[owners == key]
            self._batches[key].finish_rows(
                rows=self._slots.ints("row")[own],
                tokens=self._slots.tokens[own, :width],
                log_probs=self._slots.log_probs[own, :width],
                lengths=self._slots.ints("num_drawn")[own],
                reasons=reasons[own],
            )
        live = ~ended
        self._move(plan_compaction(self._runs, live), int(np.count_nonzero(live)))
        self._runs = shrink_runs(self._runs, live, self._slots.ints("length"))

    def _move(self, moves: Moves, count: int) -> None:
        if moves.sources.size and not self._is_stale:
            sources, targets = torch.from_numpy(moves.sources), torch.from_numpy(moves.targets)
            self._cache.move(sources, targets, self._longest())
        self._slots.move(moves, count)

    def _sort_by_length(self) -> None:
        """Sorts slots when neighbours are so unlike that attention would need many calls."""
        lengths = self._slots.ints("length")
        if needs_sorting(self._runs, lengths):
            self._move(plan_sorting(lengths), self._slots.count)
            self._runs = plan_runs(self._slots.ints("length"))

    def _recompute(self) -> None:
        """Computes the KV of all running samples under the current weights: prompt and all but the last token."""
        assert self._weights is not None, "samples only run while weights are held"
        count = self._slots.count
        self._cache.reserve(count, round_width(self._longest() + 1))
        start = 0
        while start < count:
            padded = self._cached_tokens(start)
            prefilled = self._decoder.prefill(self._weights, padded.ids, padded.lengths)
            for layer, (keys, values) in enumerate(zip(prefilled.keys, prefilled.values, strict=True)):
                self._cache.write_prompts(layer, start, keys, values)
            start += padded.ids.shape[0]
        self._is_stale = False

    def _cached_tokens(self, start: int) -> PaddedPrompts:
        """Tokens whose KV belongs into the cache, for as many slots from `start` on as one pass may compute."""
        sequences: list[list[int]] = []
        longest = 0
        drawn, owners, groups = (self._slots.ints(name) for name in ("num_drawn", "batch", "group"))
        for slot in range(start, self._slots.count):
            prompt = self._batches[int(owners[slot])].groups[int(groups[slot])].prompt
            tokens = [*prompt, *self._slots.tokens[slot, : drawn[slot] - 1].tolist()]
            longest = max(longest, len(tokens))
            if sequences and longest * (len(sequences) + 1) > self._limits.max_prefill_tokens:
                break
            sequences.append(tokens)
        return pad_prompts(sequences)

    def _mark_weight(self, start: int) -> None:
        assert self.held is not None, "a weight is marked when it is held"
        owners = self._slots.ints("batch")[start:]
        for key in np.unique(owners).tolist():
            own = np.flatnonzero(owners == key) + start
            self._batches[key].mark_weight(self.held, self._slots.ints("row")[own], self._slots.ints("num_drawn")[own])

    def _fail_running(self, error: EngineFault) -> None:
        """Fails the batches that have a slot or were about to; the others wait on."""
        failed = set(self._slots.ints("batch").tolist()) | {one.batch for one in self._admitting}
        self._admitting = []
        for key in failed:
            self._batches[key].fail(error)
        self._waiting = deque(one for one in self._waiting if one.batch not in failed)
        self._slots, self._runs, self._is_stale = SlotTable(), [], False
        self._cache.drop()
        self._forget_done()

    def _forget_done(self) -> None:
        for key in [key for key, batch in self._batches.items() if batch.is_done]:
            del self._batches[key]

    def _longest(self) -> int:
        return int(self._slots.ints("length").max(initial=0))
