"""Checkpoints: written beside while training goes on, a part by each rank, recorded, pruned only after that.

Used by every rank of a role that saves; all of them write into one folder. What one checkpoint takes is
`checkpoints.attempt`'s.

    store.write(weight, share, tensors, state, tickets)   returns at once; waits only for the one that is due before it
    store.wait()                                          until this rank's parts are written; on the leader: recorded
    path = store.verified(folder, rank, world)            raises for what is damaged of this rank's share; None: no part
                                                          of this role was recorded
    trainer.restore(path)                                 once all ranks have verified their files
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from rljob_api.failpoints import failpoint
from rljob_api.machine.room import named_room
from rljob_api.roles import LEADING_ROLE, SAVING_ROLES
from rljob_api.spec.restart import absence_seconds, parts_seconds
from rljob_api.wire.checkpoints import DamageRequest, PartWriter
from rljob_api.wire.identity import WeightId
from rljob_workers.dcs.checkpoints.attempt import Attempt, DuePart, Gang, Place
from rljob_workers.dcs.checkpoints.on_disk import (
    RECORDED_MARK,
    REFERENCE_FOLDER,
    Reference,
    expected_checksums,
    file_of,
    named_references,
    reference_file,
    share_of_files,
    size_of,
    sync_folder,
    verify,
    write_synced,
)
from rljob_workers.dcs.checkpoints.retention import Retention, prune
from rljob_workers.dcs.errors import CheckpointDamaged, CheckpointUnreadable, DamageReported
from rljob_workers.dcs.membership.coordinator_http import CoordinatorClient
from rljob_workers.dcs.membership.rank_context import RankContext
from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.dcs.tensor_bytes import safetensors_pieces
from rljob_workers.models.blob import WHOLE, WeightShare
from rljob_workers.models.slices import StateShare

_LOG = logging.getLogger(__name__)


PULSE_SECONDS = 0.1


def build_checkpoint_store(
    context: RankContext,
    session: RankSession,
    describing: Mapping[str, bytes] = MappingProxyType({}),
    *,
    leader: str | None = None,
    share: WeightShare | None = WHOLE,
) -> CheckpointStore:
    """The store below the job's checkpoint path.

    `describing` are small files of this rank's role that go into every folder as they are. `leader` is the incarnation
    of global rank 0 of the leading role, None where that is this rank; `share` the part of the role's weights that this
    rank saves, if any.
    """
    role = context.incarnation.key.role
    own = PartWriter(role=role, rank=context.global_rank)
    gang = Gang(leader or context.incarnation.id, writers_of(context), own)
    policy = context.job.spec.restart_policy
    waits = parts_seconds(policy), absence_seconds(policy)
    place = Place(context.checkpoint_dir, context.incarnation, context.endpoints, gang, describing, *waits)
    checkpoint = context.job.spec.checkpoint
    return CheckpointStore(place, session, share, Retention(checkpoint.keep, checkpoint.keep_every))


def writers_of(context: RankContext) -> tuple[PartWriter, ...]:
    """All ranks that write parts of the checkpoints of a rank's job, those of the leading role first."""
    roles, own = context.job.spec.roles, context.incarnation.key.role
    worlds = {role: roles.topology(role).num_ranks for role in SAVING_ROLES if roles.of(role) is not None}
    worlds[own] = context.world_size
    return tuple(PartWriter(role=role, rank=rank) for role, world in worlds.items() for rank in range(world))


