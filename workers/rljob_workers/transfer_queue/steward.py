"""The queue as the coordinator keeps it: epochs and lives, publish and record, lost rows, garbage, invariants.

For the coordinator only; one at a time (a later one fences an earlier one). Decides nothing about restarts and imports
no torch. Thread-safe.
"""

from __future__ import annotations

import secrets
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from rljob_api.names import Epoch, RolloutId, WeightVersion
from rljob_api.wire.epochs import RestorePoint
from rljob_api.wire.identity import Endpoints, Life, WeightId
from rljob_api.wire.observation import QueueObservation, ServerState
from rljob_api.wire.weights import CheckpointRecord
from rljob_workers.transfer_queue.control.connection import Argument, Clock, ControlConnection, Sleep
from rljob_workers.transfer_queue.control.library import library
from rljob_workers.transfer_queue.control.rows import parse_chunk
from rljob_workers.transfer_queue.errors import StorageUnreachable
from rljob_workers.transfer_queue.inspection import QueueInspection, UnitFigures, unix_seconds
from rljob_workers.transfer_queue.invariants import QueueInvariants
from rljob_workers.transfer_queue.peeking import QueuePeeking
from rljob_workers.transfer_queue.read_access import ReadAccess
from rljob_workers.transfer_queue.types import QueueShape
from rljob_workers.transfer_queue.units import StorageUnit

_SET_ASIDE = struct.Struct("<6I")


