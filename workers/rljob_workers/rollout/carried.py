"""What is carried of samples that were interrupted: as many tokens as may be, and a group's as bytes.

Pure; for the stage that goes on with samples and for what saves them. No pickle: fixed records, sealed by a checksum.
Bytes that were damaged, or are of another prompt, are nothing to go on with.

    offset  size    what
    0       4       magic `RLPG`
    4       1       format version (2)
    5       3       zero
    8       4       samples
    12      4       zero
    16      8       digest of prompt and sampling
    24      12 n    of each sample: finish reason (ABORT: it goes on), tokens, spans
            4 t     tokens, i32, sample after sample
            4 t     log-probs, f32
            16 s    spans: lineage, version, start, end, i32
    end     8       xxh3-64 of all before
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import xxhash

from rljob_api.names import Lineage, WeightVersion
from rljob_api.wire.identity import WeightId
from rljob_workers.engines.base import FINISH_CODES, FinishReason, Sample, SamplingParams, VersionSpan


def beginning(sample: Sample, num_tokens: int) -> Sample:
    """Its first tokens; it goes on where some were cut."""
    if len(sample.output_ids) <= num_tokens:
        return sample
    spans = tuple(replace(span, end=min(span.end, num_tokens)) for span in sample.spans if span.start < num_tokens)
    return Sample(sample.output_ids[:num_tokens], sample.log_probs[:num_tokens], FinishReason.ABORT, spans)


def sampling_digest(prompt_ids: Sequence[int], params: SamplingParams) -> int:
    """Of what a sample's tokens are drawn for and by, but weights and seed: others are not carried on by it."""
    by = (
        *(params.temperature, params.top_p, params.top_k, params.min_p),
        *(params.max_new_tokens, params.stop_token_ids, params.stop),
    )
    return xxhash.xxh3_64_intdigest(repr((list(prompt_ids), by, params.num_samples)).encode())


_HEAD = struct.Struct("<4sB3xI4xQ")


_SEAL = struct.Struct("<Q")


_MAGIC, _VERSION = b"RLPG", 2


_FINISH = {code: FinishReason(name) for name, code in FINISH_CODES.items()}


def pack_group(samples: Sequence[Sample], digest: int) -> bytes:
    """All samples of a group, those that have nothing among them."""
    table = [(FINISH_CODES[one.finish_reason], len(one.output_ids), len(one.spans)) for one in samples]
    spans = [(span.weight.lineage, span.weight.version, span.start, span.end) for one in samples for span in one.spans]
    body = b"".join(
        (
            _HEAD.pack(_MAGIC, _VERSION, len(samples), digest),
            np.array(table, "<u4").tobytes(),
            _flat((one.output_ids for one in samples), "<i4"),
            _flat((one.log_probs for one in samples), "<f4"),
            np.array(spans, "<i4").tobytes(),
        )
    )
    return body + _SEAL.pack(xxhash.xxh3_64_intdigest(body))


def _flat(parts: Iterable[Sequence[int] | Sequence[float]], dtype: str) -> bytes:
    return b"".join(np.array(part, dtype).tobytes() for part in parts)


def unpack_group(data: bytes, num_samples: int, digest: int) -> tuple[Sample, ...]:
    """The reverse of `pack_group`. ValueError for bytes that it did not write, or not for this digest."""
    if len(data) < _HEAD.size + _SEAL.size:
        raise ValueError(f"{len(data)} bytes are no samples")
    body, seal = data[: -_SEAL.size], data[-_SEAL.size :]
    magic, version, count, of = _HEAD.unpack_from(body)
    if (magic, version, count, of) != (_MAGIC, _VERSION, num_samples, digest):
        raise ValueError(f"{count} samples of {of:x} in the form {magic!r} {version}, wanted are {num_samples}")
    if _SEAL.pack(xxhash.xxh3_64_intdigest(body)) != seal:
        raise ValueError("the samples do not match their checksum")
    table = np.frombuffer(body, "<u4", 3 * count, _HEAD.size).reshape(count, 3).tolist()
    if unknown := {finish for finish, _, _ in table} - _FINISH.keys():
        raise ValueError(f"the samples have the finish reasons {sorted(unknown)}, which nothing writes")
    num_tokens = sum(tokens for _, tokens, _ in table)
    at = _HEAD.size + 12 * count
    ids = np.frombuffer(body, "<i4", num_tokens, at).tolist()
    log_probs = np.frombuffer(body, "<f4", num_tokens, at + 4 * num_tokens).tolist()
    spans = np.frombuffer(body, "<i4", -1, at + 8 * num_tokens).reshape(-1, 4).tolist()
    samples, token, span = [], 0, 0
    for finish, tokens, num_spans in table:
        samples.append(
            Sample(
                ids[token : token + tokens],
                log_probs[token : token + tokens],
                _FINISH[finish],
                tuple(_span(*values) for values in spans[span : span + num_spans]),
            )
        )
        token, span = token + tokens, span + num_spans
    return tuple(samples)


def _span(lineage: int, version: int, start: int, end: int) -> VersionSpan:
    return VersionSpan(WeightId(lineage=Lineage(lineage), version=WeightVersion(version)), start, end)
