"""Which samples run at once, pauses and updates: what every server of the dialect does, whatever makes its tokens.

Base of the torch engine's scheduler and of the simulated one. Used by the model loop's thread only. Knows neither HTTP
nor threads, nor how a token is computed. Course of a sample:

    submit -> waiting -> admit -> running -> drawn a token per step -> stop | length | abort -> its batch's row
    weights change while it runs: its tokens stay, and a weight mark is set
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from rljob_workers.engines.torch_engine.requests import (
    BadRequest,
    Batch,
    EndReason,
    EngineFault,
    Growth,
    IntArray,
    NotServing,
    PauseMode,
    PromptGroup,
    Sent,
    StepFailed,
)
from rljob_workers.engines.torch_engine.slots import Admission, SlotTable, round_width

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rljob_api.wire.identity import WeightId
    from rljob_workers.engines.torch_engine.slots import Drawn, Moves


_MAX_SETS = 256
"""More sets than this are forgotten once nothing runs: a set costs a byte per token of the vocabulary."""


class StopSets:
    """A table [sets, vocabulary] of booleans that grows with the sets that are asked for."""

    def __init__(self, vocab_size: int) -> None:
        """Starts empty."""
        self._vocab_size = vocab_size
        self._indices: dict[frozenset[int], int] = {}
        self._table = np.zeros((0, vocab_size), dtype=np.bool_)

    def index_of(self, tokens: frozenset[int]) -> int:
        """The row of this set. Tokens beyond the vocabulary can never be drawn and are left out."""
        if tokens not in self._indices:
            row = np.zeros((1, self._vocab_size), dtype=np.bool_)
            row[0, [token for token in tokens if token < self._vocab_size]] = True
            self._indices[tokens] = self._table.shape[0]
            self._table = np.concatenate([self._table, row])
        return self._indices[tokens]

    def forget_if_many(self) -> None:
        """Bounds the memory; only while no slot refers to a row."""
        if len(self._indices) > _MAX_SETS:
            self.__init__(self._vocab_size)  # type: ignore[misc]  # empty again

    def contains(self, rows: IntArray, tokens: IntArray) -> npt.NDArray[np.bool_]:
        """Whether `tokens[i]` is in the set of row `rows[i]`."""
        found: npt.NDArray[np.bool_] = self._table[rows, tokens]
        return found


Weights = TypeVar("Weights")


@dataclass(frozen=True, slots=True)
class Room:
    """What a server has room for."""

    vocab_size: int
    max_positions: int
    """Longest prompt + output, in tokens."""
    max_running_samples: int
    """Slots. More samples than this of one request run one after another."""
    max_cells: int
    """Tokens whose keys and values fit into the cache, counted as if every sample reached its longest output."""


@dataclass(frozen=True, slots=True)
class EngineState:
    """A snapshot of the engine."""

    held: WeightId | None
    is_paused: bool
    num_running: int
    """Samples with a slot."""
    num_waiting: int
    """Prompt groups with samples that wait for one."""
    capacity: int
    """Samples that may run at once, if the cache has room for them."""


@dataclass(slots=True)
class _Waiting:
    """Samples of a group that do not run yet."""

    batch: int
    group_index: int
    group: PromptGroup
    reserved: int
    """Width of a slot."""
    next_sample: int = 0


class ContinuousBatching(ABC, Generic[Weights]):
    """The engine as its one thread sees it.

    scheduler.update_from_disk(folder, weight_id)
    scheduler.submit(batch)
    while scheduler.has_work:
        scheduler.step()
    """

    def __init__(self, room: Room) -> None:
        """Starts unpaused and without weights: submissions are refused."""
        self.held: WeightId | None = None
        self._room = room
        self._weights: Weights | None = None
        self._slots = SlotTable()
        self._stops = StopSets(room.vocab_size)
        self._is_stale = False
        """What was computed of running samples is missing or of older weights."""
        self._batches: dict[int, Batch] = {}
        self._next_batch = 0
        self._waiting: deque[_Waiting] = deque()
        self._admitting: list[Admission] = []
        self._pause: PauseMode | None = None

    @abstractmethod
    def _read_weights(self, path: Path) -> Weights:
        """The weights of a safetensors file or folder; ValueError where they do not fit."""

    def _passes(self, admitted: list[Admission]) -> list[list[Admission]]:
        """Cuts samples into those whose prompts are computed together."""
        return [admitted] if admitted else []

    @abstractmethod
    def _prefill(self, admitted: list[Admission], start: int) -> Drawn:
        """Computes the prompts of samples, whose slots are those from `start` on, and draws their first tokens."""

    @abstractmethod
    def _decode(self) -> Drawn:
        """Draws a token for every running sample."""

    @abstractmethod
    def _recompute(self) -> None:
        """Recomputes what belongs to the tokens of running samples, under the current weights."""

    @abstractmethod
    def _score(self, weights: Weights, tokens: Sequence[int]) -> list[float]:
        """Log-probs of tokens[1:] at temperature 1."""

    @abstractmethod
    def _move_cache(self, moves: Moves) -> None:
        """Moves what was computed of running samples, whose slots have moved."""

    @abstractmethod
    def drop_cache(self) -> None:
        """Frees all keys and values. Running samples must be retracted."""

    @property
    def has_work(self) -> bool:
        """Whether there is something to compute now."""
        match self._pause:
            case None:
                return self._slots.count > 0 or bool(self._waiting)
            case PauseMode.DRAIN:
                return self._slots.count > 0
            case _:
                return False

    def state(self) -> EngineState:
        """A snapshot."""
        return EngineState(
            held=self.held,
            is_paused=self._pause is not None,
            num_running=self._slots.count,
            num_waiting=len(self._waiting),
            capacity=self._room.max_running_samples,
        )

    def submit(self, batch: Batch) -> None:
        """Queues a batch, which the caller awaits by its `done`. After BadRequest or NotServing nothing is queued."""
        if self.held is None:
            raise NotServing(
                "No weights are loaded yet: call /update_weights_from_disk with weight_version and lineage first."
            )
        widths = [self._fitting_width(len(group.prompt), group.max_new_tokens) for group in batch.groups]
        key, self._next_batch = self._next_batch, self._next_batch + 1
        self._batches[key] = batch
        groups = enumerate(zip(batch.groups, widths, strict=True))
        self._waiting.extend(_Waiting(key, index, group, width) for index, (group, width) in groups)

    def step(self) -> None:
        """Admits what fits, unless samples drain, and draws one token for every running sample.

        A failure costs the batches that took part.
        """
        try:
            if self._is_stale:
                self._recompute()
            if self._pause is not PauseMode.DRAIN:
                self._admit_waiting()
            if self._slots.count:
                self._record(0, *self._decode())
                self._forget_done()
        except EngineFault as error:
            self._fail_running(error)
        except (RuntimeError, MemoryError) as error:  # torch reports lack of memory as RuntimeError
            self._fail_running(StepFailed(f"The engine could not compute this request: {str(error).splitlines()[0]}"))

    def drawn(self, batch: Batch) -> int:
        """Tokens that were drawn for a batch until now."""
        running = sum(
            int(self._slots.num_drawn[self._slots.batch == key].sum())
            for key, one in self._batches.items()
            if one is batch
        )
        return running + int(batch.lengths.sum())

    def growth(self, batch: Batch, sent: Sent) -> Growth:
        """What of all rows of a batch was not sent, those that run among them."""
        keys = [key for key, one in self._batches.items() if one is batch]
        slots = np.flatnonzero(np.isin(self._slots.batch, keys))
        rows, lengths = self._slots.row[slots], batch.lengths.copy()
        lengths[rows] = self._slots.num_drawn[slots]
        width = int(lengths[rows].max(initial=0))
        batch.tokens[rows, :width] = self._slots.tokens[slots, :width]
        batch.log_probs[rows, :width] = self._slots.log_probs[slots, :width]
        return batch.growth(sent, lengths)

    def score(self, tokens: Sequence[int]) -> list[float]:
        """Log-probs of tokens[1:] at temperature 1 under the held weights, also while paused; no sample changes."""
        if self._weights is None or self.held is None:
            raise NotServing("No weights are loaded, so that nothing can be scored.")
        self._fitting_width(len(tokens), 0)
        return self._score(self._weights, tokens)

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
                batch.abort_unstarted(np.arange(*batch.first_rows[waiting.group_index :][:2])[waiting.next_sample :])
        self._waiting = deque(one for one in self._waiting if (one.batch, one.group_index) not in chosen)
        pairs = zip(self._slots.batch.tolist(), self._slots.group.tolist(), strict=True)
        ended = np.array([pair in chosen for pair in pairs], dtype=np.bool_)
        self._finish(ended, np.full(self._slots.count, EndReason.ABORT, dtype=np.int64))
        self._forget_done()
        return len(chosen)

    def pause(self, mode: PauseMode) -> None:
        """No step after this returns, until `resume`; with Drain, as soon as nothing runs (`is_drained`).

        A second pause adds its own effect to the first one's.
        """
        if mode is PauseMode.ABORT:
            self.abort(lambda _: True)
        elif mode is PauseMode.RETRACT:
            self.retract()
        self._pause = mode

    def is_drained(self) -> bool:
        """Whether a pause with Drain is over, in one way or the other."""
        return self._pause is not PauseMode.DRAIN or self._slots.count == 0

    def resume(self) -> None:
        """Steps go on; without a pause nothing happens."""
        self._pause = None

    def flush_cache(self) -> None:
        """Drops all keys and values; refused while samples need them."""
        if self._slots.count and self._pause is not PauseMode.RETRACT:
            raise BadRequest(
                f"flush_cache: {self._slots.count} samples are running on the cache. "
                "Abort them or pause with retract first."
            )
        self.drop_cache()

    def update_from_disk(self, path: Path, weight: WeightId) -> None:
        """Replaces the weights between two steps. On any error the engine holds no weights, and raises."""
        self.held = None
        try:
            weights = self._read_weights(path)
        except ValueError as error:
            self.drop_weights()
            raise BadRequest(str(error)) from error
        except (RuntimeError, MemoryError) as error:  # torch reports lack of memory as RuntimeError
            self.drop_weights()
            raise StepFailed(f"The weights {weight} could not be loaded: {error}") from error
        if self._pause is PauseMode.IN_PLACE:
            self.install_in_place(weights, weight)
        else:
            self.install(weights, weight)

    def install(self, weights: Weights, weight: WeightId) -> None:
        """New weights from the next token on; running samples keep their tokens, and their KV is recomputed."""
        self.install_in_place(weights, weight)
        self._is_stale = self._slots.count > 0

    def install_in_place(self, weights: Weights, weight: WeightId) -> None:
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
        self.drop_cache()

    def retract(self) -> None:
        """Drops the cache of running samples, which keep their tokens; the next step recomputes it."""
        self.drop_cache()
        self._is_stale = self._slots.count > 0

    def _fitting_width(self, prompt_tokens: int, new_tokens: int) -> int:
        """The width of a slot for them; BadRequest where there is none."""
        longest, bound = prompt_tokens + new_tokens, self._room.max_positions
        if longest > bound:
            raise BadRequest(
                f"max_new_tokens: {prompt_tokens} prompt tokens and {new_tokens} new ones are {longest}, but the model "
                f"has {bound} positions. Shorten the prompt or lower max_new_tokens."
            )
        width = round_width(longest)
        if width > self._room.max_cells:
            raise BadRequest(
                f"max_new_tokens: a sample of {longest} tokens does not fit into the KV cache of "
                f"{self._room.max_cells} tokens. Lower max_new_tokens."
            )
        return width

    def _admit_waiting(self) -> None:
        self._admitting = self._take_waiting()
        for admitted in self._passes(self._admitting):
            start = self._slots.count
            self._slots.append(admitted)
            self._mark_weight(start)
            self._record(start, *self._prefill(admitted, start))
        self._admitting = []
        self._forget_done()

    def _take_waiting(self) -> list[Admission]:
        """The oldest waiting samples that there is room for, in order; a group may be taken in parts."""
        taken: list[Admission] = []
        count = self._slots.count
        if count == 0:
            self._stops.forget_if_many()
        width = int(self._slots.reserved.max(initial=0))
        while self._waiting:
            waiting = self._waiting[0]
            group = waiting.group
            width = max(width, waiting.reserved)
            room = min(self._room.max_running_samples, self._room.max_cells // width) - count
            taking = min(room, group.num_samples - waiting.next_sample)
            if taking <= 0:
                break
            taken.append(
                Admission(
                    batch=waiting.batch,
                    group_index=waiting.group_index,
                    group=group,
                    first_sample=waiting.next_sample,
                    first_row=int(self._batches[waiting.batch].first_rows[waiting.group_index]),
                    count=taking,
                    reserved=waiting.reserved,
                    stop_set=self._stops.index_of(group.stop_token_ids),
                )
            )
            count += taking
            waiting.next_sample += taking
            if waiting.next_sample == group.num_samples:
                self._waiting.popleft()
        return taken

    def _record(self, start: int, tokens: IntArray, log_probs: npt.NDArray[np.float32]) -> None:
        """Takes over a token for every slot from `start` on and ends what is complete."""
        self._slots.record(start, tokens, log_probs)
        is_stop = self._stops.contains(self._slots.stop_set[start:], tokens) | self._end_with_text(start)
        is_full = self._slots.num_drawn[start:] >= self._slots.limit[start:]
        ended = np.zeros(self._slots.count, dtype=np.bool_)
        ended[start:] = is_stop | is_full
        reasons = np.zeros(self._slots.count, dtype=np.int64)
        reasons[start:] = np.where(is_stop, EndReason.STOP, EndReason.LENGTH)
        self._finish(ended, reasons)

    def _end_with_text(self, start: int) -> npt.NDArray[np.bool_]:
        """Whether a text that ends the sample stands in its last tokens, of every slot from `start` on."""
        ended = np.zeros(self._slots.count - start, dtype=np.bool_)
        slots = np.flatnonzero(self._slots.stop_window[start:]) + start
        owners = list(zip(self._slots.batch[slots].tolist(), self._slots.group[slots].tolist(), strict=True))
        for key, index in set(owners):
            stop = self._batches[key].groups[index].stop
            assert stop is not None, "a group without texts has no window"
            own = slots[[owner == (key, index) for owner in owners]].tolist()
            drawn = [self._slots.tokens[slot, : self._slots.num_drawn[slot]][-stop.window :].tolist() for slot in own]
            ended[np.array(own) - start] = [text is not None for text in stop.found(drawn)]
        return ended

    def _finish(self, ended: npt.NDArray[np.bool_], reasons: IntArray) -> None:
        """Hands ended samples to their batches and closes their gaps."""
        slots = np.flatnonzero(ended)
        if slots.size == 0:
            return
        width = int(self._slots.num_drawn[slots].max())
        owners = self._slots.batch[slots]
        for key in np.unique(owners).tolist():
            own = slots[owners == key]
            self._batches[key].finish_rows(
                rows=self._slots.row[own],
                tokens=self._slots.tokens[own, :width],
                log_probs=self._slots.log_probs[own, :width],
                lengths=self._slots.num_drawn[own],
                reasons=reasons[own],
            )
        self._move_cache(self._slots.compact(~ended))

    def _mark_weight(self, start: int) -> None:
        assert self.held is not None, "a weight is marked when it is held"
        owners = self._slots.batch[start:]
        for key in np.unique(owners).tolist():
            own = np.flatnonzero(owners == key) + start
            self._batches[key].mark_weight(self.held, self._slots.row[own], self._slots.num_drawn[own])

    def _fail_running(self, error: EngineFault) -> None:
        """Fails the batches that have a slot or were about to; the others wait on."""
        failed = set(self._slots.batch.tolist()) | {one.batch for one in self._admitting}
        self._admitting = []
        for key in failed:
            self._batches[key].fail(error)
        self._waiting = deque(one for one in self._waiting if one.batch not in failed)
        self._slots, self._is_stale = SlotTable(), False
        self.drop_cache()
        self._forget_done()

    def _forget_done(self) -> None:
        for key in [key for key, batch in self._batches.items() if batch.done.done()]:
            del self._batches[key]
