"""Names of weights, as tests write them."""

from rljob_api.names import Lineage, WeightVersion
from rljob_api.wire.identity import WeightId


def weight(version: int, lineage: int = 1) -> WeightId:
    """A version of a lineage."""
    return WeightId(lineage=Lineage(lineage), version=WeightVersion(version))
