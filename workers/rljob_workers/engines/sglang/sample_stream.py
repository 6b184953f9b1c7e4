"""From the events of one streamed sample to the sample. Pure.

building = SampleBuilder(incremental=True)
for event in events:
    progress(building.add(event))
sample = building.sample()
"""

from __future__ import annotations

from typing import Any

from rljob_workers.engines.base import FinishReason, Sample, VersionSpan
from rljob_workers.engines.errors import EngineGone, EngineRefused
from rljob_workers.engines.sglang.weight_labels import weight_of

_BAD_REQUEST = 400


class SampleBuilder:
    """Takes events in their order."""

    def __init__(self, *, incremental: bool) -> None:
        """`incremental`: each event has the tokens that are new (the flag that we start servers with), and not all."""
        self._incremental = incremental
        self._tokens: list[int] = []
        self._log_probs: list[float] = []
        self._last: dict[str, Any] = {}

    def add(self, event: dict[str, Any]) -> int:
        """Takes one; returns how many tokens it is longer now."""
        before = len(self._tokens)
        meta = self._last = event["meta_info"]
        tokens = event.get("output_ids") or []
        log_probs = [value for value, *_ in meta.get("output_token_logprobs") or ()]
        if self._incremental:
            self._tokens.extend(tokens)
            self._log_probs.extend(log_probs)
        else:
            self._tokens, self._log_probs = tokens, log_probs
        return len(self._tokens) - before

    def sample(self) -> Sample:
        """The whole; EngineGone where it never ended, EngineRefused where what made it has no name."""
        reason = self._last.get("finish_reason")
        if reason is None:
            raise EngineGone("The engine ended a sample's stream without a reason: the server is dying.")
        if reason.get("status_code") == _BAD_REQUEST:
            raise EngineRefused(f"The engine refused a sample: {reason.get('message')}")
        if len(self._log_probs) != len(self._tokens):
            raise EngineGone(
                f"The engine answered {len(self._log_probs)} log-probs for {len(self._tokens)} tokens. None counts."
            )
        return Sample(self._tokens, self._log_probs, FinishReason(reason["type"]), self._spans())

    def _spans(self) -> tuple[VersionSpan, ...]:
        given = [span for span in self._last.get("weight_versions") or () if span["end"] > span["start"]]
        spans = []
        for span in given:
            weight = weight_of(span["version"])
            if weight is None:
                raise EngineRefused(
                    f"The engine made tokens with weights called {span['version']!r}. Load some that have a name."
                )
            spans.append(VersionSpan(weight, span["start"], span["end"]))
        self._require_no_gap(spans)
        return tuple(spans)

    def _require_no_gap(self, spans: list[VersionSpan]) -> None:
        starts = [0, *(span.end for span in spans)]
        if [*(span.start for span in spans), len(self._tokens)] != starts:
            raise EngineRefused(
                f"The engine does not say which weights made each of the {len(self._tokens)} tokens of a sample (its "
                f"weight_versions: {self._last.get('weight_versions')}). Use SGLang 0.5.23."
            )
