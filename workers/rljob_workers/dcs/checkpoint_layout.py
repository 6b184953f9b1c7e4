"""What the files of a checkpoint are called, and what is due to be written. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rljob_api.wire.checkpoints import PartWriter
from rljob_api.wire.identity import WeightId

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from rljob_workers.models.share import WeightShare
    from rljob_workers.models.slices import StateShare

TICKETS_FILE, CHECKSUMS_FILE, RECORD_FILE = "tickets.json", "checksums.json", "record.json"
RECORDED_MARK = "RECORDED"
REFERENCE_FOLDER = "reference"
REFERENCE_PATTERN = "reference*.json"


def reference_file(share: WeightShare) -> str:
    """Which file of a folder says where part `share` of the reference version lies."""
    return "reference.json" if share.count == 1 else f"reference-{share.index + 1:05}-of-{share.count:05}.json"


@dataclass(frozen=True, slots=True)
class Reference:
    """A rank's part of the reference version that rows are measured against, as a file below `reference`."""

    version: int
    file: str
    checksum: str


@dataclass(frozen=True, slots=True)
class Gang:
    """Who saves together."""

    leader: str
    """Incarnation of the rank that begins, renames and records."""
    parts: tuple[PartWriter, ...]
    own: PartWriter

    @property
    def is_leader(self) -> bool:
        """Whether this rank is the first of them."""
        return self.own == self.parts[0]


@dataclass(frozen=True, slots=True)
class DuePart:
    """One rank's part of a checkpoint that is to be written: host copies that nobody changes."""

    weight: WeightId
    share: WeightShare | None
    model: Mapping[str, torch.Tensor]
    state: StateShare
    tickets: bytes | None
    """The queue's ticket table (JSON), on the leader."""
    reference: Reference | None
