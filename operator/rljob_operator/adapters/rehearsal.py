"""Rehearsal: what a job would be made of by these options, shown to the API server before the operator leads.

A template may say much that only the API server can judge. It is asked to take the objects and to keep none (dryRun).
What it refuses for other reasons (a quota, a webhook, a right, a namespace that is not there) says nothing of options.
"""

import asyncio
import logging

from rljob_api.spec import RLJob
from rljob_api.status import RLJobStatus
from rljob_operator.adapters.api import Api, Json
from rljob_operator.adapters.errors import ApiRefused, ApiUnreachable
from rljob_operator.adapters.resources import RLJOBS, resource_of
from rljob_operator.build import Owner, Platform, manifests
from rljob_operator.options import OperatorOptions, OptionsRefused

ASK_AGAIN_SECONDS = 1.0

_NAME = "rljob-options-rehearsal"
_MADE_OF_OPTIONS = ("Deployment", "StatefulSet", "NetworkPolicy", "PodMonitor")
_WRONG = (400, 422)
"""It is not understood, or is not valid."""
_OF_OTHERS = ("admission webhook", "ValidatingAdmissionPolicy", "MutatingAdmissionPolicy")

_log = logging.getLogger(__name__)


async def rehearse(api: Api, options: OperatorOptions, platform: Platform, namespace: str) -> None:
    """Raises OptionsRefused. `namespace` is one in which the operator may make objects."""
    owner = Owner(namespace=namespace, uid="00000000-0000-0000-0000-000000000000")
    made = manifests(_job(namespace), owner, RLJobStatus(), options, platform)
    refused = [said for each in made if each["kind"] in _MADE_OF_OPTIONS and (said := await _asked(api, each))]
    if refused:
        raise OptionsRefused("\n".join(dict.fromkeys(refused)))


def is_never_taken(error: ApiRefused) -> bool:
    """Whether the API server itself says no, and not a webhook or policy of somebody's, which may come and go."""
    return error.status in _WRONG and not any(each in error.message for each in _OF_OTHERS)


async def _asked(api: Api, manifest: Json) -> str | None:
    """What is wrong with an object, in the API server's words."""
    kind, namespace = manifest["kind"], manifest["metadata"]["namespace"]
    while True:
        try:
            await api.rehearse(resource_of(kind), namespace, manifest)
        except ApiUnreachable as error:
            _log.warning("cannot begin yet: %s; asked again in %g s", error, ASK_AGAIN_SECONDS)
            await asyncio.sleep(ASK_AGAIN_SECONDS)
            continue
        except ApiRefused as error:
            if not is_never_taken(error):
                return None
            part = manifest["metadata"]["name"].removeprefix(f"{_NAME}-")
            words = " ".join(error.message.split()).rstrip(".")
            return (
                f"workloads: the API server refuses the {kind} {part} that is made by them: {words}. Mend the option."
            )
        return None


def _job(namespace: str) -> RLJob:
    """One with every kind of object."""
    document: Json = {
        "apiVersion": RLJOBS.api_version,
        "kind": RLJOBS.kind,
        "metadata": {"name": _NAME, "namespace": namespace},
        "spec": {
            "model": {"config": {}},
            "data": {"prompts": "data/prompts.jsonl"},
            "rollout": {"numRollouts": 1, "batchSize": 1, "samplesPerPrompt": 2, "reward": {"characterMatch": {}}},
            "training": {"globalBatchSize": 2, "microBatchSize": 2, "optimizer": {"learningRate": 1e-3}},
        },
    }
    return RLJob.model_validate(document)
