"""Edits by other clients of what the operator has applied: which fields they took, who took them, and when to restore.

Server-side apply records the owner of each field. A client that changes or removes a field takes it out of the
operator's entry in `managedFields`, which watches of metadata report, so that no content is read to find an edit, also
by an operator that was not there. Fields, labels and annotations that the operator does not set stay what they are.
"""

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rljob_api.cluster import ANNOTATION_APPLIED, ANNOTATION_TEMPLATE
from rljob_operator.kube.api import FIELD_MANAGER, Json
from rljob_operator.kube.kinds import CLAIMS, SECRETS, WITH_PODS
from rljob_operator.kube.views import OwnedView, owned_fields
from rljob_operator.rate_limit import backoff_seconds

RESTORE_AGAIN_SECONDS = (1.0, 300.0)
"""Between two restorations of one object: doubled from the first to the longest, where another client insists."""


PEACE_SECONDS = 600.0
"""After so long without an edit the next one is restored at once again."""


READ_AT_START_SECONDS = 330.0
"""A container that read an edited object at its start may wait for so long until its kubelet starts it again: that
waits for up to five minutes."""


MOST_NAMED = 4
"""Fields in a sentence."""


_NOT_JUDGED = frozenset({CLAIMS.kind, SECRETS.kind})
"""A claim has patches of its own; the Secret is not applied."""


Name = tuple[str, str]
"""Kind and name."""


def lost_fields(manifest: Json, owned: Mapping[str, Any]) -> tuple[str, ...]:
    """Fields of a manifest that an entry of `managedFields` does not own. Pure."""
    metadata = {name: manifest["metadata"].get(name) for name in ("labels", "annotations")}
    judged = {"metadata": metadata, **{name: manifest[name] for name in manifest if name not in _IDENTITY}}
    if manifest["kind"] in WITH_PODS:  # replicas are scaled, by a patch of their own
        judged = {"metadata": metadata, "spec": {"template": manifest["spec"].get("template")}}
    return tuple(_lost(judged, owned or _NO_FIELD, ""))


_IDENTITY = ("apiVersion", "kind", "metadata")

_NO_FIELD: Mapping[str, Any] = {".": {}}
"""Below a field an empty entry means that it is owned as a whole; of a whole object, that nothing is."""


def _lost(wanted: object, owned: Mapping[str, Any], path: str) -> Iterator[str]:
    """A field without fields below is owned as a whole."""
    if not owned:
        return
    if isinstance(wanted, dict):
        for name, value in wanted.items():
            at = f"{path}.{name}" if path else name
            below = owned.get(f"f:{name}")
            if value is not None and below is None:
                yield _narrowed(value, at)
            elif value is not None and below is not None:
                yield from _lost(value, below, at)
    elif isinstance(wanted, list):
        for index, item in enumerate(wanted):
            below = _of_item(item, owned)
            if below is None:
                yield f"{path}[{index}]"
            else:
                yield from _lost(item, below, f"{path}[{index}]")


def _narrowed(value: object, path: str) -> str:
    """The only field below, where there is one: the API server has no entry of a map whose fields are all another's."""
    while isinstance(value, dict) and len(value) == 1:
        [(name, value)] = value.items()
        path = f"{path}.{name}"
    return path


