"""The spec of a job as the cache keeps it: compressed text, or only what is wrong with it.

A cluster may have thousands of jobs, and most of them have no turn for minutes. A spec that is too large, or nested too
deeply, is not kept at all: its job is refused, and costs no more than any other. Pure.
"""

import zlib
from dataclasses import dataclass
from typing import Any

import orjson

from rljob_api.spec_size import MAX_SPEC_BYTES, size_problem

TOO_DEEP = "spec: is nested too deeply, by more than 200 levels, in one of its templates. Leave the levels out."


BEYOND_64_BITS = "spec: has an integer of more than 64 bits in one of its templates. Give a smaller one."


_FAST = 1
"""Level of compression: names of fields repeat, and more levels save a few percent."""


@dataclass(frozen=True, slots=True)
class StoredSpec:
    """One generation of a job's spec."""

    managed_by: object
    """spec.managedBy, whatever it is."""
    num_bytes: int
    """Length of its JSON."""
    packed: bytes
    problem: str = ""
    """Why it is not kept."""

    @classmethod
    def of(cls, spec: dict[str, Any]) -> "StoredSpec":
        """As the API server has it."""
        managed_by = spec.get("managedBy")
        try:
            text = orjson.dumps(spec)
        except orjson.JSONEncodeError as error:  # the object was JSON, of which not all can be written again
            return cls(managed_by, 0, b"", TOO_DEEP if "Recursion" in str(error) else BEYOND_64_BITS)
        problem = size_problem(spec) if len(text) > MAX_SPEC_BYTES else None
        return cls(managed_by, len(text), b"" if problem else zlib.compress(text, _FAST), problem or "")

    def text(self) -> bytes:
        """The JSON of a spec that has no problem."""
        return zlib.decompress(self.packed)
