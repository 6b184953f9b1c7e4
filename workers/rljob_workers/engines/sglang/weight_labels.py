"""A weight's name as SGLang carries it: one string, `lineage:version`. Pure."""

from __future__ import annotations

from rljob_api.names import Lineage, WeightVersion
from rljob_api.wire.identity import WeightId

NOTHING = "none"
"""What a server is called while its weights are replaced: whoever asks it later knows that they do not count."""


def label_of(weight: WeightId) -> str:
    """As it is given to a server."""
    return f"{weight.lineage}:{weight.version}"


def weight_of(label: object) -> WeightId | None:
    """None for all that we did not give: a server begins with `default`."""
    lineage, colon, version = str(label).partition(":")
    if not colon or not lineage.isdecimal() or not version.isdecimal():
        return None
    return WeightId(lineage=Lineage(int(lineage)), version=WeightVersion(int(version)))
