"""A good manifest, and variants of it."""

import copy
from typing import Any

GOOD: dict[str, Any] = {
    "apiVersion": "rljob.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "demo"},
    "spec": {
        "model": {
            "config": {"maxPositionEmbeddings": 64, "tokenizer": {"kind": "Character", "alphabet": "0123456789="}}
        },
        "data": {"prompts": "prompts.jsonl"},
        "algorithm": {"kl": {"coefficient": 0.001}},
        "rollout": {"numRollouts": 10, "batchSize": 32, "samplesPerPrompt": 16, "sampling": {"maxNewTokens": 4}},
        "training": {"globalBatchSize": 512, "microBatchSize": 512},
        "roles": {"reference": {}},
    },
}


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """The good manifest with the values at some paths replaced or added."""
    manifest = copy.deepcopy(GOOD)
    for path, value in changes.items():
        *parents, last = path.split(".")
        node = manifest
        for name in parents:
            node = node.setdefault(name, {})
        node[last] = value
    return manifest
