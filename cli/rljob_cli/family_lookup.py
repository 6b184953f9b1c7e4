"""Whether the trainer computes the model of a folder right: by the table, or by a proof where its family is not there.

A proof is made by a process with torch, in seconds, once for a config and the versions that are installed; what was
found is read from the user's cache. Where torch is not installed the workers find out.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import orjson

from rljob_api.families import family_problem
from rljob_api.family_proofs import FamilyProof, kept_proof, needs_proof
from rljob_cli.json_text import parsed

_PROOF = "rljob_workers.trainers.fsdp.proof"
_LONGEST_SECONDS = 300
"""For the proof, imports included, on a machine that has much else to do."""


def model_family_problem(file: Path, *, packing: bool) -> str | None:
    """A sentence, or None; for a config.json that is not whole, too: whoever builds the model names what is wrong."""
    try:
        described = parsed(file.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(described, dict):
        return None
    problem = family_problem(described)
    if problem is not None or not needs_proof(described):
        return None if problem is None else f"spec.{problem}"
    proof = kept_proof(described)
    if proof is None and find_spec("torch") is not None and find_spec("transformers") is not None:
        try:
            proof = _made_proof(file)
        except ValueError as error:
            return f"spec.{error}"
    problem = None if proof is None else proof.problem(described, packing=packing)
    return None if problem is None else f"spec.{problem}"


def _made_proof(file: Path) -> FamilyProof | None:
    """By a process; ValueError with its sentence. None where it took too long or died: the workers find out."""
    command = [sys.executable, "-m", _PROOF, str(file)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_LONGEST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode == 0:
        return FamilyProof(**orjson.loads(done.stdout.splitlines()[-1]))
    last = (done.stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
    if last.startswith("model.path: "):
        raise ValueError(last)
    return None
