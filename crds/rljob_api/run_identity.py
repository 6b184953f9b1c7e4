"""The identity of a run: the fields that make its checkpoints what they are, whichever job trains it.

Pure. A claim that outlives its job carries the digest of them: a later job of the same digest trains on from the
checkpoints, one of another digest cannot, and is told the fields that differ.
"""

import hashlib
import json

from pydantic import ValidationError

from rljob_api.revision import REFUSED, RefusedChange, given, refused_changes, row_of
from rljob_api.spec import RLJobSpec

_NOT_OF_THE_RUN = frozenset({"managedBy", "transferQueue.redis.persistence", "checkpoint.volume.claimName"})
"""Fixed as long as a job exists, and nothing that checkpoints depend on: the control Redis goes with its job, and the
claim's name is how the run was found."""

FIELDS = tuple(row.field for row in REFUSED if row.field not in _NOT_OF_THE_RUN)
"""Rows of the table of changes (`revision.TABLE`)."""

_WISHES = {"suspend": False, "restart_request": None}
"""What was asked of one job at one time."""


def run_digest(spec: RLJobSpec) -> str:
    """Digest of what makes a run. Only values that differ from their defaults count, as in `revision`."""
    part = {field: value for field, value in given(spec) if row_of(field).field in FIELDS}
    return hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:12]


def differences(kept: RLJobSpec, wanted: RLJobSpec) -> list[RefusedChange]:
    """What makes them two runs: one change for each row that differs."""
    return [change for change in refused_changes(kept, wanted) if change.row.field in FIELDS]


def kept_spec(spec: RLJobSpec) -> str:
    """The spec as a claim keeps it: JSON of what was given, without the wishes of the day."""
    kept = spec.model_copy(update=_WISHES)
    return kept.model_dump_json(exclude_defaults=True)


def read_kept_spec(text: str) -> RLJobSpec | None:
    """The spec that a claim keeps; None where it keeps none that this version knows."""
    try:
        return RLJobSpec.model_validate_json(text)
    except ValidationError:
        return None
