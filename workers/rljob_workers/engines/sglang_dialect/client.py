"""The engine client: `Engine` over SGLang's HTTP dialect.

One batched request per `generate`. Thread-safe: each call takes its own connection. A reply counts only if the same
incarnation of the server made it that the client asked.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rljob_api.names import Lineage, WeightVersion
from rljob_api.wire.identity import WeightId
from rljob_workers.engines.base import Engine, Generation, SamplingParams
from rljob_workers.engines.errors import EngineError, EngineGone, EngineRefused
from rljob_workers.engines.sglang_dialect.replies import read_compact, read_samples
from rljob_workers.engines.sglang_dialect.transport import Reply, Transport

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_CONTROL_SECONDS = 60.0
"""For calls that the base gives no deadline: an engine that only just starts answers them from its backlog."""

_OURS = frozenset({"compact", "weight_versions", "lineage"})
"""Extensions that the torch engine names in its model info."""
_MODEL_INFO_PATHS = ("/get_model_info", "/model_info")
_SERVER_INFO_PATHS = ("/get_server_info", "/server_info")
"""Older and newer names: SGLang renamed them and will drop the older ones."""
_NOT_FOUND = 404


class _UnknownPath(EngineRefused):
    """This version of the server has no such path."""


@dataclass(frozen=True, slots=True)
class _ServerInfo:
    """What a server says about itself."""

    incarnation: str | None
    extensions: frozenset[str]
    held: WeightId | None


class SglangDialectEngine(Engine):
    """Client of one server.

    engine = SglangDialectEngine("http://127.0.0.1:30000")
    engine.update_weights(blob, weight, deadline=...)
    engine.generate(prompts, params, deadline=...)
    """

    def __init__(self, url: str) -> None:
        """Nothing is sent yet: the server may still be starting."""
        self._transport = Transport(url)
        self._lock = threading.Lock()
        self._known: _ServerInfo | None = None
        """Of the server that was last asked; its `held` may be outdated. Forgotten when another incarnation answers."""
        self._context_length: int | None = None

    def generate(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], *, deadline: float
    ) -> list[Generation]:
        """See `Engine.generate`."""
        asked = self._info(deadline)
        if asked.extensions >= _OURS:
            reply = self._ask(asked, "POST", "/generate", _compact_body(prompts, params), deadline)
            return read_compact(reply.body, [one.num_samples for one in params])
        return self._generate_without_extensions(asked, prompts, params, deadline)

    def _generate_without_extensions(
        self, asked: _ServerInfo, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], deadline: float
    ) -> list[Generation]:
        """A server without spans is asked what it holds before and after: between lie the versions of the reply."""
        before = self._ask_info(deadline).held
        reply = self._ask(asked, "POST", "/generate", _plain_body(prompts, params), deadline)
        after = self._ask_info(deadline).held
        if before is None or after is None:
            raise EngineRefused(f"The engine at {self._transport.url} holds no weight that has a name: load one first.")
        return read_samples(reply.body, [one.num_samples for one in params], before, after)

    def update_weights(self, blob: Path, weight: WeightId, *, deadline: float) -> None:
        """See `Engine.update_weights`. After an error the pause ends too: the server refuses by itself."""
        asked = self._info(deadline)
        self._control(asked, "/pause_generation", {"mode": "retract"}, deadline)
        try:
            self._control(asked, "/update_weights_from_disk", _update_body(blob, weight, asked), deadline)
        except EngineGone:
            raise
        except EngineError:
            # With time of its own: after a timeout the server must not stay paused.
            self._control(asked, "/continue_generation", {}, time.monotonic() + _CONTROL_SECONDS)
            raise
        self._control(asked, "/continue_generation", {}, deadline)

    def held(self) -> WeightId | None:
        """See `Engine.held`. Always asks the server: only so is a server noticed that came back empty."""
        return self._ask_info(time.monotonic() + _CONTROL_SECONDS).held

    def max_tokens(self) -> int:
        """See `Engine.max_tokens`."""
        if self._context_length is None:
            deadline = time.monotonic() + _CONTROL_SECONDS
            reply = self._ask_first(self._info(deadline), _SERVER_INFO_PATHS, deadline)
            length = reply.body.get("context_length") or reply.body.get("max_req_input_len")
            if length is None:
                raise EngineRefused(f"The engine at {self._transport.url} does not tell its context length.")
            self._context_length = int(length)
        return self._context_length

    def abort_all(self) -> None:
        """See `Engine.abort_all`. Also ends a pause that a rank left behind when it died."""
        deadline = time.monotonic() + _CONTROL_SECONDS
        asked = self._ask_info(deadline)
        # Paused first, so that nothing starts to run between the abort and the flush, which would be refused.
        self._control(asked, "/pause_generation", {"mode": "abort"}, deadline)
        self._control(asked, "/abort_request", {"abort_all": True}, deadline)
        self._control(asked, "/flush_cache", {}, deadline)
        self._control(asked, "/continue_generation", {}, deadline)

    def close(self) -> None:
        """Closes idle connections."""
        self._transport.close()

    def _control(self, asked: _ServerInfo, path: str, body: object, deadline: float) -> None:
        reply = self._ask(asked, "POST", path, body, deadline)
        if isinstance(reply.body, dict) and reply.body.get("success") is False:
            raise EngineRefused(f"POST {path} of the engine at {self._transport.url}: {reply.body.get('message')}")

    def _info(self, deadline: float) -> _ServerInfo:
        """What is known of the server; asks if nothing is."""
        with self._lock:
            known = self._known
        return known or self._ask_info(deadline)

    def _ask_info(self, deadline: float) -> _ServerInfo:
        info = _read_info(self._ask_first(None, _MODEL_INFO_PATHS, deadline))
        with self._lock:
            self._known = info
        return info

    def _ask_first(self, asked: _ServerInfo | None, paths: Sequence[str], deadline: float) -> Reply:
        """The first of several names of a question that this version of the server knows."""
        for path in paths[:-1]:
            try:
                return self._ask(asked, "GET", path, None, deadline)
            except _UnknownPath:
                continue
        return self._ask(asked, "GET", paths[-1], None, deadline)

    def _ask(self, asked: _ServerInfo | None, method: str, path: str, body: object, deadline: float) -> Reply:
        """One request to the server that `asked` describes (None: to whoever answers)."""
        try:
            reply = self._transport.request(method, path, body, deadline=deadline)
        except EngineGone:
            self._forget()
            raise
        if asked is not None and reply.incarnation != asked.incarnation:
            self._forget()
            raise EngineGone(
                f"The engine at {self._transport.url} is another one: incarnation {reply.incarnation} answered, "
                f"{asked.incarnation} was asked. Its reply does not count."
            )
        if reply.refusal is not None:
            raise (_UnknownPath if reply.status == _NOT_FOUND else EngineRefused)(reply.refusal)
        return reply

    def _forget(self) -> None:
        with self._lock:
            self._known = None


def _read_info(reply: Reply) -> _ServerInfo:
    version, lineage = reply.body.get("weight_version"), reply.body.get("lineage")
    return _ServerInfo(
        incarnation=reply.incarnation,
        extensions=frozenset(reply.body.get("extensions", ())),
        held=_read_weight(version, lineage),
    )


def _read_weight(version: object, lineage: object) -> WeightId | None:
    """`7` with a lineage beside it, or `lineage:version`; None for anything else (SGLang starts with `default`)."""
    before, _, number = str(version).rpartition(":")
    family = before or str(lineage)
    if not number.isdigit() or not family.isdigit():
        return None
    return WeightId(lineage=Lineage(int(family)), version=WeightVersion(int(number)))


def _update_body(blob: Path, weight: WeightId, asked: _ServerInfo) -> dict[str, Any]:
    if asked.extensions >= _OURS:
        return {"model_path": str(blob), "weight_version": str(weight.version), "lineage": weight.lineage}
    return {"model_path": str(blob), "weight_version": f"{weight.lineage}:{weight.version}"}


def _compact_body(prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> dict[str, Any]:
    return {
        "input_ids": [list(prompt) for prompt in prompts],
        "sampling_params": [_sampling_body(one, one.num_samples, one.seed) for one in params],
        "return_logprob": True,
        "compact": True,
    }


def _plain_body(prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> dict[str, Any]:
    """A prompt per sample: SGLang gives all `n` samples of one the same seed. Its prefix cache shares the work."""
    rows = [
        (prompt, one, index) for prompt, one in zip(prompts, params, strict=True) for index in range(one.num_samples)
    ]
    return {
        "input_ids": [list(prompt) for prompt, _, _ in rows],
        "sampling_params": [_sampling_body(one, 1, one.seed + index) for _, one, index in rows],
        "return_logprob": True,
    }


def _sampling_body(params: SamplingParams, num_samples: int, seed: int) -> dict[str, Any]:
    return {
        "n": num_samples,
        "sampling_seed": seed,
        "max_new_tokens": params.max_new_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k or -1,
        "stop_token_ids": list(params.stop_token_ids),
    }
