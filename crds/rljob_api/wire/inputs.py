"""Messages about what a run reads: files by the field that names them, and what is in them."""

from rljob_api.base import WireModel
from rljob_api.wire.identity import Incarnation

FILE = "inputs.json"
"""Beside the record of checkpoints: what the run has read last, by role and field."""


class FileContent(WireModel):
    """The content of a file."""

    num_bytes: int
    digest: str
    """xxh3-128 hex of all bytes; `parts` where only these were read."""
    parts: str | None = None
    """The digest of parts at fixed places. None: the file is so small that it is always read whole."""
    rows: int | None = None
    """None: it has none, or they were not counted."""

    def has_bytes_of(self, other: "FileContent") -> bool:
        """Whether both have the same bytes, as far as both were read."""
        if self.digest == other.digest:
            return True
        in_parts = self.parts is not None and (self.digest == self.parts or other.digest == other.parts)
        return in_parts and self.parts == other.parts


class InputNote(WireModel):
    """The files that a rank reads for one field."""

    field: str
    """In the manifest's spelling, with `spec.`; several where functions lie in one folder."""
    path: str
    """As the spec has it. Another one is another input, of which the change of the spec says enough."""
    stamp: str
    """A digest of names, sizes and times: the same one means the same content."""
    files: dict[str, FileContent] | None = None
    """Contents by name below the path. None: `stamp` may be known already."""
    may_change: bool = True
    """Whether the job may go on with another content."""


class InputReport(WireModel):
    """`POST /v1/inputs`, by the first rank of a role before it works."""

    incarnation: Incarnation
    inputs: list[InputNote]


class InputAnswer(WireModel):
    """The part of a report that is not known."""

    wanted: list[str] = []
    """Fields of notes without files whose stamps are not known: the rank reads them, and reports again."""
    refusal: str | None = None
    """Why the job cannot go on with what the rank would read."""


class KnownInputs(WireModel):
    """The file `inputs.json`."""

    inputs: dict[str, InputNote] = {}
    """ROLE/FIELD -> what this role has read for the field."""
