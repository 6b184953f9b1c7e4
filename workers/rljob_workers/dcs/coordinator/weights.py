"""Which weights exist, which of their parts were reported, and who serves them.

The coordinator calls it in its thread. Keeps the newest weight of each stream and the parts of the next; never touches
their bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from rljob_api.names import Stream
from rljob_api.wire.identity import Incarnation, WeightId
from rljob_api.wire.observation import EventKind
from rljob_api.wire.weights import OfferedPart, PartRequest, SourceRequest, WeightOffer, WeightPart
from rljob_workers.dcs.coordinator.context import CoordinatorContext, Topic, bad_request, dead
from rljob_workers.dcs.coordinator.epochs import Epochs
from rljob_workers.dcs.coordinator.rank_incarnations import RankIncarnations
from rljob_workers.dcs.coordinator.records import EPOCH, OFFERS, PARTS, RANKS, Derived, Gathering, OfferEntry, OwnedPart


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


@dataclass(frozen=True, slots=True)
class ShownOffer:
    """An offer as receivers are answered."""

    id: WeightId
    body: bytes


class Weights:
    """Offers."""

    def __init__(self, context: CoordinatorContext, epochs: Epochs, ranks: RankIncarnations) -> None:
        self._context = context
        self._epochs = epochs
        self._ranks = ranks
        self._shown = Derived(context.store, [OFFERS, RANKS, EPOCH], self._show)

    def newest(self, stream: Stream) -> WeightOffer | None:
        """The newest weight that is alive, with the sources whose incarnations are not over.

        None without any, and while a part of it has none: no receiver could come to have it all.
        """
        entry = self._entry(stream)
        if entry is None or not self._is_offered(entry):
            return None
        living = self._ranks.living()
        peers = [address for address in entry.offer.peers if entry.owners[address] in living]
        parts = [
            part if _owner(entry, part) in living else part.model_copy(update={"owner": None})
            for part in entry.offer.parts
        ]
        return entry.offer.model_copy(update={"parts": parts, "peers": peers})

    def newer(self, stream: Stream, than: WeightId) -> bytes | None:
        """That offer, as it is answered, if it is newer: hundreds of receivers ask for one and the same."""
        shown = self._shown().get(stream)
        return shown.body if shown is not None and is_newer(shown.id, than) else None

    def _show(self) -> dict[Stream, ShownOffer]:
        offers = [self.newest(stream) for stream in Stream]
        return {one.stream: ShownOffer(one.id, one.model_dump_json().encode()) for one in offers if one is not None}

    def published(self) -> WeightId | None:
        """The newest policy weight. Asked for every beat, so nothing is made for it."""
        entry = self._entry(Stream.POLICY)
        return entry.offer.id if entry is not None and self._is_offered(entry) else None

    def take_part(self, request: PartRequest) -> None:
        """Takes a part in; the last one makes the weight visible, for Policy if the queue agrees. Twice is once."""
        self._ranks.check_incarnation(request.incarnation)
        part, incarnation = request.part, request.incarnation
        if not self._epochs.current.is_alive(part.id):
            raise dead(f"{part.id} of {part.stream.value}: its lineage was left before this version. Do not offer it.")
        held = self._entry(part.stream)
        if held is not None and self._is_history(held, part):
            return
        try:
            gathering = gathered(self._gathering(part.stream), part, incarnation.id, incarnation.epoch)
        except ValueError as error:
            raise bad_request(str(error)) from error
        if gathering is None:
            return
        if gathering.is_whole and self._all_live(gathering):
            self._publish(gathering, incarnation)
        else:
            self._context.store.commit([PARTS.put(part.stream.value, gathering)])

    def add_source(self, request: SourceRequest) -> None:
        """A receiver serves all parts of the newest weight too; no receiver asks for any other any more."""
        self._ranks.check_incarnation(request.incarnation)
        entry = self._entry(request.stream)
        if entry is None or entry.offer.id != request.id:
            return
        owners = {**entry.owners, request.address: request.incarnation.id}
        peers = [*(peer for peer in entry.offer.peers if peer != request.address), request.address]
        grown = OfferEntry(offer=entry.offer.model_copy(update={"peers": peers}), owners=owners)
        was_offered = self._is_offered(entry)
        self._context.store.commit([OFFERS.put(request.stream.value, grown)])
        if not was_offered:  # else no receiver waits for it: those that wait have it, and wait for a newer one
            self._context.notify(Topic.WEIGHTS)

    def _publish(self, gathering: Gathering, incarnation: Incarnation) -> None:
        offer = gathering.offer()
        if offer.stream is Stream.POLICY:
            # One id, independent of the last owner: a coordinator that died after this asks again for the same thing.
            call_id = f"publish/{gathering.epoch}/{offer.id}/{offer.layout}"
            self._context.admin.publish(incarnation, offer.id, call_id)
        entry = OfferEntry(offer=offer, owners={owned.part.address: owned.owner for owned in gathering.parts.values()})
        event = self._context.event(
            EventKind.PUBLISHED, incarnation.epoch, f"{offer.stream.value} {offer.id} can be pulled."
        )
        changes = [OFFERS.put(offer.stream.value, entry), PARTS.drop(offer.stream.value)]
        self._context.emit_once(f"published:{offer.stream.value}", f"{offer.id}", event, *changes)
        self._context.notify(Topic.WEIGHTS)

    def _is_history(self, held: OfferEntry, part: WeightPart) -> bool:
        """Whether a part brings nothing new: it is of an older weight than the newest, or of that one and known."""
        if held.offer.id != part.id:
            return is_newer(held.offer.id, part.id) and self._epochs.current.is_alive(held.offer.id)
        return any((known.owner, known.digest) == (part.address, part.digest) for known in held.offer.parts)

    def _all_live(self, gathering: Gathering) -> bool:
        """A weight whose owner died before it was whole stays invisible: no source would serve that part."""
        living = self._ranks.living()
        return all(owned.owner in living for owned in gathering.parts.values())

    def _is_offered(self, entry: OfferEntry) -> bool:
        """Whether the weight is alive and every part of it has a source whose incarnation is not over."""
        if not self._epochs.current.is_alive(entry.offer.id):
            return False
        living = self._ranks.living()
        return all(_owner(entry, part) in living for part in entry.offer.parts) or any(
            entry.owners[peer] in living for peer in entry.offer.peers
        )

    def _gathering(self, stream: Stream) -> Gathering | None:
        return self._context.store.get(PARTS, stream.value)

    def _entry(self, stream: Stream) -> OfferEntry | None:
        return self._context.store.get(OFFERS, stream.value)


def _owner(entry: OfferEntry, part: OfferedPart) -> str:
    """The incarnation that staged a part."""
    assert part.owner is not None, "what is stored names every owner"
    return entry.owners[part.owner]
