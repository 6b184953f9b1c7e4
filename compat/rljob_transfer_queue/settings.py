"""What `init` takes: which servers, which sampler, whether to wait. Knows no connection.

Configurations written for the package TransferQueue are taken as they are where their settings have a meaning here;
what would choose something that is not there is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from rljob_transfer_queue.samplers import (
    BaseSampler,
    SequentialSampler,
    make_sampler,
    sampler_from_settings,
    sampler_settings,
)

ENDPOINTS_VARIABLE = "RLJOB_ENDPOINTS"
"""Names a JSON file with `controlRedis` and `storageUnits`, as a job's ranks have it."""
EXPECTED_VARIABLE = "TQ_PRE_ALLOC_SAMPLE_NUM"
"""So many rows of each new partition count as still to be produced."""
TIMEOUT_VARIABLE = "TQ_CONTROLLER_GET_METADATA_TIMEOUT"
"""Seconds that `get_meta` waits for enough rows without polling_mode."""
WAIT_SECONDS = 5.0
_TOP = frozenset({"control_redis", "storage_units", "controller", "backend", "metrics"})
_CONTROLLER = frozenset({"sampler", "polling_mode", "zmq_info"})


@dataclass(frozen=True, slots=True)
class Servers:
    """Where the rows are."""

    control_redis: str
    """redis://:password@host:port/0 or unix://:password@/path."""
    storage_units: tuple[str, ...]
    """The same; every client names the same ones in the same order, and is refused where it does not."""


@dataclass(frozen=True, slots=True)
class Settings:
    """In force for all clients of the queue; set by the first `init`."""

    sampler: BaseSampler
    polling: bool
    """`get_meta` answers an empty batch instead of waiting."""

    def dump(self) -> bytes:
        """For the control plane."""
        return orjson.dumps(
            {"sampler": sampler_settings(self.sampler), "polling": self.polling}, option=orjson.OPT_SORT_KEYS
        )

    @classmethod
    def load(cls, text: bytes) -> Settings:
        """The reverse."""
        read = orjson.loads(text)
        return cls(sampler_from_settings(read["sampler"]), read["polling"])


DEFAULTS = Settings(SequentialSampler(), polling=False)


def find_servers(config: Mapping[str, Any] | None, environ: Mapping[str, str]) -> Servers:
    """From `config`, else from the file that RLJOB_ENDPOINTS names."""
    given = config or {}
    if "control_redis" in given or "storage_units" in given:
        return _servers(given.get("control_redis"), given.get("storage_units"), "init", "control_redis, storage_units")
    path = environ.get(ENDPOINTS_VARIABLE)
    if not path:
        raise ValueError(
            "init: no servers are named. Pass control_redis and storage_units (URLs such as redis://:password@host:6379/0),"
            f" or set {ENDPOINTS_VARIABLE} to a JSON file with controlRedis and storageUnits."
        )
    try:
        read = orjson.loads(Path(path).read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise ValueError(f"{ENDPOINTS_VARIABLE}: {path} cannot be read as JSON ({error}).") from error
    if not isinstance(read, dict):
        raise ValueError(f"{ENDPOINTS_VARIABLE}: {path} holds no JSON object with controlRedis and storageUnits.")
    return _servers(read.get("controlRedis"), read.get("storageUnits"), path, "controlRedis, storageUnits")


def _servers(control: object, units: object, where: str, names: str) -> Servers:
    if not isinstance(control, str) or not control:
        raise ValueError(
            f"{where}: of {names}, the first is {control!r}. Give the URL of a Redis: redis://host:6379/0."
        )
    listed = list(units) if isinstance(units, Sequence) and not isinstance(units, str) else []
    if not listed or not all(isinstance(unit, str) for unit in listed):
        raise ValueError(
            f"{where}: of {names}, the second is {units!r}. Give a list of URLs, one for each storage Redis."
        )
    return Servers(control, tuple(listed))


def read_settings(config: Mapping[str, Any] | None) -> Settings | None:
    """None where `config` names none: then those in force count."""
    given = config or {}
    unknown = sorted(set(given) - _TOP)
    if unknown:
        raise ValueError(f"init: {unknown[0]} is no setting of this queue. Known are {', '.join(sorted(_TOP))}.")
    _refuse_backend(given.get("backend") or {})
    if (given.get("metrics") or {}).get("enabled"):
        raise ValueError("init: metrics.enabled is not there. Scrape the Redis servers, or run a job of rljob.")
    controller = given.get("controller") or {}
    unknown = sorted(set(controller) - _CONTROLLER)
    if unknown:
        raise ValueError(f"init: controller.{unknown[0]} is no setting of this queue. Known are sampler, polling_mode.")
    if "sampler" not in controller and "polling_mode" not in controller:
        return None
    polling = controller.get("polling_mode", False)
    if not isinstance(polling, bool):
        raise ValueError(f"init: controller.polling_mode is {polling!r}. Use True or False.")
    return Settings(make_sampler(controller.get("sampler", DEFAULTS.sampler)), polling)


def _refuse_backend(backend: Mapping[str, Any]) -> None:
    """Rows are in memory of the storage units, whose number and size are the servers' own."""
    name = backend.get("storage_backend", "SimpleStorage")
    if name != "SimpleStorage":
        raise ValueError(
            f"init: backend.storage_backend {name} is not there: rows lie in the Redis servers that storage_units"
            " names. Leave it out."
        )
    offload = (backend.get("SimpleStorage") or {}).get("ssd_offload") or {}
    if offload.get("enabled"):
        raise ValueError(
            "init: ssd_offload is not there: rows stay in memory. Leave it out, and give the storage units more"
            " maxmemory or name more of them."
        )


def expected_rows(environ: Mapping[str, str]) -> int:
    """From TQ_PRE_ALLOC_SAMPLE_NUM; 0 where it is not set."""
    text = environ.get(EXPECTED_VARIABLE, "0")
    if not text.isdecimal():
        raise ValueError(f"{EXPECTED_VARIABLE}: {text!r} is no number of rows.")
    return int(text)


def wait_seconds(environ: Mapping[str, str]) -> float:
    """From TQ_CONTROLLER_GET_METADATA_TIMEOUT; 5 where it is not set."""
    text = environ.get(TIMEOUT_VARIABLE, str(WAIT_SECONDS))
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{TIMEOUT_VARIABLE}: {text!r} is no number of seconds.") from None
