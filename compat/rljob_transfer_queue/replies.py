"""Answers of the control plane as batches. Pure; for `session`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rljob_transfer_queue.metadata import BatchMeta
from rljob_transfer_queue.rows import Places, parse_places, unpack_documents, unpack_runs
from rljob_transfer_queue.schema import placeholder_schema, schema_of_places
from rljob_transfer_queue.values import decode_document


def document_of(packed: bytes) -> dict[str, Any]:
    """The metadata of a row."""
    return decode_document(packed) if packed else {}


def parse_batch(partition: str, reply: Sequence[bytes], fields: Sequence[str]) -> BatchMeta:
    """From [rows, documents, entries of each field, chunk ids, chunk lines...]."""
    places = parse_places(fields, reply[2:])
    return make_batch(partition, unpack_runs(reply[0]), unpack_documents(reply[1]), places, fields)


def parse_keyed(partition: str, reply: Sequence[Any]) -> BatchMeta:
    """From [number of fields, their names, then as in `_parsed`]."""
    if not reply:
        return BatchMeta.empty()
    first = 1 + int(reply[0])
    return parse_batch(partition, reply[first:], [name.decode() for name in reply[1:first]])


def make_batch(
    partition: str,
    numbers: Sequence[int],
    documents: Sequence[bytes],
    places: Mapping[str, Places],
    fields: Sequence[str],
    *,
    placeholders: bool = False,
) -> BatchMeta:
    """Rows are ready that have every field which any row of the batch has."""
    schemas = {name: schema for name, each in places.items() if (schema := schema_of_places(each)) is not None}
    if placeholders:
        schemas |= {name: placeholder_schema() for name in fields if name not in schemas}
    ready = np.full(len(numbers), bool(schemas) and not placeholders)
    for name in schemas:
        ready &= places[name].kinds != 0 if name in places else False
    return BatchMeta(
        numbers,
        [partition] * len(numbers),
        schemas,
        ready,
        custom_meta=[document_of(document) for document in documents],
        places={name: each for name, each in places.items() if name in schemas},
    )
