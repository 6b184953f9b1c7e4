"""A short job of each kind: a few steps of a tiny model, each step trained before the next is generated.

Each rollout takes its time, so that what a clock begins (beats, sweeps, counts of units) happens on any machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.integration.run.job import at_leisure, make_manifest, make_simulated

Manifest = dict[str, Any]

ROLLOUTS = 3

ROLLOUT_SECONDS = 1.5
"""The coordinator sweeps every two seconds."""

_NO_EXTRA_ROLES = {"reference": None, "actorFwd": None, "advantages": None}


def _short(folder: Path, **changes: Any) -> Manifest:
    sizes = {"globalBatchSize": 16, "microBatchSize": 16}
    given: dict[str, Any] = {
        **changes,
        "rollout": {"numRollouts": ROLLOUTS, "batchSize": 4, "maxStaleness": 0, **changes.pop("rollout", {})},
        "training": {**sizes, **changes.pop("training", {})},
    }
    return at_leisure(make_manifest(folder, **given), folder, ROLLOUT_SECONDS)


def flat(folder: Path) -> Manifest:
    """GRPO with three roles: rollouts, which compare samples themselves, the actor, and nothing else."""
    return _short(folder, roles=_NO_EXTRA_ROLES, algorithm={"kl": {"coefficient": 0.0}})


def scored(folder: Path) -> Manifest:
    """The same with log-probs and advantages by roles of their own."""
    return _short(folder)


def critic(folder: Path) -> Manifest:
    """PPO: every role that there is."""
    return _short(folder, algorithm={"advantage": "Gae", "kl": {"coefficient": 0.001}}, roles={"critic": {}})


def evaluated(folder: Path) -> Manifest:
    """A set that is evaluated at the start and during training."""
    lines = [{"prompt": f"{n:02d}=", "label": f"{n:02d}"} for n in range(6)]
    (folder / "set.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    sets = [{"name": "digits", "data": {"prompts": str(folder / "set.jsonl")}, "samplesPerPrompt": 2}]
    evaluation = {"sets": sets, "everySteps": 2, "atStart": True}
    quiet = {"roles": _NO_EXTRA_ROLES, "algorithm": {"kl": {"coefficient": 0.0}}}
    return _short(folder, evaluation=evaluation, **quiet)


def partial(folder: Path) -> Manifest:
    """A simulated engine, whose long answers are saved while they are generated."""
    manifest = make_simulated(
        folder,
        rollout={
            **{"numRollouts": 2, "batchSize": 2, "maxStaleness": 0},
            **{"sampling": {"maxNewTokens": 60}, "partial": {"saveSeconds": 1}},
        },
        training={"globalBatchSize": 8, "microBatchSize": 4},
        algorithm={"kl": {"coefficient": 0.0}},
        roles=_NO_EXTRA_ROLES,
        checkpoint={"everySteps": 1},
        simulation={"generation": {"secondsPerToken": 0.05}},
    )
    manifest["spec"]["model"]["config"] |= {"maxPositionEmbeddings": 128, "vocabSize": 4000}
    return manifest


KINDS: Mapping[str, Callable[[Path], Manifest]] = {
    "flat": flat,
    "scored": scored,
    "critic": critic,
    "evaluated": evaluated,
    "partial": partial,
}
