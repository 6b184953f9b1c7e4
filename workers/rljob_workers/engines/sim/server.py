"""Entry of the simulated engine's server: called by the launcher in a forked child, returns at SIGTERM."""

from __future__ import annotations

import socket
import sys

from rljob_api.simulation import SimulationSpec
from rljob_api.spec import ModelSpec
from rljob_workers.engines.sim.scheduler import SimScheduler
from rljob_workers.engines.torch_engine.commands import EngineCommands
from rljob_workers.engines.torch_engine.continuous_batching import Room
from rljob_workers.engines.torch_engine.http_api import ServedModel
from rljob_workers.engines.torch_engine.scheduler import Limits
from rljob_workers.engines.torch_engine.server import TokenizerCodec, serve_commands
from rljob_workers.models.building import described_config
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.simulation.pace import SimulatedPace
from rljob_workers.simulation.policy import read_simulated


def serve(listener: socket.socket, model: ModelSpec, simulation: SimulationSpec | None, incarnation: str) -> None:
    """Serves a policy of the model's vocabulary and positions on the listening socket."""
    tokenizer = build_tokenizer(model)
    described = described_config(model, tokenizer)
    served = ServedModel(
        name="simulated",
        vocab_size=described["vocab_size"],
        max_positions=described["max_position_embeddings"],
        dtype=model.dtype.value,
        codec=TokenizerCodec(tokenizer),
        eos_token_ids=frozenset({tokenizer.eos_token_id}),
    )
    room = Room(served.vocab_size, served.max_positions, Limits().max_running_samples, max_cells=sys.maxsize)
    settings = simulation or SimulationSpec()
    scheduler = SimScheduler(room, SimulatedPace(settings.generation, settings.speed))
    serve_commands(listener, EngineCommands(scheduler, read_simulated), served, incarnation)
