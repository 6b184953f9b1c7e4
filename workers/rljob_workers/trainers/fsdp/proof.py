"""Proof that a model is computed right, before it trains: known, stored before, or made now on a small twin.

    require_right(described, packing=True)                         # each rank that builds the model
    python -m rljob_workers.trainers.fsdp.proof MODEL_CONFIG_JSON  # the command line, which has no torch

Each rank comes to the same answer: a proof is a function of the config and of the versions that are installed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rljob_api.model_files.families import (
    EXIT_NOT_PROVEN,
    FamilyProof,
    NotProven,
    family_problem,
    keep_proof,
    needs_proof,
    retained_proof,
)


def require_right(described: Mapping[str, Any], *, packing: bool, has_wide_head: bool = False) -> None:
    """ValueError, with the field that can be changed, where the model is not computed right in this layout of rows.

    `has_wide_head`: its logits are to be in a wider type than its own. NotProven where it cannot be known now.
    """
    problem = family_problem(described)
    if problem is None and needs_proof(described):
        problem = proof_of(described).problem(described, packing=packing, has_wide_head=has_wide_head)
    if problem is not None:
        raise ValueError(problem)


def proof_of(described: Mapping[str, Any]) -> FamilyProof:
    """The stored proof, else one that is made and stored now. NotProven where none can be made now; stores nothing."""
    stored = retained_proof(described)
    if stored is not None:
        return stored
    from rljob_workers.trainers.fsdp.twin import prove

    proof = prove(described)
    keep_proof(described, proof)
    return proof


def main(file: Path) -> None:
    """Prints the proof of a config.json as JSON, and stores it; a message on stderr where none can be made."""
    try:
        proof = proof_of(json.loads(file.read_bytes()))
    except ValueError as error:
        sys.exit(str(error))
    except NotProven as error:
        print(error, file=sys.stderr)  # noqa: T201 -- for who has started this
        sys.exit(EXIT_NOT_PROVEN)
    print(json.dumps(asdict(proof)))  # noqa: T201 -- for who has started this


if __name__ == "__main__":
    main(Path(sys.argv[1]))