class CheckpointStore:
    """One writer thread; at most one checkpoint in flight and one due."""

    def __init__(self, place: Place, session: RankSession, share: WeightShare | None, retention: Retention) -> None:
        self._place = place
        self._session = session
        self._share = share
        self._retention = retention
        self._turn = threading.Condition()
        self._due: DuePart | None = None
        self._in_flight = False
        self._failure: BaseException | None = None
        self._writer: threading.Thread | None = None
        self._reference: Reference | None = None
        """This rank's part of the retained reference version."""
        self._restored: tuple[Reference, ...] = ()
        """All parts of that of the restored checkpoint, cut as the ranks of then were assigned theirs."""
        (place.root / REFERENCE_FOLDER).mkdir(parents=True, exist_ok=True)
        self._adopt(session.welcome.restore.folder)

    # --- writing ---------------------------------------------------------------------------------------------------

    def write(
        self, weight: WeightId, model: Mapping[str, torch.Tensor], state: StateShare, tickets: bytes | None
    ) -> None:
        """Has this rank's part of a checkpoint written; every rank of the gang calls it, for the same versions.

        Waits while another one is due already; raises what an earlier one failed of. `model` and `state` are host
        copies that the caller does not change any more; `tickets`, on the leader, is the queue's ticket table (JSON).
        """
        due = DuePart(weight, self._share, model, state, tickets, self._reference)
        self._await(lambda: self._due is None, f"checkpoint {weight} waits for the one before it")
        with self._turn:
            self._due = due
            if self._writer is None:
                self._writer = threading.Thread(target=self._write_all, name="checkpoints", daemon=True)
                self._writer.start()
            self._turn.notify_all()

    def wait(self) -> None:
        """Until this rank's part of every checkpoint is written, and on the leader recorded or given up.

        Raises what one failed of.
        """
        self._await(lambda: self._due is None and not self._in_flight, "the checkpoint in flight")

    @property
    def reference_version(self) -> int | None:
        """The reference version that is retained now; after a restore that of the checkpoint."""
        retained = (*(() if self._reference is None else (self._reference,)), *self._restored)
        return retained[0].version if retained else None

    def keep_reference(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Makes this rank's part of a reference version durable."""
        incarnation = self._place.incarnation
        file = f"{version}-e{incarnation.epoch}-{incarnation.id}.safetensors"
        with named_room(self._place.root, f"reference version {version}"):
            digest = write_synced(self._place.root / REFERENCE_FOLDER / file, safetensors_pieces(tensors))
            sync_folder(self._place.root / REFERENCE_FOLDER)
        with self._turn:
            self._reference = Reference(version, file, digest)

    def restored_reference(self, version: int, names: Collection[str]) -> Mapping[str, torch.Tensor]:
        """This rank's part, `names`, of the reference version of the restored checkpoint; durable as such.

        Where the ranks of then were assigned other tensors it is put together from theirs, and saved again.
        """
        parts = [one for one in self._restored if one.version == version]
        found: dict[str, torch.Tensor] = {}
        for part in parts:
            path = self._place.root / REFERENCE_FOLDER / part.file
            with _opened(path) as blob:
                held = [name for name in blob.keys() if name in names]  # noqa: SIM118 - not a mapping
                if not held:
                    continue
                found |= {name: blob.get_tensor(name) for name in held}
                if len(held) == len(names) == len(blob.keys()):
                    self._reference = part
                    return found
        missing = sorted(set(names) - found.keys())
        if missing:
            retained = self.reference_version
            raise CheckpointDamaged(
                self._place.root,
                f"has no reference version {version} with {missing[0]}, by the restored checkpoint"
                f" (which names {'none' if retained is None else retained})",
            )
        self.keep_reference(version, found)
        return found

    # --- restoring -------------------------------------------------------------------------------------------------

    def verified(self, folder: str, rank: int = 0, world: int = 1) -> Path | None:
        """Where the files of this role are in a recorded folder; those that fall to `rank` of `world` are intact.

        None where the folder was recorded by a job without this role, which then begins with its version 0. The
        reference version that the folder names is one of them. The reader waits until all ranks have verified
        their files. Raises CheckpointUnreadable, and DamageReported: the coordinator knows of it when that is raised.
        """
        root, role = self._place.root, self._place.gang.own.role
        try:
            expected = expected_checksums(root, folder, role)
            for path in share_of_files({path: size_of(path) for path in expected}, rank, world):
                verify(path, expected[path])
        except CheckpointDamaged as damage:
            self._report(folder, damage)
            raise
        if not expected and role is not LEADING_ROLE:
            _LOG.warning("%s was recorded without a part of the %s, which begins anew", root / folder, role.value)
            return None
        return root / folder / file_of(role, "")

    def _report(self, folder: str, damage: CheckpointDamaged) -> None:
        """Raises DamageReported."""
        request = DamageRequest(
            incarnation=self._place.incarnation,
            folder=folder,
            file=str(damage.path.relative_to(self._place.root)),
            message=str(damage),
        )
        with contextlib.closing(CoordinatorClient(self._place.endpoints)) as client:
            client.call("POST", "/v1/checkpoints/damaged", request, deadline=self._place.deadline())
        raise DamageReported(damage.path, damage.what) from damage

    def _adopt(self, folder: str | None) -> None:
        """The restored folder is recorded, with or without its mark, and knows the reference version."""
        if folder is None or not (self._place.root / folder).is_dir():
            return
        (self._place.root / folder / RECORDED_MARK).touch()
        if self._place.gang.own.role is not LEADING_ROLE:
            return
        try:
            restored = named_references(self._place.root / folder)
        except CheckpointDamaged:
            return  # which `verified` finds and reports, too
        self._restored = tuple(restored.values())
        if self._share is not None:
            self._reference = restored.get(reference_file(self._share))

    # --- the writer's thread ---------------------------------------------------------------------------------------

    def _await(self, done: Callable[[], bool], waiting: str) -> None:
        """Waits in the caller's thread, which goes on beating."""
        with self._turn:
            while not done() and self._failure is None:
                self._turn.wait(PULSE_SECONDS)
                self._session.pulse(waiting=waiting)
            if self._failure is not None:
                raise self._failure

    def _write_all(self) -> None:
        while True:
            with self._turn:
                self._in_flight = False
                self._turn.notify_all()
                self._turn.wait_for(lambda: self._due is not None)
                due, self._due, self._in_flight = self._due, None, True
                self._turn.notify_all()
            try:
                assert due is not None
                self._write(due)
            except BaseException as error:  # carried to the caller, who raises it
                with self._turn:
                    self._failure = error
                    self._turn.notify_all()
                return

    def _write(self, due: DuePart) -> None:
        with named_room(self._place.root, f"checkpoint {due.weight} (checkpoint.path, checkpoint.keep)"):
            recorded = Attempt(self._place, due).carry_out()
        if recorded is not None:
            self._prune(recorded.folder, None if recorded.best is None else recorded.best.folder)

    def _prune(self, recorded: str, best: str | None = None) -> None:
        failpoint("checkpoint.after_record")
        with self._turn:
            current, due = self._reference, self._due
        in_use = [one for one in (current, None if due is None else due.reference) if one is not None]
        prune(self._place.root, recorded, self._place.incarnation.epoch, self._retention, in_use, best)


def _opened(path: Path) -> Any:  # noqa: ANN401 - safetensors has no name for it
    try:
        return safe_open(path, framework="pt", device="cpu")
    except SafetensorError as error:
        raise CheckpointDamaged(path, f"is no safetensors file ({error})") from error
    except OSError as error:
        raise CheckpointUnreadable(path, error) from error
