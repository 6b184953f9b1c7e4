"""Names of decisions: derived from what was decided, so that a decision taken twice has one name."""

import hashlib
from collections.abc import Iterable

from rljob_api.names import Epoch


def decision_id(epoch: Epoch, reason: str, causes: Iterable[str]) -> str:
    """At most 64 characters; the same epoch, reason and causes (in any order) give the same id."""
    text = "\n".join([reason, *sorted(causes)])
    return f"e{epoch}-{hashlib.sha256(text.encode()).hexdigest()[:20]}"
