"""Messages about weights: which exist, in which parts, and which address serves them."""

from pydantic import Field

from rljob_api.base import WireModel
from rljob_api.names import Stream
from rljob_api.wire.identity import Incarnation, WeightId


class Probe(WireModel):
    """What a model must say of fixed tokens once it has the weights of a version."""

    tokens: list[int]
    log_probs: list[float]
    """Of tokens[1:], each given those before it, at temperature 1, as the trainer computes them."""


class WeightPart(WireModel):
    """One part of a weight: a safetensors blob of whole tensors, in chunks, staged by its owner."""

    stream: Stream
    id: WeightId
    index: int = Field(ge=0)
    count: int = Field(ge=1)
    """Of how many; parts of another count or layout belong to another weight."""
    layout: str
    """Digest of names, shapes and assignment of all parts: those of different layouts never make one weight."""
    num_bytes: int = Field(ge=0)
    chunk_bytes: int = Field(ge=1)
    digest: str
    """xxh3-128, hex, of the checksums of all chunks. The checksums themselves travel with the bytes."""
    address: str
    """host:port of its owner's server."""
    probe: Probe | None = None
    """With one of the parts, or with none."""


class PartRequest(WireModel):
    """`POST /v1/weights/parts`: the weight is visible once all its parts were reported.

    For Policy version r + 1 the queue must then hold no untrained row of train_r.
    """

    incarnation: Incarnation = Field(alias="life")
    part: WeightPart


class OfferedPart(WireModel):
    """A part as receivers pull it."""

    index: int = Field(ge=0)
    num_bytes: int = Field(ge=0)
    chunk_bytes: int = Field(ge=1)
    digest: str
    owner: str | None
    """Where it was staged; None once its owner is gone and only peers have it."""


class WeightOffer(WireModel):
    """A whole weight: every part of it has a live source."""

    stream: Stream
    id: WeightId
    layout: str
    parts: list[OfferedPart]
    """By index."""
    peers: list[str]
    """host:port of every receiver that has all parts."""
    probe: Probe | None = None
    """None: the publisher has sent none."""

    def sources(self, part: OfferedPart) -> list[str]:
        """Who serves a part; its owner first."""
        return ([] if part.owner is None else [part.owner]) + self.peers

    @property
    def num_bytes(self) -> int:
        """Of all parts."""
        return sum(part.num_bytes for part in self.parts)


class SourceRequest(WireModel):
    """`POST /v1/weights/sources`: a receiver that has all parts of a weight offers to serve them."""

    incarnation: Incarnation = Field(alias="life")
    stream: Stream
    id: WeightId
    address: str