@dataclass(frozen=True, slots=True)
class StewardTiming:
    """How long things may take, in seconds."""

    patience_seconds: float = 10.0
    """For one call on the control Redis or a storage unit."""
    lease_seconds: float = 30.0
    """A beat renews leases for so long."""
    unlisted_seconds: float = 1.0
    """A ticket comes back after two beats without it, but not sooner than this after it was issued or last missed:
    beats that are sent at once (busy) must not count as two intervals."""
    high_water: float = 0.85
    """Share of a storage unit's limit above which no new ticket is given."""
    nearly_full: float = 0.97
    """Share above which puts of what is issued may fail next."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """A prompt that killed its worker too often while it was alone in work."""

    prompt_index: int
    rollout_id: RolloutId
    group: int
    attempt: int
    kills: int
    exhausted: bool
    """The group has no draw left (maxAttempts): it keeps this prompt, and the job should fail with its name."""


@dataclass(frozen=True, slots=True)
class LostRows:
    """What `declare_lost` did, in groups."""

    recomputed: int = 0
    """Only derived fields were lost: they, and what depends on them, are computed again."""
    reissued: int = 0
    """The group is generated again under the same reservation."""
    absent: int = 0
    """Published already: nothing is done until a restore."""
    needs_global_restart: int = 0
    """Claimed or consumed by a training task: only a global restart helps."""

    def __str__(self) -> str:
        return (
            f"{self.recomputed} groups computed again, {self.reissued} generated again, {self.absent} absent until a"
            f" restore, {self.needs_global_restart} in training (these need a global restart)"
        )


@dataclass(frozen=True, slots=True)
class Swept:
    """What `sweep` deleted."""

    chunks: int
    orphans: int
    """Chunks of ended lives that no commit names."""
    partitions: int


class QueueSteward:
    """The coordinator's side of the queue.

    state = steward.open_server(highest_seq_seen)       at every start of the coordinator or of the control Redis
    steward.raise_epoch(1, decision, reason, None)      opens epoch 1; then begin_life for every rank, and beats
    """

    def __init__(
        self,
        endpoints: Endpoints,
        shape: QueueShape,
        *,
        timing: StewardTiming = StewardTiming(),
        clock: Clock = time.monotonic,
        sleep: Sleep = time.sleep,
    ) -> None:
        """Connects when first used."""
        self._shape = shape
        self._timing = timing
        self._clock = clock
        self._control = ControlConnection(endpoints.control_redis, library(shape), clock=clock, sleep=sleep)
        self._units = [
            StorageUnit(index, url, clock=clock, sleep=sleep) for index, url in enumerate(endpoints.storage_units)
        ]
        self._name = f"steward-{secrets.token_hex(6)}"
        self._calls = 0
        self._lost = False
        self._fullest = 0.0
        self._seen_seq = 0
        self._lock = threading.RLock()
        self._figures: dict[int, UnitFigures | None] = {}
        access = ReadAccess(self._control, self._units, shape, self._lock, clock, timing.patience_seconds)
        self.inspection = QueueInspection(access, self._figures, timing.high_water)
        self.peeking = QueuePeeking(access)
        self.invariants = QueueInvariants(access)

    def close(self) -> None:
        """Ends all connections; may be called twice."""
        self._control.close()
        for unit in self._units:
            unit.close()

    # --- the server ----------------------------------------------------------------------------------------------

    def server_run_id(self) -> str:
        """Run id of the control Redis that answers now; another one means that it was restarted."""
        with self._lock:
            return self._control.run_id(
                deadline=self._deadline(), waiting="the coordinator waits for the control Redis"
            )

    def open_server(self, seen_seq: int) -> ServerState:
        """Takes over as the steward; opens the server unless it lost a tail that some live launcher has seen."""
        with self._lock:
            reply = self._control.change(
                "open",
                self._name,
                max(seen_seq, self._seen_seq),
                int(self._timing.lease_seconds * 1000),
                deadline=self._deadline(),
                waiting="the coordinator opens the control Redis",
            )
            self._calls = 0
            # From here on it counts what this server says: a tail that was lost is lost.
            self._seen_seq = reply[0]
            state = ServerState(reply[1].decode())
            self._lost = state is ServerState.LOST
            self._change("adopt_layout", waiting="the coordinator opens the control Redis")
            return state

    # --- epochs --------------------------------------------------------------------------------------------------

    def raise_epoch(
        self,
        epoch: Epoch,
        decision_id: str,
        reason: str,
        record: CheckpointRecord | None,
        *,
        tickets: bytes | None = None,
    ) -> RestorePoint:
        """Fences all lives, opens lineage `epoch` at the recorded version c and restores the queue to it.

        `record` is the record file and `tickets` the ticket table in its folder: used where the control Redis knows
        less (its tail, or all of it, was lost). The same epoch and decision get the same answer again. Raises
        WrongEpoch for an epoch that is not above the current one.
        """
        with self._lock:
            self._renew_units()
            missing = self._missing_chunks() if self._lost else []
            reply = self._change(
                "raise_epoch",
                epoch,
                decision_id,
                self._control.run_id(deadline=self._deadline(), waiting=f"epoch {epoch} ({reason})"),
                record.model_dump_json() if record else "",
                tickets or b"",
                *missing,
                "force" if self._lost else "open",
                waiting=f"epoch {epoch} ({reason}) waits to be opened",
            )
            self._lost = False
            return RestorePoint.model_validate_json(reply[0])

    def begin_life(self, life: Life) -> None:
        """Makes a life live; ends the earlier one of the same rank. Twice is once."""
        self._change(
            "begin_life",
            life.epoch,
            life.incarnation,
            str(life.key),
            life.model_dump_json(),
            waiting=f"{life.key} waits to begin its life",
        )

    def end_life(self, incarnation: str) -> None:
        """Fences a life: its leases and tickets come back. Twice is once."""
        self._change("end_life", incarnation, waiting=f"incarnation {incarnation} waits to be ended")

    def suspect(self, incarnation: str) -> None:
        """The life died with tickets in work: they come back, their prompts become suspects. Before `end_life`."""
        self._change("suspect", incarnation, waiting=f"incarnation {incarnation} died")

    def set_aside(self) -> list[SetAside]:
        """Prompts that were set aside, oldest first, until `forget_set_aside`: what is not told yet is not lost."""
        with self._lock:
            listed = self._control.read(
                "aside", deadline=self._deadline(), waiting="the coordinator looks for poison prompts"
            )
        return [
            SetAside(prompt, RolloutId(rollout_id), group, attempt, kills, bool(exhausted))
            for prompt, rollout_id, group, attempt, kills, exhausted in map(_SET_ASIDE.unpack, listed)
        ]

    def forget_set_aside(self, count: int) -> None:
        """The first `count` prompts of `set_aside` were told, durably."""
        self._change("forget_aside", count, waiting="the coordinator has told of poison prompts")

    def beat(self, incarnation: str, tickets: Iterable[int], leases: Iterable[str]) -> None:
        """Renews leases; a ticket that two beats in a row do not list comes back."""
        listed = list(tickets)
        self._change(
            "beat",
            incarnation,
            int(self._timing.lease_seconds * 1000),
            int(self._timing.unlisted_seconds * 1000),
            len(listed),
            *listed,
            *leases,
            waiting=f"a beat of incarnation {incarnation}",
        )

    def publish(self, life: Life, weight: WeightId, call_id: str) -> None:
        """Moves the published version on; raises Incomplete while train_{version - 1} has rows to train."""
        self._change(
            "publish",
            life.epoch,
            life.incarnation,
            weight.lineage,
            weight.version,
            call_id,
            waiting=f"{life.key} publishes {weight}",
        )

    def record(
        self, life: Life, weight: WeightId, folder: str, checksums: dict[str, str], call_id: str
    ) -> CheckpointRecord:
        """Compare-and-set of the recorded checkpoint in the current epoch; c only grows."""
        reply = self._change(
            "record",
            life.epoch,
            life.incarnation,
            weight.lineage,
            weight.version,
            orjson.dumps(folder),
            orjson.dumps(checksums),
            call_id,
            waiting=f"{life.key} records {weight}",
        )
        return CheckpointRecord.model_validate_json(reply[0])

    # --- the drain -----------------------------------------------------------------------------------------------

    def withhold_tickets(self) -> None:
        """From here on no ticket is given, over epochs too, until `give_tickets`. Twice is once."""
        self._change("drain", 1, waiting="the queue is to be drained")

    def give_tickets(self) -> None:
        """Ends `withhold_tickets`. Twice is once."""
        self._change("drain", 0, waiting="tickets are to be given again")

    # --- bytes ---------------------------------------------------------------------------------------------------

    def probe_units(self) -> list[int]:
        """Units that came back without their rows; sets or lifts the high-water mark, too. Skips unreachable ones."""
        with self._lock:
            known, lost, fullest = self._known_generations(), [], 0.0
            for unit in self._units:
                try:
                    if unit.generation(deadline=self._deadline()) != known.get(unit.index):
                        lost.append(unit.index)
                    memory = unit.memory(deadline=self._deadline())
                    keys = unit.num_keys(deadline=self._deadline())
                except StorageUnreachable:
                    self._figures[unit.index] = None
                    continue
                self._figures[unit.index] = UnitFigures(memory.used, memory.limit, keys)
                fullest = max(fullest, memory.used / memory.limit if memory.limit else 0.0)
            self._fullest = fullest
            self._change("memory", int(self.short_of_memory), waiting="the coordinator looks after storage")
            return lost

    @property
    def short_of_memory(self) -> bool:
        """Whether a unit was above its high-water mark when `probe_units` looked last."""
        return self._fullest > self._timing.high_water

    @property
    def nearly_full(self) -> bool:
        """Whether a unit had hardly any room left when `probe_units` looked last."""
        return self._fullest > self._timing.nearly_full

    def declare_lost(self, unit: int, tell: Callable[[LostRows], None] | None = None) -> LostRows:
        """What unit `unit` held before it lost its mark is lost; then marks it. Nothing if it still has its mark.

        `tell` makes the loss known before the mark: who dies between the two finds the same loss again.
        """
        with self._lock:
            storage = self._units[unit]
            mark = storage.generation(deadline=self._deadline())
            if mark is not None and mark == self._known_generations().get(unit):
                return LostRows()
            waiting = f"{storage} came back empty"
            generation, recomputed, reissued, absent, restart = self._change(
                "declare_lost", unit, mark or 0, waiting=waiting
            )
            loss = LostRows(recomputed, reissued, absent, restart)
            if tell is not None:
                tell(loss)
            storage.mark(generation, deadline=self._deadline())
            return loss

    def drop_retained(self) -> str | None:
        """Makes room at the cost of a restore: rows of the oldest published partition go; None if there are none."""
        retained = self._change("drop_retained", waiting="the coordinator makes room")
        return f"rows of train_{retained[0]}, kept for a restore, were dropped" if retained else None

    def relieve(self) -> str | None:
        """Makes room: rows that are kept only for a restore go first, then the newest unclaimed groups; else None."""
        with self._lock:
            if dropped := self.drop_retained():
                return dropped
            newest = self._change("drop_newest", waiting="the coordinator makes room")
            if newest:
                return f"{newest[1]} groups of train_{newest[0]} were dropped and are generated again"
            return None

    def sweep(self) -> Swept:
        """Deletes bytes that nothing names: of dropped rows, of partitions before the record, of ended lives."""
        with self._lock:
            dead, partitions, *tables = self._control.read(
                "garbage", 1000, deadline=self._deadline(), waiting="a sweep"
            )
            chunks = self._delete([*dead, *(line for table in tables for line in table)])
            if dead or partitions:
                self._change("collected", len(dead), *partitions, waiting="a sweep")
            return Swept(chunks, self._sweep_orphans(), len(partitions))

    # --- what is known -------------------------------------------------------------------------------------------

    def stats(self) -> QueueObservation:
        """Counts for `/v1/status`."""
        with self._lock:
            reply = self._control.read(
                "stats", deadline=self._deadline(), waiting="the coordinator reads the queue's counts"
            )
        issued, capacity, withheld = reply[:3]
        draining, drained_until, *tasks = reply[7:]
        return QueueObservation(
            groups_issued=issued,
            groups_capacity=capacity,
            rows_ready={name.decode(): count for name, count in zip(tasks[::2], tasks[1::2], strict=True)},
            withheld=withheld.decode() or None,
            draining_since=unix_seconds(draining),
            drained_until=unix_seconds(drained_until),
        )

    def published(self) -> WeightVersion:
        """The version that capacity counts from."""
        with self._lock:
            reply = self._control.read(
                "stats", deadline=self._deadline(), waiting="the coordinator reads the queue's counts"
            )
        return WeightVersion(reply[5])

    def check(self) -> list[str]:
        """Invariants of the control state and of the units' bytes, each broken one in a sentence."""
        return self.invariants.broken(self.inspection.partitions())

    # --- inside --------------------------------------------------------------------------------------------------

    def _deadline(self) -> float:
        return self._clock() + self._timing.patience_seconds

    def _change(self, name: str, *args: Argument, waiting: str) -> list[Any]:
        with self._lock:
            self._calls += 1
            reply = self._control.change(
                name, self._name, self._calls, *args, deadline=self._deadline(), waiting=waiting
            )
            self._seen_seq = max(self._seen_seq, reply[0])
            return reply[1:]

    def _known_generations(self) -> dict[int, int]:
        reply = self._control.read("units", deadline=self._deadline(), waiting="the coordinator looks after storage")
        return {int(unit): int(generation) for unit, generation in zip(reply[::2], reply[1::2], strict=True)}

    def _renew_units(self) -> None:
        for unit in self._units:
            try:
                self.declare_lost(unit.index)
            except StorageUnreachable:
                # Found by a later probe; where its rows were kept they are treated as lost then.
                continue
        for index in self._known_generations():
            if index >= len(self._units):  # the job was resumed with fewer units
                self._change("declare_lost", index, 0, waiting=f"storage unit {index} is no part of the job any more")

    def _named_chunks(self, which: str) -> list[tuple[int, bytes, bytes]]:
        """Partition, id and line of every chunk that the control state names; `all` or `kept` (not yet garbage)."""
        reply = self._control.read("chunks", which, deadline=self._deadline(), waiting="the coordinator compares bytes")
        return list(zip(reply[::3], reply[1::3], reply[2::3], strict=True))

    def _missing_chunks(self) -> list[bytes]:
        """Ids of chunks that the control state names and no unit has."""
        present = {key for unit in self._units for page in unit.scan(deadline=self._deadline()) for key in page}
        return [chunk_id for _, chunk_id, line in self._named_chunks("kept") if parse_chunk(line).key not in present]

    def _delete(self, lines: Sequence[bytes]) -> int:
        by_unit: dict[int, list[str]] = {}
        for line in lines:
            chunk = parse_chunk(line)
            by_unit.setdefault(chunk.unit, []).append(chunk.key)
        there = {index: keys for index, keys in by_unit.items() if index < len(self._units)}
        return sum(self._units[index].delete(keys, deadline=self._deadline()) for index, keys in there.items())

    def _sweep_orphans(self) -> int:
        """Chunks of lives that have ended, without a commit: nothing can commit them any more."""
        found = {
            unit.index: [key for page in unit.scan(deadline=self._deadline()) for key in page] for unit in self._units
        }
        # Read after the keys, so that a life that begins meanwhile is not taken for one that has ended (a later
        # coordinator may begin one), and before the names, so that what an ended life has committed is named by then.
        live = {name.decode() for name in self._control.read("lives", deadline=self._deadline(), waiting="a sweep")}
        suspects = {
            index: [key for key in keys if key.split(":")[1] not in live] for index, keys in found.items() if keys
        }
        if not any(suspects.values()):
            return 0
        committed = {parse_chunk(line).key for _, _, line in self._named_chunks("all")}
        orphans = {index: [key for key in keys if key not in committed] for index, keys in suspects.items()}
        return sum(
            self._units[index].delete(keys, deadline=self._deadline()) for index, keys in orphans.items() if keys
        )
