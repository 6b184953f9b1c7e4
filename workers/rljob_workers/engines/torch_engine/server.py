"""Entry of the engine server: called by the launcher in a forked child, returns when the server is told to end.

torch may be imported already, but no tensor was computed: threads are set here. Weights come over HTTP only.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING, Any

import torch
import uvicorn

from rljob_workers.devices import own_device
from rljob_workers.engines.torch_engine.commands import EngineCommands
from rljob_workers.engines.torch_engine.geometry import geometry_of
from rljob_workers.engines.torch_engine.http_api import HttpApi, ServedModel
from rljob_workers.engines.torch_engine.model_loop import ModelLoop
from rljob_workers.engines.torch_engine.scheduler import Limits, Scheduler
from rljob_workers.engines.torch_engine.weights import read_weights
from rljob_workers.models.building import build_config, torch_dtype
from rljob_workers.models.tokenizers import build_tokenizer, decode_tokens, encode_prompt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerBase

    from rljob_api.spec import Dtype, ModelSpec

_KEEP_ALIVE_SECONDS = 24 * 3600
"""Clients keep their connection between rollouts; one that the server closed first would look like a dead server."""
_GRACE_SECONDS = 1
"""After SIGTERM requests are not waited for: their tickets come back."""

_log = logging.getLogger(__name__)


class TokenizerCodec:
    """The tokenizer as the dialect's codec."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """See `TextCodec`."""
        return encode_prompt(self._tokenizer, text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """See `TextCodec`."""
        return decode_tokens(self._tokenizer, token_ids)


def serve(
    listener: socket.socket,
    model: ModelSpec,
    head_dtype: Dtype,
    incarnation: str,
    *,
    threads: int = 1,
    limits: Limits | None = None,
) -> None:
    """Serves on the listening socket until SIGTERM. ValueError where the model is none that the engine computes."""
    torch.set_num_threads(threads)
    tokenizer = build_tokenizer(model)
    config = build_config(model, tokenizer)
    device = own_device()
    geometry = geometry_of(config, torch_dtype(model.dtype), device, torch_dtype(head_dtype))
    served = ServedModel(
        name=model.path or "config",
        vocab_size=geometry.vocab_size,
        max_positions=geometry.max_positions,
        dtype=str(geometry.dtype).removeprefix("torch."),
        codec=TokenizerCodec(tokenizer),
        eos_token_ids=config.eos_token_ids | {tokenizer.eos_token_id},
    )
    scheduler = Scheduler(geometry, limits or Limits.on(device))
    _log.info("engine %s computes on %s with %d threads", incarnation, device, threads)
    serve_commands(listener, EngineCommands(scheduler, lambda path: read_weights(path, geometry)), served, incarnation)


def serve_commands(
    listener: socket.socket, commands: EngineCommands[Any], served: ServedModel, incarnation: str
) -> None:
    """Runs the model loop and the HTTP edge on the listening socket until SIGTERM."""
    loop = ModelLoop(commands)
    loop.start()
    app = HttpApi(loop, served, incarnation).app()
    settings = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    _log.info("engine %s serves on %s", incarnation, listener.getsockname())
    try:
        uvicorn.Server(settings).run(sockets=[_naming_its_protocol(listener)])
    finally:
        loop.stop()


def _naming_its_protocol(listener: socket.socket) -> socket.socket:
    """The same listening socket, as one from which asyncio turns off Nagle's delay on every connection.

    asyncio does so only where the socket's object says TCP, which an inherited one does not. Every reply would then
    wait 40 ms for an acknowledgement, since head and body are written one after the other.
    """
    if listener.family not in (socket.AF_INET, socket.AF_INET6):
        return listener
    return socket.socket(listener.family, listener.type, socket.IPPROTO_TCP, fileno=os.dup(listener.fileno()))
