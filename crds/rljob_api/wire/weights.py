"""Metadata of weights: what exists, in which chunks, and who serves it."""

from enum import StrEnum

from pydantic import Field

from rljob_api.base import WireModel
from rljob_api.wire.identity import Life, WeightId


class Stream(StrEnum):
    """Policy: the latest version. Reference: versions that reference log-probs are made under."""

    POLICY = "Policy"
    REFERENCE = "Reference"


class WeightOffer(WireModel):
    """A weight as one safetensors blob in checksummed chunks. Visible only when the whole blob is staged."""

    stream: Stream
    id: WeightId
    num_bytes: int = Field(ge=0)
    chunk_bytes: int = Field(ge=1)
    checksums: list[str]
    """xxh3-64, hex, one per chunk."""
    sources: list[str]
    """host:port of every server that has the whole blob; the trainer first."""


class PublishRequest(WireModel):
    """`POST /v1/weights`. For Policy version r + 1 the queue must hold no untrained row of train_r."""

    life: Life
    offer: WeightOffer
    call_id: str


class SourceRequest(WireModel):
    """`POST /v1/weights/sources`: a receiver that has a whole blob offers to serve it."""

    life: Life
    stream: Stream
    id: WeightId
    address: str


class CheckpointRequest(WireModel):
    """`POST /v1/checkpoints`: records a durable checkpoint folder by compare-and-set in the current epoch."""

    life: Life
    id: WeightId
    folder: str
    """Name below the checkpoint path."""
    checksums: dict[str, str]
    """File -> xxh3-64 hex."""
    call_id: str


class CheckpointRecord(WireModel):
    """The record, as in the control Redis and in `record.json` beside the folders."""

    id: WeightId
    epoch: int
    folder: str
    checksums: dict[str, str]
    ancestry: dict[str, int]
    """Lineage -> last version of it that is alive (the current lineage: -1 for no bound)."""
