"""Parts of a weight on their way to an offer: which belong together, and when they are all there.

Pure. Called by `weights`; knows neither lives that are over nor the store.
"""

from __future__ import annotations

from rljob_api.base import WireModel
from rljob_api.wire.identity import WeightId
from rljob_api.wire.weights import OfferedPart, WeightOffer, WeightPart


class OwnedPart(WireModel):
    """A part and the incarnation of the life that staged it."""

    part: WeightPart
    owner: str


class Gathering(WireModel):
    """The parts of the newest weight of a stream that is not whole yet."""

    epoch: int
    parts: dict[int, OwnedPart]
    """By index; all of one weight, count and layout."""

    @property
    def first(self) -> WeightPart:
        """Any of them: what they have in common."""
        return next(iter(self.parts.values())).part

    @property
    def is_whole(self) -> bool:
        """Whether every part was owned."""
        return len(self.parts) == self.first.count

    def offer(self) -> WeightOffer:
        """What receivers are owned of it."""
        first, owned = self.first, sorted(self.parts.items())
        return WeightOffer(
            stream=first.stream,
            id=first.id,
            layout=first.layout,
            parts=[
                OfferedPart(
                    index=index,
                    num_bytes=one.part.num_bytes,
                    chunk_bytes=one.part.chunk_bytes,
                    digest=one.part.digest,
                    owner=one.part.address,
                )
                for index, one in owned
            ],
            peers=[],
            probe=next((one.part.probe for _, one in owned if one.part.probe is not None), None),
        )


def is_newer(weight: WeightId, than: WeightId) -> bool:
    """Whether a weight comes after another: a later lineage first, then a later version."""
    return (weight.lineage, weight.version) > (than.lineage, than.version)


def gathered(before: Gathering | None, part: WeightPart, owner: str, epoch: int) -> Gathering | None:
    """What is there once `part` was owned; None for one of an older weight than is being owned of.

    Parts of an earlier epoch are forgotten: their owners are gone. ValueError where `part` cannot belong to the others.
    """
    owned = {part.index: OwnedPart(part=part, owner=owner)}
    if before is None or before.epoch != epoch or is_newer(part.id, before.first.id):
        return Gathering(epoch=epoch, parts=_fitting(owned))
    if is_newer(before.first.id, part.id):
        return None
    first = before.first
    if (first.count, first.layout) != (part.count, part.layout):
        raise ValueError(
            f"part {part.index} of {part.stream.value} {part.id}: its layout ({part.layout}, {part.count} parts) is "
            f"not that of the parts before it ({first.layout}, {first.count}). All ranks must assign tensors alike."
        )
    return Gathering(epoch=epoch, parts=_fitting({**before.parts, **owned}))


def _fitting(parts: dict[int, OwnedPart]) -> dict[int, OwnedPart]:
    for index, owned in parts.items():
        if index >= owned.part.count:
            raise ValueError(f"part {index} of {owned.part.id}: there are {owned.part.count} parts, counted from 0.")
    return parts
