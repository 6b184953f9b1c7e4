"""The coordinator's side of the queue: epochs and incarnations, publish and record, the drain.

For the coordinator only, one at a time (a later one fences an earlier one). Decides nothing about restarts and imports
no torch. Thread-safe. Storage and garbage are `upkeep`, counts and invariants `inspection`, single rows `peeking`.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import orjson

from rljob_api.names import Epoch, RolloutId, WeightVersion
from rljob_api.wire.checkpoints import CheckpointRecord
from rljob_api.wire.epochs import RestorePoint
from rljob_api.wire.identity import Endpoints, Incarnation, WeightId
from rljob_api.wire.observation import QueueObservation, ServerState
from rljob_workers.transfer_queue.admin_calls import AdminCalls
from rljob_workers.transfer_queue.control.connection import Argument, ControlConnection
from rljob_workers.transfer_queue.control.library import library
from rljob_workers.transfer_queue.inspection import QueueInspection, QueueInvariants, unix_seconds
from rljob_workers.transfer_queue.layout import AdoptedLayout, StoredLayout, layout_change, layout_table
from rljob_workers.transfer_queue.peeking import QueuePeeking
from rljob_workers.transfer_queue.resp import Clock, Sleep
from rljob_workers.transfer_queue.types import EvaluationState, QueueShape, without_rates
from rljob_workers.transfer_queue.units import StorageUnit
from rljob_workers.transfer_queue.upkeep import StorageUpkeep, Sweeper

_SET_ASIDE = struct.Struct("<6I")


_ROW, _NO_ROW = struct.Struct("<I"), 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class QueueAdminTiming:
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
class InWork:
    """The tickets and leases that an incarnation reports in a beat."""

    incarnation: str
    tickets: Sequence[int]
    leases: Sequence[str]


@dataclass(frozen=True, slots=True)
class SetAside:
    """A prompt that was in work in too many deaths, and alone in the last."""

    prompt_index: int
    rollout_id: RolloutId
    group: int
    attempt: int
    deaths: int
    exhausted: bool
    """The group has no draw left (maxAttempts): it keeps this prompt, and the job should fail with its name."""


class QueueAdmin:
    """The coordinator's side of the queue.

    state = admin.open_server(highest_seq_seen)       at every start of the coordinator or of the control Redis
    admin.raise_epoch(1, decision, reason, None)      opens epoch 1; then begin_incarnation for every rank, and beats
    """

    def __init__(
        self,
        endpoints: Endpoints,
        shape: QueueShape,
        *,
        timing: QueueAdminTiming = QueueAdminTiming(),
        clock: Clock = time.monotonic,
        sleep: Sleep = time.sleep,
    ) -> None:
        """Connects when first used."""
        self._timing = timing
        self._control = ControlConnection(endpoints.control_redis, library(shape), clock=clock, sleep=sleep)
        self._units = [
            StorageUnit(index, url, clock=clock, sleep=sleep) for index, url in enumerate(endpoints.storage_units)
        ]
        self._calls = calls = AdminCalls(self._control, self._units, shape, clock, timing.patience_seconds)
        self.adopted_layout: AdoptedLayout | None = None
        """Another table of columns that the last opening found, until `forget_adopted_layout`."""
        self.upkeep = StorageUpkeep(calls, high_water=timing.high_water, nearly_full=timing.nearly_full)
        self.sweeper = Sweeper(calls, self.upkeep.figures)
        self.inspection = QueueInspection(calls, self.upkeep.figures, timing.high_water)
        self.peeking = QueuePeeking(calls)
        self.invariants = QueueInvariants(calls)

    def close(self) -> None:
        """Ends all connections; may be called twice."""
        self._control.close()
        for unit in self._units:
            unit.close()

    # --- the server ----------------------------------------------------------------------------------------------

    def server_run_id(self) -> str:
        """Run id of the control Redis that answers now; another one means that it was restarted."""
        return self._calls.run_id("the coordinator waits for the control Redis")

    def open_server(self, seen_seq: int) -> ServerState:
        """Takes over as the queue admin; opens the server unless it lost a tail whose seq a live launcher received."""
        state = self._calls.take_over(seen_seq, int(self._timing.lease_seconds * 1000))
        self._adopt_layout()
        return state

    def _adopt_layout(self) -> None:
        """Rows that an earlier run or another release has left are put under this shape's table of columns, or go."""
        waiting = "the coordinator opens the control Redis"
        digest, table, *found = self._calls.read("layout", waiting=waiting)
        stored = StoredLayout(digest.decode(), table, frozenset(field.decode() for field in found))
        change = layout_change(stored, self._calls.shape)
        remapping = change.remapping if change else None
        (adopted,) = self._calls.change(
            "adopt_layout",
            stored.digest,
            layout_table(self._calls.shape),
            change.what if change else "",
            remapping.dump() if remapping else b"",
            waiting=waiting,
        )
        self.adopted_layout = AdoptedLayout.parse(adopted)

    def forget_adopted_layout(self, adopted: AdoptedLayout) -> None:
        """It was reported, durably."""
        self._calls.change("forget_layout_change", adopted.seq, waiting="the coordinator has reported another layout")
        self.adopted_layout = None

    # --- epochs --------------------------------------------------------------------------------------------------

    def raise_epoch(
        self,
        epoch: Epoch,
        decision_id: str,
        reason: str,
        record: CheckpointRecord | None,
        *,
        tickets: bytes | None = None,
        left: Sequence[str] = (),
    ) -> RestorePoint:
        """Fences all incarnations, opens lineage `epoch` at the recorded version c and restores the queue to it.

        `record` is the record file and `tickets` the ticket table in its folder: used where the control Redis knows
        less (its tail, or all of it, was lost), and where it has recorded one of the folders in `left`, which are
        damaged: its rows go then, and all that was drawn since `record` is drawn again by `tickets`. The same epoch and
        decision get the same answer again. Raises WrongEpoch for an epoch that is not above the current one.
        """
        table, rates = without_rates(tickets or b"")
        with self._calls.lock:
            self.upkeep.renew_units()
            missing = self.sweeper.missing_chunks() if self._calls.lost else []
            reply = self._calls.change(
                "raise_epoch",
                epoch,
                decision_id,
                self._calls.run_id(f"epoch {epoch} ({reason})"),
                record.model_dump_json() if record else "",
                table,
                rates,
                orjson.dumps(list(left)),
                *missing,
                "force" if self._calls.lost else "open",
                waiting=f"epoch {epoch} ({reason}) waits to be opened",
            )
            self._calls.lost = False
            return RestorePoint.model_validate_json(reply[0])

    def begin_incarnation(self, incarnation: Incarnation) -> None:
        """Makes an incarnation live; ends the earlier one of the same rank. Twice is once."""
        self._calls.change(
            "begin_life",
            incarnation.epoch,
            incarnation.id,
            str(incarnation.key),
            incarnation.model_dump_json(),
            waiting=f"{incarnation.key} waits to begin its life",
        )

    def end_incarnation(self, incarnation: str) -> None:
        """Fences an incarnation: its leases and tickets come back. Twice is once."""
        self._calls.change("end_life", incarnation, waiting=f"incarnation {incarnation} waits to be ended")

    def suspect(self, incarnation: str) -> None:
        """It died with tickets or samples in work: they return, their prompts count it. Before `end_incarnation`."""
        self._calls.change("suspect", incarnation, waiting=f"incarnation {incarnation} died")

    def take_back(self, incarnation: str) -> int:
        """Tickets of an incarnation that goes on come back; returns how many. What it makes of them is refused."""
        [returned] = self._calls.change(
            "take_back", incarnation, waiting=f"tickets of incarnation {incarnation} come back"
        )
        return int(returned)

    def set_aside(self) -> list[SetAside]:
        """Prompts that were set aside, oldest first, until `forget_set_aside`: none is lost before it is reported."""
        listed = self._calls.read("aside", waiting="the coordinator looks for poison prompts")
        return [
            SetAside(prompt, RolloutId(rollout_id), group, attempt, deaths, bool(exhausted))
            for prompt, rollout_id, group, attempt, deaths, exhausted in map(_SET_ASIDE.unpack, listed)
        ]

    def chosen_row(self, draw: int) -> int | None:
        """The row of the data that a curriculum has chosen for a draw; None where it is not known."""
        (packed,) = self._calls.read("chosen", draw, 1, waiting="the coordinator looks up the row of a prompt")
        (row,) = _ROW.unpack(packed)
        return None if row == _NO_ROW else int(row)

    def forget_set_aside(self, count: int) -> None:
        """The first `count` prompts of `set_aside` were reported, durably."""
        self._calls.change("forget_aside", count, waiting="the coordinator has told of poison prompts")

    def beats(self, beats: Iterable[InWork]) -> None:
        """Renews leases; a ticket that two beats in a row of its incarnation do not list comes back."""
        listed: list[Argument] = []
        for one in beats:
            listed += [one.incarnation, len(one.tickets), len(one.leases), *one.tickets, *one.leases]
        if not listed:
            return
        self._calls.change(
            "beats",
            int(self._timing.lease_seconds * 1000),
            int(self._timing.unlisted_seconds * 1000),
            *listed,
            waiting="beats of ranks",
        )

    def publish(self, incarnation: Incarnation, weight: WeightId, call_id: str) -> None:
        """Moves the published version on; raises Incomplete while train_{version - 1} has rows for its task."""
        self._calls.change(
            "publish",
            incarnation.epoch,
            incarnation.id,
            weight.lineage,
            weight.version,
            call_id,
            waiting=f"{incarnation.key} publishes {weight}",
        )

    def record(
        self, incarnation: Incarnation, weight: WeightId, folder: str, checksums: dict[str, str], call_id: str
    ) -> CheckpointRecord:
        """Compare-and-set of the recorded checkpoint in the current epoch; c only grows.

        Raises Incomplete while some training task has rows below the version to consume.
        """
        reply = self._calls.change(
            "record",
            incarnation.epoch,
            incarnation.id,
            weight.lineage,
            weight.version,
            orjson.dumps(folder),
            orjson.dumps(checksums),
            call_id,
            waiting=f"{incarnation.key} records {weight}",
        )
        return CheckpointRecord.model_validate_json(reply[0])

    # --- evaluation ----------------------------------------------------------------------------------------------

    def evaluation(self) -> EvaluationState:
        """The one that is under way, or was the last."""
        reply = self._calls.read("evaluation", waiting="the coordinator looks at an evaluation")
        return EvaluationState.parse(reply)

    def evaluation_results(self) -> dict[int, bytes]:
        """By number, of every sample that was scored, until `end_evaluation`; empty of what was set aside."""
        reply = self._calls.read("evaluation_results", waiting="the coordinator reads an evaluation")
        return {int(number): result for number, result in zip(reply[::2], reply[1::2], strict=True)}

    def end_evaluation(self, version: WeightVersion) -> None:
        """Its result is reported, durably: the next version may come. Twice is once."""
        self._calls.change("end_evaluation", version, waiting=f"the evaluation of version {version} is over")

    # --- the drain -----------------------------------------------------------------------------------------------

    def withhold_tickets(self) -> None:
        """From here on no ticket is given, over epochs too, until `give_tickets`. Twice is once."""
        self._calls.change("drain", 1, waiting="the queue is to be drained")

    def give_tickets(self) -> None:
        """Ends `withhold_tickets`. Twice is once."""
        self._calls.change("drain", 0, waiting="tickets are to be given again")

    # --- what is known -------------------------------------------------------------------------------------------

    def stats(self) -> QueueObservation:
        """Counts for `/v1/status`."""
        reply = self._calls.read("stats", waiting="the coordinator reads the queue's counts")
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
        """The newest one; capacity counts from the first rollout that some training task has not consumed."""
        reply = self._calls.read("stats", waiting="the coordinator reads the queue's counts")
        return WeightVersion(reply[5])

    def check(self) -> list[str]:
        """Invariants of the control state and of the units' bytes, each broken one in a sentence."""
        return self.invariants.broken(self.inspection.partitions())
