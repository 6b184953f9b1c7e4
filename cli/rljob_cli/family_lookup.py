"""Whether the trainer computes the model of a folder right: by the table, or by a proof where its family is not there.

A proof is made by a process with torch, in seconds, once for a config and the versions that are installed; what was
found is read from the user's cache. Where torch is not installed, or the process fails, the workers find out.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

from rljob_api.model_files.families import (
    EXIT_NOT_PROVEN,
    FamilyProof,
    NotProven,
    family_problem,
    kept_proof,
    needs_proof,
)
from rljob_cli.findings import Finding, problem, unchecked
from rljob_cli.json_text import parsed

_PROOF = "rljob_workers.trainers.fsdp.proof"
_LONGEST_SECONDS = 300
"""For the proof, imports included, on a machine that has much else to do."""


def family_finding(file: Path, *, packing: bool, has_wide_head: bool) -> Finding | None:
    """None, too, for a config.json that is not whole: whoever builds the model names what is wrong."""
    try:
        described = parsed(file.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(described, dict):
        return None
    wrong = family_problem(described)
    if wrong is None and needs_proof(described):
        try:
            proof = kept_proof(described) or _made_proof(file, described)
        except NotProven as error:
            return unchecked(f"spec.{error}")
        except ValueError as error:
            return problem(f"spec.{error}")
        if proof is not None:
            wrong = proof.problem(described, packing=packing, has_wide_head=has_wide_head)
    return None if wrong is None else problem(f"spec.{wrong}")


def _made_proof(file: Path, described: Mapping[str, Any]) -> FamilyProof | None:
    """By a process; None without its libraries. ValueError with its sentence, NotProven where it may be tried again."""
    if find_spec("torch") is None or find_spec("transformers") is None:
        return None
    command = [sys.executable, "-m", _PROOF, str(file)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_LONGEST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise NotProven.now(described, f"it took longer than {_LONGEST_SECONDS} s") from None
    if done.returncode == 0:
        return FamilyProof(**orjson.loads(done.stdout.splitlines()[-1]))
    last = (done.stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
    if done.returncode == EXIT_NOT_PROVEN:
        raise NotProven(last)
    if last.startswith("model.path: "):
        raise ValueError(last)
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    raise NotProven.now(described, f"its process ended with {how}: {last}")
