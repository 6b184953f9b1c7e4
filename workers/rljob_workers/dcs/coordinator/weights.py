"""Which weights exist and who serves them.

Called by the coordinator in its thread. Keeps the newest weight of each stream; never touches bytes.
"""

from __future__ import annotations

from rljob_api.wire.identity import WeightId
from rljob_api.wire.observation import EventKind
from rljob_api.wire.weights import PublishRequest, SourceRequest, Stream, WeightOffer
from rljob_workers.dcs.coordinator.context import CoordinatorContext
from rljob_workers.dcs.coordinator.epochs import Epochs
from rljob_workers.dcs.coordinator.notifier import Topic
from rljob_workers.dcs.coordinator.pods import Pods
from rljob_workers.dcs.coordinator.records import OFFERS, OfferEntry
from rljob_workers.dcs.coordinator.refusals import dead


def is_newer(weight: WeightId, than: WeightId) -> bool:
    """Whether a weight comes after another: a later lineage first, then a later version."""
    return (weight.lineage, weight.version) > (than.lineage, than.version)


class Weights:
    """Offers."""

    def __init__(self, context: CoordinatorContext, epochs: Epochs, pods: Pods) -> None:
        self._context = context
        self._epochs = epochs
        self._pods = pods

    def newest(self, stream: Stream) -> WeightOffer | None:
        """The newest weight that is alive, with the sources whose lives are not over; None without any."""
        entry = self._entry(stream)
        if entry is None or not self._epochs.current.is_alive(entry.offer.id):
            return None
        living = self._pods.living()
        sources = [address for address in entry.offer.sources if entry.owners[address] in living]
        return entry.offer.model_copy(update={"sources": sources}) if sources else None

    def published(self) -> WeightId | None:
        """The newest policy weight."""
        offer = self.newest(Stream.POLICY)
        return None if offer is None else offer.id

    def publish(self, request: PublishRequest) -> None:
        """Takes a weight in; for Policy the queue agrees first. The same weight twice is one."""
        self._pods.check_life(request.life)
        offer = request.offer
        if not self._epochs.current.is_alive(offer.id):
            raise dead(
                f"{offer.id} of {offer.stream.value}: its lineage was left before this version. Do not offer it."
            )
        if offer.stream is Stream.POLICY:
            self._context.admin.publish(request.life, offer.id, request.call_id)
        held = self.newest(offer.stream)
        if held is not None and is_newer(held.id, offer.id):
            return  # a late retry: what it tells is history
        incarnation = request.life.incarnation
        entry = OfferEntry(offer=offer, owners=dict.fromkeys(offer.sources, incarnation))
        epoch = request.life.epoch
        event = self._context.event(EventKind.PUBLISHED, epoch, f"{offer.stream.value} {offer.id} can be pulled.")
        change = OFFERS.put(offer.stream.value, entry)
        self._context.tell_once(f"published:{offer.stream.value}", f"{offer.id}", event, change)
        self._context.notify(Topic.WEIGHTS)

    def add_source(self, request: SourceRequest) -> None:
        """A receiver serves the newest weight too; about any other weight nobody asks any more."""
        self._pods.check_life(request.life)
        entry = self._entry(request.stream)
        if entry is None or entry.offer.id != request.id:
            return
        owners = {**entry.owners, request.address: request.life.incarnation}
        sources = [*(source for source in entry.offer.sources if source != request.address), request.address]
        grown = OfferEntry(offer=entry.offer.model_copy(update={"sources": sources}), owners=owners)
        self._context.store.commit([OFFERS.put(request.stream.value, grown)])
        self._context.notify(Topic.WEIGHTS)

    def _entry(self, stream: Stream) -> OfferEntry | None:
        return self._context.store.get(OFFERS, stream.value)