def _of_item(item: object, owned: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The owned part of an item of a list whose items have keys; a key that the item omits has its default."""
    for name, below in owned.items():
        kind, _, text = name.partition(":")
        if kind == "v" and json.loads(text) == item:
            return {}
        if kind == "k" and isinstance(item, dict):
            keys: dict[str, Any] = json.loads(text)
            if all(item.get(key, value) == value for key, value in keys.items()):
                found: Mapping[str, Any] = below
                return found
    return None


def taken_by(manifest: Json, lost: Collection[str], managed: Sequence[Json]) -> list[str]:
    """Field managers that own now what the operator has lost; none where fields were removed. Pure."""
    found = [
        entry["manager"]
        for entry in managed
        if not entry.get("subresource") and set(lost) - set(lost_fields(manifest, entry.get("fieldsV1") or {}))
    ]
    return list(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class Restored:
    """An object that another client had changed or deleted and that is as the operator made it again."""

    kind: str
    name: str
    fields: tuple[str, ...] = ()
    """Empty: it was deleted."""
    managers: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.fields:
            return f"{self.kind} {self.name} was deleted by another client; it has been made again"
        more = f" and {len(self.fields) - MOST_NAMED} more" if len(self.fields) > MOST_NAMED else ""
        by = f" by {', '.join(self.managers)}" if self.managers else " by another client"
        return (
            f"{self.kind} {self.name} was changed{by}: {', '.join(self.fields[:MOST_NAMED])}{more}. It is restored, "
            "after each further edit later, up to every five minutes: change the RLJob instead"
        )


@dataclass(slots=True)
class _Left:
    """How the operator has left an object."""

    digest: str
    owned: str
    restored: int = 0
    restored_at: float = float("-inf")


@dataclass(slots=True)
class Edits:
    """Edits of one job's objects."""

    clock: Callable[[], float] = time.monotonic
    _left: dict[Name, _Left] = field(default_factory=dict)

    def lost(self, manifest: Json, view: OwnedView) -> tuple[str, ...]:
        """Fields of an object of this manifest that another client has taken; one that is whole is remembered."""
        name, digest = name_of(manifest), _digest(manifest)
        left = self._left.get(name)
        if view.kind in _NOT_JUDGED or not (view.applied == digest or _has_template(manifest, view)):
            return (_APPLIED,) if left is not None and left.digest == digest != view.applied else ()
        if left is not None and left.owned == view.owned:
            return ()
        found = lost_fields(manifest, owned_fields(view))
        if not found:
            self._left.setdefault(name, _Left(view.applied, "")).owned = view.owned
        return found

    def waits(self, manifest: Json) -> bool:
        """Whether it is too early to restore it again."""
        left = self._left.get(name_of(manifest))
        return left is not None and self.clock() < self._due(left)

    @property
    def due_in(self) -> float | None:
        """In how many seconds the first object that was edited again may be restored; None: all may be at once."""
        waits = (self._due(left) - self.clock() for left in self._left.values())
        return min((seconds for seconds in waits if seconds > 0), default=None)

    def was_there(self, name: Name) -> bool:
        """Whether this operator has made it, or found it, and has not deleted it."""
        return name in self._left

    def wrote(self, manifest: Json, view: OwnedView) -> None:
        """The operator has applied it."""
        left = self._left.setdefault(name_of(manifest), _Left("", ""))
        left.digest, left.owned = _digest(manifest), view.owned

    def restored(self, name: Name) -> None:
        """It has been restored now."""
        left, now = self._left[name], self.clock()
        left.restored = 1 if now - left.restored_at > PEACE_SECONDS else left.restored + 1
        left.restored_at = now

    def deleted(self, name: Name) -> None:
        """The operator has deleted it."""
        self._left.pop(name, None)

    def may_have_been_read(self, name: Name) -> bool:
        """Whether a container that starts again may have read it as another client had left it."""
        left = self._left.get(name)
        return left is not None and self.clock() - left.restored_at < READ_AT_START_SECONDS

    def _due(self, left: _Left) -> float:
        if not left.restored or self.clock() - left.restored_at > PEACE_SECONDS:
            return float("-inf")
        return left.restored_at + backoff_seconds(left.restored, *RESTORE_AGAIN_SECONDS)


_APPLIED = f"metadata.annotations.{ANNOTATION_APPLIED}"


def name_of(manifest: Json) -> Name:
    """By which an object of a job is known."""
    return manifest["kind"], manifest["metadata"]["name"]


def is_own(managers: Sequence[str]) -> bool:
    """Whether the fields are the operator's own, as it wrote them in another way (a release before did)."""
    return bool(managers) and all(manager == FIELD_MANAGER for manager in managers)


def _digest(manifest: Json) -> str:
    digest: str = manifest["metadata"]["annotations"][ANNOTATION_APPLIED]
    return digest


def _has_template(manifest: Json, view: OwnedView) -> bool:
    """Whether a set has this manifest's template, and differs in its replicas or by another version's fields."""
    if manifest["kind"] not in WITH_PODS or not view.template:
        return False
    template = manifest["spec"].get("template") or {}
    return bool(template) and template["metadata"]["annotations"][ANNOTATION_TEMPLATE] == view.template
