"""What a SGLang server is and can do, as it says itself; one that lacks what we need is refused by name.

Asked once per life of a server. Versions differ in endpoints and in fields, so that `/openapi.json` is looked at and
not a number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_workers.engines.errors import EngineRefused
from rljob_workers.engines.sglang.connection import Connection
from rljob_workers.engines.sglang.shapes import Shapes, model_shapes

PATHS = (
    "/abort_request",
    "/continue_generation",
    "/flush_cache",
    "/generate",
    "/model_info",
    "/pause_generation",
    "/update_weight_version",
    "/update_weights_from_disk",
)
FIELDS = {
    "GenerateReqInput": ("extra_key", "input_ids", "logprob_start_len", "return_logprob", "stream"),
    "UpdateWeightFromDiskReqInput": ("flush_cache", "load_format", "model_path"),
    "UpdateWeightVersionReqInput": ("abort_all_requests", "new_version"),
}
PAUSE_MODES = ("in_place", "retract")
"""What this client asks for."""

_KEPT_FOR_OUTPUT = 5
"""Tokens of the context that SGLang lets no prompt have. It also makes one token less than the context has room for."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Of one life."""

    incremental: bool
    """A stream tells each token once."""
    seeds: bool
    """It heeds seeds: `--enable-deterministic-inference`."""
    capacity: int
    """Samples that it runs at once."""
    max_tokens: int
    """Of prompt and output together. More is cut off without a word."""
    vocab_size: int
    """A token beyond it kills the server."""
    shapes: Shapes
    """The tensors that an update must have. A wrong shape kills the server, a wrong name is passed over."""


async def ask_facts(connection: Connection, *, deadline: float) -> ServerFacts:
    """Asks; EngineRefused, with a sentence, where the server is none that this client can drive."""
    described = await connection.get("/openapi.json", deadline=deadline)
    info = await connection.get("/server_info", deadline=deadline)
    version = str(info.get("version"))
    lacking = missing_parts(described)
    if lacking:
        raise EngineRefused(
            f"The engine at {connection.url} is SGLang {version}, which lacks {', '.join(lacking)}. Use 0.5.23."
        )
    folder = Path(info["model_path"])  # of its start: what /model_info names is the folder of the last update
    state = info["internal_states"][0]
    return ServerFacts(
        incremental=bool(info.get("incremental_streaming_output")),
        seeds=bool(info.get("enable_deterministic_inference")),
        capacity=int(state.get("effective_max_running_requests_per_dp") or info["max_running_requests"]),
        max_tokens=int(info["max_req_input_len"]) + _KEPT_FOR_OUTPUT - 1,
        vocab_size=_vocabulary(folder, connection.url),
        shapes=model_shapes(folder),
    )


def missing_parts(described: Mapping[str, Any]) -> list[str]:
    """What of the endpoints and fields that we need `/openapi.json` does not know. Pure."""
    schemas = described.get("components", {}).get("schemas", {})
    missing = [path for path in PATHS if path not in described.get("paths", {})]
    for name, fields in FIELDS.items():
        known = schemas.get(name, {}).get("properties", {})
        missing += [f"{field} of {name}" for field in fields if field not in known]
    modes = schemas.get("PauseGenerationReqInput", {}).get("properties", {}).get("mode", {}).get("enum", ())
    return missing + [f"the pause mode {mode}" for mode in PAUSE_MODES if mode not in modes]


def _vocabulary(folder: Path, url: str) -> int:
    try:
        described = json.loads((folder / "config.json").read_bytes())
        return int(described.get("text_config", described)["vocab_size"])
    except (OSError, ValueError, KeyError) as error:
        raise EngineRefused(
            f"The engine at {url} serves the model of {folder}, whose config.json tells no vocabulary ({error}). A"
            " token beyond it would kill the server. Start it with a folder of this machine."
        ) from error
