"""Bad manifests, as changes to a good one, and the sentence that each gets."""

from typing import Any

import pytest

from rljob_api.metric_names import OF_REPORTS, OF_STEPS

KNOWN_METRICS = ", ".join((*OF_REPORTS, *OF_STEPS))
EVALUATED: dict[str, Any] = {"sets": [{"name": "a", "data": {"prompts": "a.jsonl"}}], "everySteps": 2}

_SIMULATED: dict[str, Any] = {"spec.roles.rollout.engine.kind": "Sim"}
METRICS_OF_OTHER_JOBS: list[tuple[str, dict[str, Any], str]] = [
    ("policy/entropy", _SIMULATED, "is computed with a model, and this job is simulated. Set roles.rollout.engine.kind to Torch or SGLang, or give another metric."),
    ("critic/loss", {}, "is of the role critic, which is absent. Add roles.critic, or give another metric."),
    ("groups/draws", {}, "is of rollout.dynamicSampling, which is absent. Add it, or give another metric."),
    ("groups/put_off", {}, "is of groups that are exchanged, and rollout.order is Bound. Set it to Swap, or give another metric."),
    ("samples/filtered_share", {}, "is of algorithm.sampleFilter, which is absent. Add it, or give another metric."),
    ("staleness/too_old_share", {"spec.rollout.partial": {}}, "is of groups that are carried on. Set rollout.order to Swap and give rollout.partial, or give another metric."),
    ("staleness/kl", {"spec.rollout.maxStaleness": 0}, "is of tokens of earlier versions, and rollout.maxStaleness 0 leaves none. Raise it, or give another metric."),
    ("seconds/log_probs", {}, "is of log-probs that the actor computes before its first step, and this job has others: of its only step, or by algorithm.proximal. Set proximal to Actor with several steps per rollout, or give another metric."),
    ("kl/in_reward", {}, "is of a KL that is taken off rewards, and here none is. Set algorithm.kl.placement to Reward and coefficient above 0, or give another metric."),
    ("policy/kl_reference", {"spec.algorithm.kl.coefficient": 0}, "is of a KL term of the loss, which has none. Set algorithm.kl.coefficient above 0 and placement to Loss, or give another metric."),
    ("correction/weight", {"spec.algorithm.correction.kind": "None"}, "is of a correction, and algorithm.correction has kind None and no mask. Set kind to Tis or another one, or give another metric."),
    ("experts/load_max", {"spec.roles.actor.backend": "Megatron"}, "is of a model with experts that the backend Megatron trains. Set roles.actor.backend to Megatron and model.path to such a model, or give another metric."),
    ("experts/aux_loss", {"spec.roles.actor.backend": "Megatron", "spec.model": {"path": "/models/moe"}, "spec.training.experts": {"auxLossCoefficient": 0}}, "is of a loss that is not added. Set training.experts.auxLossCoefficient above 0, or give another metric."),
    ("experts/z_loss", {"spec.roles.actor.backend": "Megatron", "spec.model": {"path": "/models/moe"}}, "is of a loss that is not added. Set training.experts.zLossCoefficient above 0, or give another metric."),
    ("rollout/turns", {}, "is named by a rollout function, which is absent. Add rollout.function, or give another metric."),
    ("reward/format", {"spec.rollout.reward.sum": [{"name": "exact"}]}, "is named by nothing in rollout.reward. Give reward/NAME of one of rollout.reward.sum, reward/overlong or reward/shorter of a job that has them, or a reward that names metrics of its own (custom, remote)."),
]  # fmt: skip


def megatron(ranks: int, **parallelism: Any) -> dict[str, Any]:
    """A role with this backend: so many ranks, and how they share a model."""
    return {"backend": "Megatron", "ranksPerPod": ranks, "parallelism": parallelism}


_OF_ALL_MODELS = [
    pytest.param(
        {"spec.algorithm.advantage": "Gae" if role == "critic" else "Grpo", f"spec.roles.{role}": given},
        f"spec.roles.{role}.{sentence}",
        id=f"parallelism: {role}, {what}",
    )
    for role in ("actor", "critic", "actorFwd", "reference")
    for given, sentence, what in (
        ({"backend": "Fsdp", "parallelism": {}}, "parallelism: needs the backend Megatron, and this role has another, of which no rank computes a part of a model. Set backend to Megatron or leave parallelism out.", "another backend"),
        (megatron(4, tensor=4), "parallelism.tensor: 4 does not divide model.config.numKeyValueHeads 2: each tensor rank has as many of the heads. Give a divisor of it.", "heads"),
        (megatron(4, pipeline=4), "parallelism.pipeline: 4 x virtualPipeline 1 does not divide model.config.numLayers 2: each piece of a stage has as many layers. Give a divisor of it.", "layers"),
        (megatron(4, pipeline=2, virtualPipeline=2, tensor=2), "parallelism.pipeline: 2 x virtualPipeline 2 does not divide model.config.numLayers 2: each piece of a stage has as many layers. Give a divisor of it.", "pieces of layers"),
        (megatron(4, tensor=2, context=2, expert=2), "parallelism.expert: 2 x expertTensor 1 needs a model with experts, and that of model.config has none. Leave both out, or give model.path.", "experts"),
        (megatron(2, tensor=2, sequence=False, expert=2), "parallelism.sequence: false has each of the tensor ranks (2) send all tokens to the experts, which expert 2 deals over ranks, so that each token would come 2 times. Leave sequence out, or set tensor or expert to 1.", "tokens that come twice"),
        (megatron(2, context=2, sequence=True), "parallelism.sequence: true needs tensor ranks, over which tokens are cut, and tensor is 1. Set tensor to at least 2 or leave sequence out.", "a sequence that nothing cuts"),
        (megatron(2, virtualPipeline=2), "parallelism.virtualPipeline: 2 pieces on each stage need stages, and pipeline is 1. Set pipeline to at least 2 or leave virtualPipeline out.", "pieces without stages"),
    )
] + [
    pytest.param(
        {"spec.algorithm.advantage": "Gae" if role == "critic" else "Grpo", f"spec.roles.{role}": megatron(2, tensor=2), "spec.model.config.intermediateSize": 129},
        f"spec.roles.{role}.parallelism.tensor: 2 does not divide model.config.intermediateSize 129: each tensor rank has as many of its columns. Give a divisor of it.",
        id=f"parallelism: {role}, columns",
    )
    for role in ("actor", "critic", "actorFwd", "reference")
] + [
    pytest.param(
        {"spec.algorithm.advantage": "Gae" if role == "critic" else "Grpo", f"spec.roles.{role}": {"replicas": 3, **megatron(2, tensor=2, context=2)}},
        f"spec.roles.{role}.parallelism: tensor 2 x pipeline 1 x context 2 are 4 ranks for each model, which do not divide the 6 ranks of the role (3 pods with 2 each). Give numbers whose product divides them, or change the ranks.",
        id=f"parallelism: {role}, ranks that are left over",
    )
    for role in ("actor", "critic")
] + [
    pytest.param(
        {"spec.algorithm.advantage": "Gae" if role == "critic" else "Grpo", "spec.model": {"path": "/models/moe"}, f"spec.roles.{role}": {"replicas": 2, **megatron(4, pipeline=2, expert=8)}},
        f"spec.roles.{role}.parallelism.expert: 8 x expertTensor 1 x pipeline 2 does not divide the 8 ranks of the role (2 pods with 4 each). Give numbers whose product divides them, or change the ranks.",
        id=f"parallelism: {role}, more experts than ranks",
    )
    for role in ("actor", "critic")
] + [
    pytest.param(
        {f"spec.roles.{role}": {"replicas": 3, **megatron(2, tensor=2, context=2)}},
        f"spec.roles.{role}.parallelism: tensor 2 x pipeline 1 x context 2 are 4 ranks for each model and leave ranks over: 3 pods have 2 each, and a model lies within a pod or on whole pods. Give a divisor of a pod's ranks, or a multiple of them that divides the ranks of all pods.",
        id=f"parallelism: {role}, pods that make no whole models",
    )
    for role in ("actorFwd", "reference")
] + [
    pytest.param(
        {"spec.model": {"path": "/models/moe"}, f"spec.roles.{role}": megatron(8, tensor=2, expert=4)},
        f"spec.roles.{role}.parallelism.expert: 4 x expertTensor 1 x pipeline 1 does not divide the 2 ranks of a model (tensor 2 x pipeline x context 1), and each model of this role computes for itself. Give numbers whose product divides them.",
        id=f"parallelism: {role}, experts beyond its model",
    )
    for role in ("actorFwd", "reference")
] + [
    pytest.param(
        {f"spec.roles.{role}": {"shards": 2, **megatron(2, tensor=2)}},
        f"spec.roles.{role}.shards: 2 ranks that gather a model in turn do not go with parallelism, which has each compute a part of it. Remove one of the two.",
        id=f"parallelism: {role}, shards beside it",
    )
    for role in ("actorFwd", "reference")
] + [
    pytest.param(
        {f"spec.roles.{role}": {"backend": "Sim"}},
        f"spec.roles.{role}.backend: Sim does not go with the actor's: both are simulated, or neither. Leave backend out.",
        id=f"backend: {role}, simulated alone",
    )
    for role in ("actorFwd", "reference")
]  # fmt: skip
"""Of roles whose ranks share a model: the same for each of them, but for what a gang is."""

SINGLE_FIELDS = [
    pytest.param({"spec.rollout.maxStalness": 1}, "spec.rollout.maxStalness: there is no such field. Did you mean maxStaleness?", id="a misspelt field gets the nearest name"),
    pytest.param({"spec.rollout.max_staleness": 1}, "spec.rollout.max_staleness: there is no such field. Did you mean maxStaleness?", id="snake case is not the manifest's spelling"),
    pytest.param({"spec.roles.judge": {}}, "spec.roles.judge: there is no such field. Known here: actor, critic, rollout, actorFwd, reference, advantages.", id="an unknown role gets the known ones"),
    pytest.param({"spec.roles.actor_fwd": {}}, "spec.roles.actor_fwd: there is no such field. Did you mean actorFwd?", id="a role in the spelling of the logs"),
    pytest.param({"spec.restartPolicy.table.coordinator": "InPlace"}, "spec.restartPolicy.table.coordinator: there is no such field. Known here: actor, critic, rollout, actorFwd, reference, advantages.", id="infrastructure has no row in the restart table"),
    pytest.param({"status": {}}, "status: there is no such field. Known here: apiVersion, kind, metadata, spec.", id="a status is not written by users"),
    pytest.param({"spec.rollout.batchSize": "32"}, 'spec.rollout.batchSize: "32" is not an integer. Give an integer.', id="text for an integer"),
    pytest.param({"spec.rollout.batchSize": 2.5}, "spec.rollout.batchSize: 2.5 is not an integer. Give an integer.", id="a fraction for an integer"),
    pytest.param({"spec.rollout.batchSize": True}, "spec.rollout.batchSize: true is not an integer. Give an integer.", id="a truth value for an integer"),
    pytest.param({"spec.training.optimizer": {"learningRate": "fast"}}, 'spec.training.optimizer.learningRate: "fast" is not a number. Give a number.', id="text for a number"),
    pytest.param({"spec.telemetry": {"sampleLog": "on please"}}, 'spec.telemetry.sampleLog: "on please" is not true or false. Give true or false.', id="text for a truth value"),
    pytest.param({"spec.data.prompts": 5}, "spec.data.prompts: 5 is not a string. Give a string.", id="a number for text"),
    pytest.param({"spec.roles.actor": 3}, "spec.roles.actor: 3 is not an object. Give an object.", id="a number for an object"),
    pytest.param({"spec.rollout.sampling.stopTokenIds": 3}, "spec.rollout.sampling.stopTokenIds: 3 is not a list. Give a list.", id="a number for a list"),
    pytest.param({"spec.rollout.sampling.stopTokenIds": [1, -2]}, "spec.rollout.sampling.stopTokenIds[1]: -2 is below the minimum 0. Give a value of at least 0.", id="an element of a list out of bounds"),
    pytest.param({"spec.evaluation": {**EVALUATED, "sets": []}}, "spec.evaluation.sets: [] is refused: List should have at least 1 item after validation, not 0.", id="evaluation: without sets"),
    pytest.param({"spec.evaluation": {**EVALUATED, "everySteps": 0}}, "spec.evaluation.everySteps: 0 is below the minimum 1. Give a value of at least 1.", id="evaluation: after no step"),
    pytest.param({"spec.evaluation": {**EVALUATED, "engineShare": 0}}, "spec.evaluation.engineShare: 0 is not above 0. Give a value above 0.", id="evaluation: with no share of an engine"),
    pytest.param({"spec.evaluation": {**EVALUATED, "engineShare": 1.5}}, "spec.evaluation.engineShare: 1.5 is above the maximum 1. Give a value of at most 1.", id="evaluation: with more than an engine"),
    pytest.param({"spec.evaluation": {"sets": [{"name": "a", "data": {}}], "everySteps": 2}}, "spec.evaluation.sets[0].data.prompts: exactly one of prompts, sources and reasoningGym must be given. Give prompts for a file, sources for several with weights, or reasoningGym for procedural tasks.", id="evaluation: of no file"),
    pytest.param({"spec.rollout.dynamicSampling": {"filter": "Variance"}}, 'spec.rollout.dynamicSampling.filter: "Variance" is not of the right form. Give NoVariance, or an import path of the form package.module:function.', id="dynamic sampling: an unknown filter"),
    pytest.param({"spec.rollout.dynamicSampling": {"maxAttempts": 1}}, "spec.rollout.dynamicSampling.maxAttempts: 1 is below the minimum 2. Give a value of at least 2.", id="dynamic sampling: without a second draw"),
    pytest.param({"spec.rollout.overSampling": 0.5}, "spec.rollout.overSampling: 0.5 is below the minimum 1. Give a value of at least 1.", id="over-sampling: fewer than are needed"),
    pytest.param({"spec.rollout.order": "Any"}, 'spec.rollout.order: "Any" is not a known value. Known here: Bound, Swap.', id="an unknown order of groups"),
    pytest.param({"spec.rollout.partial": {"saveSeconds": 0}}, "spec.rollout.partial.saveSeconds: 0 is below the minimum 1. Give a value of at least 1.", id="partial: saved without a pause"),
    pytest.param({"spec.rollout.curriculum": {"function": "easy"}}, 'spec.rollout.curriculum.function: "easy" is not of the right form. Give an import path of the form package.module:function.', id="curriculum: no import path"),
    pytest.param({"spec.algorithm.sampleFilter": "best"}, 'spec.algorithm.sampleFilter: "best" is not of the right form. Give an import path of the form package.module:function.', id="sample filter: no import path"),
    pytest.param({"spec.rollout.curriculum": {}}, "spec.rollout.curriculum.function: is missing. Give a string.", id="curriculum: without a function"),
    pytest.param({"spec.scheduling": {"gang": "Volcano"}}, 'spec.scheduling.gang: "Volcano" is not a known value. Known here: PodGroup.', id="a gang of another kind"),
    pytest.param({"spec.scheduling": {"schedulerName": "My Scheduler"}}, 'spec.scheduling.schedulerName: "My Scheduler" is not of the right form. Give the name of a scheduler, such as scheduler-plugins-scheduler.', id="a name that no scheduler has"),
    pytest.param({"spec.scheduling": {"topology": {"key": "a zone"}}}, 'spec.scheduling.topology.key: "a zone" is not of the right form. Give a label of nodes, such as topology.kubernetes.io/zone.', id="a key that no label has"),
    pytest.param({"spec.scheduling": {"topology": {}}}, "spec.scheduling.topology.key: is missing. Give a string.", id="a domain without a key"),
    pytest.param({"spec.infrastructure": {"control": {"resources": {"limits": {"memory": -1}}}}}, 'spec.infrastructure.control.resources.limits.memory: "-1" is not of the right form. Give an amount as Kubernetes writes it: "500m", 2, "8Gi".', id="an amount below nothing"),
    pytest.param({"spec.rollout.maxStaleness": -1}, "spec.rollout.maxStaleness: -1 is below the minimum 0. Give a value of at least 0.", id="below the minimum"),
    pytest.param({"spec.rollout.maxStaleness": 65}, "spec.rollout.maxStaleness: 65 is above the maximum 64. Give a value of at most 64.", id="above the maximum"),
    pytest.param({"spec.rollout.sampling.temperature": 0}, "spec.rollout.sampling.temperature: 0 is not above 0. Give a value above 0.", id="at an excluded minimum"),
    pytest.param({"spec.training.optimizer": {"beta1": 1}}, "spec.training.optimizer.beta1: 1 is not below 1. Give a value below 1.", id="at an excluded maximum"),
    pytest.param({"spec.training.optimizer": {"maxGradNorm": float("inf")}}, "spec.training.optimizer.maxGradNorm: Infinity is above the maximum 1000000000. Give a value of at most 1000000000.", id="infinity"),
    pytest.param({"spec.training.optimizer": {"learningRate": float("nan")}}, "spec.training.optimizer.learningRate: NaN is above the maximum 1. Give a value of at most 1.", id="not a number at all"),
    pytest.param({"spec.model.config.headDim": 15}, "spec.model.config.headDim: 15 is not a multiple of 2. Give a multiple of 2.", id="an odd head"),
    pytest.param({"spec.mode": "fullyasync"}, 'spec.mode: "fullyasync" is not a known value. Did you mean FullyAsync?', id="a word in the wrong case"),
    pytest.param({"spec.model.config.architecture": "Mamba"}, 'spec.model.config.architecture: "Mamba" is not a known value. Known here: Qwen3, Llama.', id="a word that is not known"),
    pytest.param({"spec.rollout.numRollouts": None}, "spec.rollout.numRollouts: null is not an integer. Give an integer.", id="null where something is required"),
    pytest.param({"metadata.name": "My_Job"}, "metadata.name: \"My_Job\" is not of the right form. Give at most 40 lower-case letters, digits and '-', with a letter first and a letter or digit last. my-job would do.", id="a name that Kubernetes refuses"),
    pytest.param({"metadata.name": "7b-math"}, "metadata.name: \"7b-math\" is not of the right form. Give at most 40 lower-case letters, digits and '-', with a letter first and a letter or digit last. job-7b-math would do.", id="a name that no Service can begin with"),
    pytest.param({"metadata.name": "a" * 41}, f"metadata.name: \"{'a' * 41}\" is not of the right form. Give at most 40 lower-case letters, digits and '-', with a letter first and a letter or digit last. {'a' * 40} would do.", id="a name that leaves no room for a Service's"),
    pytest.param({"apiVersion": "rljob.dev/v1"}, 'apiVersion: "rljob.dev/v1" is not of the right form. Give rljob.dev/v1alpha1.', id="another version"),
    pytest.param({"kind": "Job"}, 'kind: "Job" is not of the right form. Give RLJob.', id="another kind"),
    pytest.param({"spec.rollout.reward": {"custom": {"function": "reward.py"}}}, 'spec.rollout.reward.custom.function: "reward.py" is not of the right form. Give an import path of the form package.module:function.', id="a file name for an import path"),
    pytest.param({"spec.data.prompts": ""}, 'spec.data.prompts: "" is too short. Give at least 1 character.', id="empty text"),
    pytest.param({"spec.cleanPodPolicy": "all"}, 'spec.cleanPodPolicy: "all" is not a known value. Did you mean All?', id="a policy in the wrong case"),
    pytest.param({"spec.activeDeadlineSeconds": 0}, "spec.activeDeadlineSeconds: 0 is below the minimum 1. Give a value of at least 1.", id="a deadline at once"),
    pytest.param({"spec.restartRequest": {"id": ""}}, 'spec.restartRequest.id: "" is too short. Give at least 1 character.', id="a restart without an id"),
    pytest.param({"spec.roles.actor": {"gpus": 65}}, "spec.roles.actor.gpus: 65 is above the maximum 64. Give a value of at most 64.", id="more GPUs than a node has"),
    pytest.param({"spec.roles.rollout": {"ranksPerPod": 0}}, "spec.roles.rollout.ranksPerPod: 0 is below the minimum 1. Give a value of at least 1.", id="a pod without ranks"),
    pytest.param({"spec.roles.actor": {"resources": {"limits": {"memory": "8GB"}}}}, 'spec.roles.actor.resources.limits.memory: "8GB" is not of the right form. Give an amount as Kubernetes writes it: "500m", 2, "8Gi".', id="an amount in another spelling"),
    pytest.param({"spec.roles.actor": {"resources": {"limits": {"cpu": 1.5}}}}, "spec.roles.actor.resources.limits.cpu: 1.5 is not a string. Give a string.", id="a fraction without quotes"),
    pytest.param({"spec.roles.actor": {"gpuResource": "gpu"}}, 'spec.roles.actor.gpuResource: "gpu" is not of the right form. Give a resource of Kubernetes with its domain, such as nvidia.com/gpu or amd.com/gpu.', id="a resource without a domain"),
    pytest.param({"spec.roles.rollout": {"shareDevicesWith": "reference"}}, 'spec.roles.rollout.shareDevicesWith: "reference" is not a known value. Known here: actor.', id="devices of a role that does not share"),
    pytest.param({"spec.roles.rollout": {"autoscaling": {"minReplicas": 1}}}, "spec.roles.rollout.autoscaling.maxReplicas: is missing. Give an integer from 1 to 1024.", id="autoscaling without an end"),
    pytest.param({"spec.roles.rollout": {"autoscaling": {"minReplicas": 1, "maxReplicas": 2, "scaleUpAfterSeconds": 5}}}, "spec.roles.rollout.autoscaling.scaleUpAfterSeconds: 5 is below the minimum 10. Give a value of at least 10.", id="autoscaling without patience"),
    pytest.param({"spec.roles.actor": {"autoscaling": {"minReplicas": 1, "maxReplicas": 2}}}, "spec.roles.actor.autoscaling: there is no such field. Known here: replicas, ranksPerPod, threads, gpus, gpuResource, shareDevicesWith, resources, template, backend, parallelism.", id="autoscaling of a role that is not scaled"),
    pytest.param({"spec.roles.rollout": {"engine": {"kind": "sglang"}}}, 'spec.roles.rollout.engine.kind: "sglang" is not a known value. Did you mean SGLang?', id="an engine in the wrong case"),
    pytest.param({"spec.roles.actor": {"template": []}}, "spec.roles.actor.template: [] is not an object. Give an object.", id="a patch that is a list"),
    pytest.param({"spec.checkpoint": {"volume": {"accessMode": "ReadWriteOncePod"}}}, 'spec.checkpoint.volume.accessMode: "ReadWriteOncePod" is not a known value. Did you mean ReadWriteOnce?', id="an access mode that a job cannot live with"),
    pytest.param({"spec.restartPolicy": {"failureRules": [{"name": "oom", "podReasons": ["OOMKilled"], "action": "Fail"}]}}, 'spec.restartPolicy.failureRules[0].action: "Fail" is not a known value. Did you mean FailJob?', id="a rule with an action that is not known"),
    pytest.param({"spec.restartPolicy": {"failureRules": [{"name": "oom", "exitCode": 1, "exitCodes": [1], "action": "Count"}]}}, "spec.restartPolicy.failureRules[0].exitCode: there is no such field. Did you mean exitCodes?", id="a misspelt field in a list"),
    pytest.param({"spec.restartPolicy": {"failureRules": [{"name": "oom", "exitCodes": [256], "action": "Count"}]}}, "spec.restartPolicy.failureRules[0].exitCodes[0]: 256 is above the maximum 255. Give a value of at most 255.", id="an exit code that no process has"),
    pytest.param({"spec.data.promptKey": "x" * 257}, "spec.data.promptKey: is longer than 256. Shorten it.", id="text that is too long"),
]  # fmt: skip

CROSS_FIELD = [
    *_OF_ALL_MODELS,
    pytest.param({"spec.scheduling": {"minRollouts": 1}}, "spec.scheduling.minRollouts: 1 is of a gang, and there is none. Give gang: PodGroup or remove it.", id="scheduling: a minimum without a gang"),
    pytest.param({"spec.scheduling": {"releaseAfterSeconds": 9}}, "spec.scheduling.releaseAfterSeconds: 9 is of a gang, and there is none. Give gang: PodGroup or remove it.", id="scheduling: patience without a gang"),
    pytest.param({"spec.model.path": "m"}, "spec.model.path: exactly one of path and config must be given. Give path for a checkpoint folder, or config for random weights.", id="model: path and config"),
    pytest.param({"spec.model": {}}, "spec.model.path: exactly one of path and config must be given. Give path for a checkpoint folder, or config for random weights.", id="model: neither path nor config"),
    pytest.param({"spec.data.reasoningGym": {"dataset": "d"}}, "spec.data.prompts: exactly one of prompts, sources and reasoningGym must be given. Give prompts for a file, sources for several with weights, or reasoningGym for procedural tasks.", id="data: prompts and reasoningGym"),
    pytest.param({"spec.model.config.numKeyValueHeads": 3}, "spec.model.config.numKeyValueHeads: 3 does not divide numAttentionHeads 4. Give a divisor of it.", id="model: heads that cannot share keys evenly"),
    pytest.param({"spec.model.config.vocabSize": 12}, "spec.model.config.vocabSize: 12 is smaller than the tokenizer, which has one token for each character of its alphabet (each byte with kind Byte) and 2 special ones. Leave vocabSize out or give at least that.", id="model: a vocabulary smaller than the tokenizer"),
    pytest.param({"spec.model.config.tokenizer.kind": "Byte"}, "spec.model.config.tokenizer.alphabet: belongs to kind Character, but kind is Byte. Remove alphabet or set kind to Character.", id="model: an alphabet of bytes"),
    pytest.param({"spec.rollout.reward": {"exactMatch": {}, "custom": {"function": "a:b"}}}, "spec.rollout.reward.custom: at most one of exactMatch, characterMatch, mathVerify, textOverlap, choice, format, tags, remote, judge, custom and sum may be given. Keep one of them.", id="reward: two members"),
    pytest.param({"spec.rollout.reward": {"sum": [{"name": "a", "exactMatch": {}, "custom": {"function": "a:b"}}]}}, "spec.rollout.reward.sum[0].custom: at most one of exactMatch, characterMatch, mathVerify, textOverlap, choice, format, tags, remote, judge and custom may be given. Keep one of them.", id="reward: two members of a summand"),
    pytest.param({"spec.rollout.reward": {"judge": {"url": "http://j", "model": "m", "rubric": "{response}", "lowest": 10}}}, "spec.rollout.reward.judge.highest: 10 is not above lowest, 10. Give the score of the best answer.", id="reward: a scale of one score"),
    pytest.param({"spec.rollout.reward": {"sum": [{"name": "std"}]}}, "spec.rollout.reward.sum[0].name: std is what every step reports of the whole reward. Give another name.", id="reward: a summand with a name of the report"),
    pytest.param({"spec.rollout.reward": {"sum": [{"name": "a"}, {"name": "a"}]}}, "spec.rollout.reward.sum: has two rewards of one name, and their metrics would be one. Give each a name of its own.", id="reward: a name twice"),
    pytest.param({"spec.training.globalBatchSize": 500, "spec.training.microBatchSize": 500}, "spec.training.globalBatchSize: 500 does not divide rollout.batchSize x rollout.samplesPerPrompt (32 x 16). Give a divisor of that product.", id="training: a global batch that does not divide the rollout"),
    pytest.param({"spec.training": {"globalBatchSize": 512}}, "spec.training.microBatchSize: neither microBatchSize nor maxTokensPerMicroBatch bounds what a forward and backward pass takes. Give at least one of them.", id="training: a micro-batch without bounds"),
    pytest.param({"spec.rollout.sampling": {"maxNewTokens": 8, "stop": ["</answer>"]}}, "spec.rollout.sampling.stop: are texts, at which only engines of kind SGLang end a sample. Set roles.rollout.engine.kind to SGLang, or give tokens in stopTokenIds.", id="rollout: texts that end a sample of an engine that knows tokens only"),
    pytest.param({"spec.evaluation": {**EVALUATED, "sets": EVALUATED["sets"] * 2}}, "spec.evaluation.sets: two of them have the same name, which their metrics go by. Give each a name of its own.", id="evaluation: a name twice"),
    pytest.param({"spec.evaluation": {**EVALUATED, "sets": [{"name": "a", "data": {"sources": [{"prompts": "a.jsonl"}]}}]}}, "spec.evaluation.sets: have one with data.sources, which are mixed by weights, and a set has each of its prompts once. Give each file a set of its own, in data.prompts.", id="evaluation: of a mixture"),
    pytest.param({"spec.evaluation": EVALUATED, "spec.roles.rollout": {"engine": {"kind": "Sim"}}}, "spec.evaluation: needs engines that compute, and those of kind Sim answer nothing that could be scored. Remove evaluation, or set roles.rollout.engine.kind to Torch or SGLang.", id="evaluation: by engines that compute nothing"),
    pytest.param({"spec.evaluation": EVALUATED, "spec.rollout.function": {"function": "a:b"}}, "spec.evaluation: answers in a single turn, and this job has a rollout.function that takes several. Remove evaluation or rollout.function.", id="evaluation: beside a rollout function"),
    pytest.param({"spec.evaluation": {**EVALUATED, "sets": [{"name": "a", "data": {"prompts": "a.jsonl", "labelKey": ""}}]}}, "spec.evaluation.sets: have one without data.labelKey, and the reward of this job compares answers with labels. Give the key of the label, or rollout.reward.custom.", id="evaluation: of a set without labels"),
    pytest.param({"spec.evaluation": {**EVALUATED, "sets": [{**EVALUATED["sets"][0], "sampling": {"stop": ["."]}}]}}, "spec.evaluation.sets: have one whose sampling.stop has texts, at which only engines of kind SGLang end a sample. Set roles.rollout.engine.kind to SGLang, or give tokens in stopTokenIds.", id="evaluation: texts that end a sample of an engine that knows tokens only"),
    pytest.param({"spec.stopWhen": {"metric": "reward"}}, "spec.stopWhen.above: exactly one of above and below must be given. Give the bound that the metric must pass.", id="stopWhen: without a bound"),
    pytest.param({"spec.stopWhen": {"metric": "reward", "above": 1, "below": 2}}, "spec.stopWhen.above: exactly one of above and below must be given. Give the bound that the metric must pass.", id="stopWhen: with two bounds"),
    pytest.param({"spec.stopWhen": {"metric": "rewards", "above": 1}}, f"spec.stopWhen.metric: rewards is no metric of a step. Known are {KNOWN_METRICS}, what rewards and rollout functions name below reward/ and rollout/, and eval/SET/NAME of an evaluation.", id="stopWhen: of no metric"),
    pytest.param({"spec.stopWhen": {"metric": "eval/held-out/mean@8", "above": 1}}, "spec.stopWhen.metric: eval/held-out/mean@8 is no metric of this job's evaluation. Give eval/SET/NAME, or, where data.sourceKey is given, eval/SET/SOURCE/NAME: SET is the name of one of evaluation.sets, NAME is mean@K (K: samplesPerPrompt of that set), std@K (of K above 1), pass@k with k of 1, 2, 4 ... K, mean_error, response_length, truncated_share, unscored_share, prompts or samples.", id="stopWhen: of no evaluation"),
    pytest.param({"spec.checkpoint": {"keepBest": {"metric": "policy/kl"}}}, f"spec.checkpoint.keepBest.metric: policy/kl is no metric of a step. Known are {KNOWN_METRICS}, what rewards and rollout functions name below reward/ and rollout/, and eval/SET/NAME of an evaluation.", id="keepBest: of no metric"),
    pytest.param({"spec.evaluation": EVALUATED, "spec.checkpoint": {"keepBest": {"metric": "eval/a/mean@8"}}}, "spec.checkpoint.keepBest.metric: eval/a/mean@8 is no metric of this job's evaluation. Give eval/SET/NAME, or, where data.sourceKey is given, eval/SET/SOURCE/NAME: SET is the name of one of evaluation.sets, NAME is mean@K (K: samplesPerPrompt of that set), std@K (of K above 1), pass@k with k of 1, 2, 4 ... K, mean_error, response_length, truncated_share, unscored_share, prompts or samples.", id="keepBest: of another number of samples"),
    pytest.param({"spec.evaluation": EVALUATED, "spec.checkpoint": {"keepBest": {"metric": "eval/a/algebra/mean@1"}}}, "spec.checkpoint.keepBest.metric: eval/a/algebra/mean@1 is no metric of this job's evaluation. Give eval/SET/NAME, or, where data.sourceKey is given, eval/SET/SOURCE/NAME: SET is the name of one of evaluation.sets, NAME is mean@K (K: samplesPerPrompt of that set), std@K (of K above 1), pass@k with k of 1, 2, 4 ... K, mean_error, response_length, truncated_share, unscored_share, prompts or samples.", id="keepBest: of a source of prompts that name none"),
    *(
        pytest.param(
            {**changes, f"spec.{field}": {"metric": metric, **bound}},
            f"spec.{field}.metric: {metric} {sentence}",
            id=f"{field}: {metric}, which no step of this job reports",
        )
        for field, bound in (("stopWhen", {"above": 1}), ("checkpoint.keepBest", {}))
        for metric, changes, sentence in METRICS_OF_OTHER_JOBS
    ),
    pytest.param({"spec.roles.actor.backend": "Sim"}, "spec.roles.actor.backend: Sim does not go with the kind of roles.rollout.engine: a policy is simulated by actor and engines, or by neither. Set backend and kind to Sim, or leave backend out.", id="simulation: a trainer alone"),
    pytest.param({"spec.roles.rollout": {"engine": {"kind": "Sim"}}, "spec.roles.actor.backend": "Fsdp"}, "spec.roles.actor.backend: Fsdp does not go with the kind of roles.rollout.engine: a policy is simulated by actor and engines, or by neither. Set backend and kind to Sim, or leave backend out.", id="simulation: engines alone"),
    pytest.param({"spec.roles.rollout": {"engine": {"kind": "Sim"}}, "spec.model": {"path": "/models/qwen"}}, "spec.model.path: /models/qwen is not read by a simulated job, which has no weights of a model. Give model.config, and model.tokenizerPath for the tokenizer of a folder.", id="simulation: of a model in a folder"),
    pytest.param({"spec.simulation": {"speed": 10}}, "spec.simulation: is for engines of kind Sim, and this job computes. Remove simulation or set roles.rollout.engine.kind to Sim.", id="simulation: of a job that computes"),
    pytest.param({"spec.training.packing": False}, "spec.training.packing: false needs the backend Fsdp, and this job has another, which always joins samples. Set roles.actor.backend to Fsdp or leave packing out.", id="training: padded samples by Flat"),
    pytest.param({"spec.training.packing": False, "spec.roles.actor": {"backend": "Megatron"}}, "spec.training.packing: false needs the backend Fsdp, and this job has another, which always joins samples. Set roles.actor.backend to Fsdp or leave packing out.", id="training: padding with Megatron"),
    pytest.param({"spec.training.itersPerTrainUpdate": 256, "spec.training.microBatchSize": 1, "spec.roles.actor": {"replicas": 4, **megatron(2, tensor=2)}}, "spec.training.itersPerTrainUpdate: 256 slices of training.globalBatchSize 512 do not go evenly to 4 models of the actor (4 replicas x 2 ranks per pod / 2 ranks per model). Give a divisor of globalBatchSize / models.", id="training: slices that do not go evenly to the models that ranks share"),
    pytest.param({"spec.training.activationCheckpointing": True}, "spec.training.activationCheckpointing: true needs the backend Fsdp or Megatron, and this job has another, which keeps its activations. Set roles.actor.backend to one of them or leave activationCheckpointing out.", id="training: activation checkpointing by Flat"),
    pytest.param({"spec.training.optimizer": {"learningRate": 0.25, "minLearningRate": 0.5, "schedule": "Cosine"}}, "spec.training.optimizer.minLearningRate: 0.5 is above learningRate 0.25, from which the schedule comes down. Give at most learningRate.", id="optimizer: a schedule that goes up"),
    pytest.param({"spec.algorithm.advantage": "Gae", "spec.roles.critic": {"optimizer": {"learningRate": 0.25, "minLearningRate": 0.5, "schedule": "Cosine"}}}, "spec.roles.critic.optimizer.minLearningRate: 0.5 is above learningRate 0.25, from which the schedule comes down. Give at most learningRate.", id="critic: a schedule that goes up"),
    pytest.param({"spec.training.optimizer": {"learningRate": 0.25, "minLearningRate": 0.125}}, "spec.training.optimizer.minLearningRate: 0.125 is where a schedule ends, but schedule is Constant. Set schedule to Linear or Cosine, or leave minLearningRate out.", id="optimizer: an end without a schedule"),
    pytest.param({"spec.roles.actor": {"gpus": 4, "ranksPerPod": 2}, "spec.training.microBatchSize": 128}, "spec.roles.actor.ranksPerPod: 2 is not the number of its GPUs, 4, and each GPU has one rank. Leave ranksPerPod out, or set gpus to 0.", id="role: ranks that are not its GPUs"),
    pytest.param({"spec.roles.rollout": {"gpus": 4, "ranksPerPod": 2}}, "spec.roles.rollout.ranksPerPod: 2 is not the number of its engines, 4 gpus with 1 for each, and each engine has one rank. Leave ranksPerPod out, or set gpus to 0.", id="rollout: ranks that are not its GPUs"),
    pytest.param({"spec.roles.rollout": {"engine": {"kind": "SGLang", "tensorParallel": 2}, "gpus": 4, "ranksPerPod": 4}}, "spec.roles.rollout.ranksPerPod: 4 is not the number of its engines, 4 gpus with 2 for each, and each engine has one rank. Leave ranksPerPod out, or set gpus to 0.", id="rollout: ranks that are not its engines"),
    pytest.param({"spec.roles.rollout": {"engine": {"kind": "SGLang", "tensorParallel": 3}, "gpus": 4}}, "spec.roles.rollout.engine.tensorParallel: 3 GPUs for each engine do not divide the gpus of a pod, 4. Give a divisor of gpus, or change gpus.", id="engine: GPUs that are left over"),
    pytest.param({"spec.roles.rollout": {"engine": {"kind": "SGLang", "tensorParallel": 2}}}, "spec.roles.rollout.engine.tensorParallel: 2 GPUs for each engine do not divide the gpus of a pod, 0. Give a divisor of gpus, or change gpus.", id="engine: GPUs that are not there"),
    pytest.param({"spec.roles.rollout": {"engine": {"kind": "SGLang", "python": "/opt/python"}}}, "spec.roles.rollout.engine.python: /opt/python needs gpus: without them an engine is forked from its launcher, and has the environment of the job. Remove python or give gpus.", id="engine: another environment on the CPU"),
    pytest.param({"spec.roles.rollout": {"engine": {"kind": "SGLang", "args": ["--attention-backend", "triton"]}}}, "spec.roles.rollout.engine.args: --attention-backend is not yours to give: without gpus RLJob chooses what a server computes with. Remove it from args or give gpus.", id="engine: kernels on the CPU"),
    pytest.param({"spec.roles.rollout": {"engine": {"args": ["--log-level", "info"]}}}, "spec.roles.rollout.engine.args: are flags of a server of kind SGLang; those of other kinds have none. Remove args or set kind to SGLang.", id="engine: flags of a server that has none"),
    pytest.param({"spec.roles.rollout": {"engine": {"kind": "Torch", "python": "/opt/python"}, "gpus": 1}}, "spec.roles.rollout.engine.python: /opt/python is for kind SGLang; servers of other kinds run in the environment of the job. Remove python or set kind to SGLang.", id="engine: another environment for Torch"),
    pytest.param({"spec.roles.rollout": {"engine": {"kind": "Torch", "tensorParallel": 2}, "gpus": 2}}, "spec.roles.rollout.engine.tensorParallel: 2 needs kind SGLang; servers of other kinds have one device at most. Set kind to SGLang or leave tensorParallel out.", id="engine: two GPUs for Torch"),
    pytest.param({"spec.roles.rollout": {"engine": {"kind": "SGLang", "args": ["--log-level", "info", "--model-path=/m"]}}}, "spec.roles.rollout.engine.args: --model-path=/m is not yours to give: model.path or model.config says it. Remove it from args.", id="engine: a model"),
    pytest.param({"spec.roles.rollout": {"engine": {"kind": "SGLang", "args": ["--log-level", "info", "--tokenizer-path"]}}}, "spec.roles.rollout.engine.args: --tokenizer-path is not yours to give: model.tokenizerPath says it. Remove it from args.", id="engine: a tokenizer"),
    pytest.param({"spec.roles.rollout": {"engine": {"kind": "SGLang", "args": ["--log-level", "info", "--enable-fp32-lm-head"]}}}, "spec.roles.rollout.engine.args: --enable-fp32-lm-head is not yours to give: model.headDtype says it, for the trainer as well. Remove it from args.", id="engine: the type of logits as a flag"),
    pytest.param({"spec.model.headDtype": "bfloat16"}, "spec.model.headDtype: bfloat16 is narrower than dtype float32, so that logits would be rounded for nothing. Leave headDtype out.", id="logits narrower than the model"),
    pytest.param({"spec.roles.rollout": {"engine": {"kind": "SGLang", "args": ["--log-level", "info", "--dtype"]}}}, "spec.roles.rollout.engine.args: --dtype is not yours to give: model.dtype says it. Remove it from args.", id="engine: a dtype"),
    pytest.param({"spec.roles.rollout": {"engine": {"kind": "SGLang", "args": ["--log-level", "info", "--tp-size=2"]}}}, "spec.roles.rollout.engine.args: --tp-size=2 is not yours to give: tensorParallel says it. Remove it from args.", id="engine: tensor parallelism as a flag"),
    pytest.param({"spec.roles.rollout": {"engine": {"kind": "SGLang", "args": ["--log-level", "info", "--base-gpu-id"]}}}, "spec.roles.rollout.engine.args: --base-gpu-id is not yours to give: gpus and tensorParallel say which devices an engine has, and how many engines there are. Remove it from args.", id="engine: devices as a flag"),
    pytest.param({"spec.roles.rollout": {"engine": {"kind": "SGLang", "args": ["--log-level", "info", "--port=1"]}}}, "spec.roles.rollout.engine.args: --port=1 is not yours to give: the launcher gives each server its address and its flags, one by one. Remove it from args.", id="engine: a port"),
    pytest.param({"spec.roles.rollout": {"engine": {"kind": "SGLang", "args": ["--log-level", "info", "--load-format"]}}}, "spec.roles.rollout.engine.args: --load-format is not yours to give: weights come from the actor, as weightSync says. Remove it from args.", id="engine: a way to load weights"),
    pytest.param({"spec.roles.rollout": {"engine": {"env": {"CUDA_VISIBLE_DEVICES": "1"}}}}, "spec.roles.rollout.engine.env: CUDA_VISIBLE_DEVICES is not yours to give: gpus and tensorParallel say which devices an engine sees. Remove it from env.", id="engine: the variable CUDA_VISIBLE_DEVICES"),
    pytest.param({"spec.roles.rollout": {"engine": {"env": {"OMP_NUM_THREADS": "1"}}}}, "spec.roles.rollout.engine.env: OMP_NUM_THREADS is not yours to give: roles.rollout.threads says it. Remove it from env.", id="engine: the variable OMP_NUM_THREADS"),
    pytest.param({"spec.roles.rollout": {"engine": {"env": {"SGLANG_USE_CPU_ENGINE": "1"}}}}, "spec.roles.rollout.engine.env: SGLANG_USE_CPU_ENGINE is not yours to give: gpus says whether it computes on the CPU. Remove it from env.", id="engine: the variable SGLANG_USE_CPU_ENGINE"),
    pytest.param({"spec.training.itersPerTrainUpdate": 3}, "spec.training.itersPerTrainUpdate: 3 does not divide training.globalBatchSize 512. Give a divisor of it.", id="training: slices that do not divide the global batch"),
    pytest.param({"spec.training.claimPolicy": "Group", "spec.training.itersPerTrainUpdate": 4, "spec.training.globalBatchSize": 32, "spec.training.microBatchSize": 2, "spec.roles.actor": {"replicas": 4}}, "spec.training.claimPolicy: Group cannot give whole groups of 16 samples to 4 models of the actor (4 replicas x 1 ranks per pod / 1 ranks per model) in 4 slices of training.globalBatchSize 32. Give a global batch that is a multiple of their product, or Balanced.", id="training: whole groups that do not go evenly to the ranks"),
    pytest.param({"spec.training.itersPerTrainUpdate": 256, "spec.training.microBatchSize": 1, "spec.roles.actor": {"replicas": 4}}, "spec.training.itersPerTrainUpdate: 256 slices of training.globalBatchSize 512 do not go evenly to 4 models of the actor (4 replicas x 1 ranks per pod / 1 ranks per model). Give a divisor of globalBatchSize / models.", id="training: slices that do not go evenly to the ranks"),
    pytest.param({"spec.algorithm.kl.estimator": "K1"}, "spec.algorithm.kl.estimator: K1 pulls nowhere: the mean of its gradient is 0. Set estimator to K3 or K2, or weighted to true.", id="algorithm: a KL term whose gradient has the mean 0"),
    pytest.param({"spec.algorithm.kl": {"estimator": "K2", "weighted": True}}, "spec.algorithm.kl.weighted: true gives K1 and K3 the gradient of the KL, and K2 another one. Set estimator to K3, or remove weighted.", id="algorithm: a weight of a KL term that would spoil it"),
    pytest.param({"spec.algorithm.clip": {"high": 2.5, "dual": 3}}, "spec.algorithm.clip.dual: 3 is not above 1 + high, where the clip bounds every loss already. Give more, or leave it out.", id="algorithm: a dual clip below the clip"),
    pytest.param({"spec.algorithm.loss": "m:own", "spec.algorithm.clip": {"low": 0.1}}, "spec.algorithm.clip.low: 0.1 is not read by the loss m:own. Remove it, or set loss to Gspo or PpoClip.", id="algorithm: a lower bound of a loss that has its own"),
    pytest.param({"spec.algorithm.loss": "m:own", "spec.algorithm.clip": {"high": 0.1}}, "spec.algorithm.clip.high: 0.1 is not read by the loss m:own. Remove it, or set loss to Cispo or Gspo or PpoClip.", id="algorithm: an upper bound of a loss that has its own"),
    pytest.param({"spec.algorithm.loss": "Gspo", "spec.algorithm.clip": {"dual": 3}}, "spec.algorithm.clip.dual: 3 is not read by the loss Gspo. Remove it, or set loss to PpoClip.", id="algorithm: a dual clip of a loss that has none"),
    pytest.param({"spec.algorithm.loss": "Cispo", "spec.algorithm.clip": {"low": 0.5}}, "spec.algorithm.clip.low: 0.5 is not read by the loss Cispo. Remove it, or set loss to Gspo or PpoClip.", id="algorithm: a lower bound of a loss that has none"),
    pytest.param({"spec.algorithm.clip": {"positiveTemperature": 2}}, "spec.algorithm.clip.positiveTemperature: 2 is not read by the loss PpoClip. Remove it, or set loss to Sapo.", id="algorithm: a temperature of a loss that has bounds"),
    pytest.param({"spec.algorithm.loss": "Reinforce", "spec.algorithm.clip": {"negativeTemperature": 2}}, "spec.algorithm.clip.negativeTemperature: 2 is not read by the loss Reinforce. Remove it, or set loss to Sapo.", id="algorithm: a temperature of a loss without a ratio"),
    pytest.param({"spec.algorithm.constantLength": 8}, "spec.algorithm.constantLength: 8 is what lossAggregation Constant divides by, but lossAggregation is TokenMean. Set that to Constant or remove constantLength.", id="algorithm: a constant that nothing is divided by"),
    pytest.param({"spec.algorithm.kl": {"placement": "Reward", "weighted": True}}, "spec.algorithm.kl.weighted: true is for a term of the loss, but placement is Reward. Set placement to Loss or remove weighted.", id="algorithm: a weight of a KL term that the loss does not have"),
    pytest.param({"spec.rollout.sampling.maxNewTokens": 8, "spec.rollout.reward": {"overlong": {"buffer": 9}}}, "spec.rollout.reward.overlong.buffer: 9 tokens are more than the longest response has, 8 (rollout.sampling.maxNewTokens). Give fewer.", id="rollout: a penalty that begins before the answer"),
    pytest.param({"spec.rollout.samplesPerPrompt": 1, "spec.training.globalBatchSize": 32, "spec.training.microBatchSize": 32}, "spec.rollout.samplesPerPrompt: 1 leaves algorithm.advantage Grpo no other sample of the prompt to measure one against. Give at least 2, or set advantage to ReMax, ReinforcePlusPlus, Gae or Distillation.", id="rollout: a group of one that is compared with itself"),
    pytest.param({"spec.rollout.samplesPerPrompt": 1, "spec.training.globalBatchSize": 32, "spec.training.microBatchSize": 32, "spec.algorithm.advantage": "ReinforcePlusPlus", "spec.algorithm.noVariance": "LeaveOut"}, "spec.algorithm.noVariance: LeaveOut leaves out every prompt whose samples have one reward, and with rollout.samplesPerPrompt 1 each has: nothing would be trained on. Set noVariance to Keep, or samplesPerPrompt to at least 2.", id="algorithm: groups of one are left out, which all have one reward"),
    pytest.param({"spec.rollout.samplesPerPrompt": 1, "spec.training.globalBatchSize": 32, "spec.training.microBatchSize": 32, "spec.algorithm.advantage": "mine:of_rewards", "spec.rollout.dynamicSampling": {}}, "spec.rollout.dynamicSampling.filter: NoVariance refuses every prompt whose samples have one reward, and with rollout.samplesPerPrompt 1 each has. Give a filter of yours, or samplesPerPrompt of at least 2.", id="dynamic sampling: of groups of one, which all have one reward"),
    pytest.param({"spec.rollout.function": {"function": "a:b"}, "spec.algorithm.advantage": "ReMax"}, "spec.rollout.function: draws its answers itself, and algorithm.advantage ReMax needs a greedy one beside them, which the engine is asked for. Remove rollout.function, or choose another advantage, such as Rloo.", id="rollout: a function that leaves no greedy answers"),
    pytest.param({"spec.algorithm.gae": {"lambda": 0.9}}, "spec.algorithm.gae: is for the advantage Gae, but advantage is Grpo. Set advantage to Gae or remove gae.", id="algorithm: how an estimator weighs that the job does not have"),
    pytest.param({"spec.algorithm.correction": {"floor": 0.5}}, "spec.algorithm.correction.floor: 0.5 is the lower bound of IcePop, but kind is not IcePop. Set kind to IcePop or remove floor.", id="algorithm: a floor without IcePop"),
    pytest.param({"spec.algorithm.correction": {"kind": "IcePop", "floor": 0.5, "cap": 0.4}}, "spec.algorithm.correction.floor: 0.5 is not below cap, so that no token is left. Give less than cap.", id="algorithm: a floor above the cap"),
    pytest.param({"spec.algorithm.correction": {"kind": "Untruncated", "cap": 2}}, "spec.algorithm.correction.cap: 2 bounds weights, and kind Untruncated does not. Set kind to Tis or IcePop, or remove cap.", id="algorithm: a cap of weights without one"),
    pytest.param({"spec.algorithm.correction": {"kind": "m:own", "level": "Sequence"}}, "spec.algorithm.correction.level: Sequence is of the weights that Tis, IcePop and Untruncated give, but kind is m:own. Set kind to one of them or remove level.", id="algorithm: a level of weights that have none"),
    pytest.param({"spec.algorithm.correction": {"mask": {"level": "Sequence"}}}, "spec.algorithm.correction.mask.cap: neither floor nor cap is given, so that every token stays. Give one of them, or both.", id="algorithm: a mask without a bound"),
    pytest.param({"spec.algorithm.proximal": "Rollout", "spec.algorithm.correction": {"kind": "None", "mask": {"cap": 2}}}, "spec.algorithm.correction.mask: compares proximal log-probs with the engine's, which are one with proximal Rollout: nothing would be masked. Remove it, or set proximal to Actor or Recompute.", id="algorithm: a mask of the engine's log-probs by themselves"),
    pytest.param({"spec.algorithm.proximal": "Rollout"}, "spec.algorithm.correction.kind: Tis compares proximal log-probs with the engine's, which are one with proximal Rollout: every weight would be 1. Set kind to None, or proximal to Actor or Recompute.", id="algorithm: a correction of the engine's log-probs by themselves"),
    pytest.param({"spec.algorithm.proximal": "Actor", "spec.roles.actorFwd": {}}, "spec.algorithm.proximal: Actor leaves the log-probs of the role actorFwd, which is given, unread. Remove roles.actorFwd, or set proximal to Recompute.", id="algorithm: a role whose log-probs no one reads"),
    pytest.param({"spec.roles.reference": None}, "spec.algorithm.kl.coefficient: 0.001 needs the role reference, which is absent. Add roles.reference (as {} for one replica) or set the coefficient to 0.", id="algorithm: a KL term without reference"),
    pytest.param({"spec.roles.reference": None, "spec.algorithm.kl.coefficient": 0, "spec.training.refUpdateInterval": 5}, "spec.training.refUpdateInterval: 5 needs the role reference, which is absent. Add roles.reference or remove refUpdateInterval.", id="training: an update of a reference that is absent"),
    pytest.param({"spec.algorithm.advantage": "Distillation"}, "spec.algorithm.advantage: Distillation needs a teacher, and roles.reference.modelPath names none. Give the folder of one, or choose another advantage.", id="distillation: without a teacher"),
    pytest.param({"spec.roles": {"reference": {"modelPath": "/models/teacher"}}, "spec.training.refUpdateInterval": 5}, "spec.training.refUpdateInterval: 5 makes versions of the policy the reference, which is the model in roles.reference.modelPath. Remove one of the two.", id="distillation: a teacher that would be replaced"),
    pytest.param({"spec.roles": {"reference": {"modelPath": "/models/teacher"}, "rollout": {"engine": {"kind": "Sim"}}}}, "spec.roles.reference.modelPath: /models/teacher is not read by a simulated job. Remove it.", id="distillation: a teacher of a simulated job"),
    pytest.param({"spec.roles": {"reference": {"modelPath": "/models/teacher"}}, "spec.algorithm.advantage": "Distillation", "spec.algorithm.kl.placement": "Reward"}, "spec.algorithm.kl.placement: Reward takes the distance to the teacher off rewards, which the advantage Distillation does not read: it is that distance already. Set placement to Loss, or choose another advantage.", id="distillation: counted twice"),
    pytest.param({"spec.algorithm.advantage": "ReinforcePlusPlus", "spec.rollout.dynamicSampling": {}}, "spec.rollout.dynamicSampling.filter: NoVariance refuses groups of which nothing is learnt where samples are measured against their group, and algorithm.advantage ReinforcePlusPlus does not do that. Give a function of yours as package.module:function, or choose another advantage, such as Grpo.", id="dynamic sampling: by rewards that no group is compared by"),
    pytest.param({"spec.data": {"sources": [{"prompts": "a", "weight": 2}, {"prompts": "b"}]}, "spec.rollout.curriculum": {"function": "a:b"}}, "spec.data.sources: have weights, and rollout.curriculum chooses every row, whatever its source. Remove the weights, or the curriculum.", id="curriculum: sources with weights"),
    pytest.param({"spec.roles": {"reference": {"modelPath": "/models/teacher"}}, "spec.algorithm.advantage": "Distillation", "spec.algorithm.noVariance": "LeaveOut"}, "spec.algorithm.noVariance: LeaveOut goes by rewards, which the advantage Distillation does not read: what a teacher says of a sample would be left out. Set noVariance to Keep, or choose another advantage.", id="distillation: groups left out by their rewards"),
    pytest.param({"spec.rollout.reward": {"onFailure": {"score": 0.5}}}, "spec.rollout.reward.onFailure.score: 0.5 belongs to then Score, but then is not Score. Set then to Score or remove score.", id="reward: a score for nobody"),
    pytest.param({"spec.rollout.reward": {"onFailure": {"then": "Score"}}}, "spec.rollout.reward.onFailure.score: is missing: then Score gives it to samples that could not be scored. Give a number, such as 0.", id="reward: no score to give"),
    pytest.param({"spec.data": {"reasoningGym": {"dataset": "d"}, "sourceKey": "kind"}}, "spec.data.sourceKey: names a key of the lines of prompts, and tasks of reasoningGym have none. Remove sourceKey.", id="data: a source of tasks"),
    pytest.param({"spec.data.labelKey": None}, "spec.data.labelKey: null leaves the reward of this job, which compares answers with labels, without one. Give the key of the label, or rollout.reward.custom.", id="data: exact match without a label"),
    pytest.param({"spec.data.applyChatTemplate": True}, "spec.data.applyChatTemplate: true needs a tokenizer with a chat template, and that of model.config has none. Set it to false, or give model.tokenizerPath or data.chatTemplate.file.", id="data: a chat template from a character tokenizer"),
    pytest.param({"spec.rollout.overSampling": 1.25, "spec.rollout.partial": {}}, "spec.rollout.overSampling: 1.25 draws groups that a later rollout goes on with, which needs order Swap and partial. Set rollout.order to Swap and give rollout.partial, or remove rollout.overSampling.", id="over-sampling: of groups that are bound to their rollout"),
    pytest.param({"spec.rollout.function": {"function": "a:b"}, "spec.rollout.partial": {}}, "spec.rollout.partial: carries tokens, and what a function (rollout.function) has done until it is interrupted cannot be carried. Remove rollout.partial or rollout.function.", id="partial: beside a rollout function"),
    pytest.param({"spec.rollout.sampling": {"maxNewTokens": 8, "stop": ["END"]}, "spec.roles.rollout.engine.kind": "SGLang", "spec.rollout.partial": {}}, "spec.rollout.partial: goes on behind tokens that were drawn before, and an engine would not see a text of sampling.stop that begins in them. Give tokens in sampling.stopTokenIds, or remove rollout.partial.", id="partial: with texts that end a sample"),
    pytest.param({"spec.rollout.function": {"function": "a:b", "timeoutSeconds": 600}}, "spec.rollout.function.timeoutSeconds: 600 is not below restartPolicy.stallTimeoutSeconds, so that a job whose tools take as long would be called a stalled one. Give less, or raise stallTimeoutSeconds.", id="rollout: a tool that outlasts a stall"),
    pytest.param({"spec.rollout.sampling.maxNewTokens": 64}, "spec.rollout.sampling.maxNewTokens: 64 leaves no room for a prompt in model.config.maxPositionEmbeddings. Give less than maxPositionEmbeddings, or raise that.", id="rollout: answers that fill all positions"),
    pytest.param({"spec.roles.rollout": {"shareDevicesWith": "actor"}}, "spec.roles.rollout.shareDevicesWith: actor needs gpus of at least 1, and no more in all pods (replicas or autoscaling.maxReplicas x gpus) than the actor has, but roles.rollout.gpus is 0 and the actor has 1 x 0. Change gpus or replicas or autoscaling.maxReplicas, or remove shareDevicesWith.", id="roles: a rollout that shares no device"),
    pytest.param({"spec.roles.actor": {"gpus": 2}, "spec.roles.rollout": {"shareDevicesWith": "actor", "gpus": 1, "autoscaling": {"minReplicas": 1, "maxReplicas": 3}}}, "spec.roles.rollout.shareDevicesWith: actor needs gpus of at least 1, and no more in all pods (replicas or autoscaling.maxReplicas x gpus) than the actor has, but roles.rollout.gpus is 1 and the actor has 1 x 2. Change gpus or replicas or autoscaling.maxReplicas, or remove shareDevicesWith.", id="roles: rollouts that may become more than the devices that they share"),
    pytest.param({"spec.roles.rollout": {"replicas": 3, "autoscaling": {"minReplicas": 1, "maxReplicas": 4}}}, "spec.roles.rollout.replicas: 3 is not yours to give: with autoscaling RLJob sets the number itself, from 1 to 4. Remove replicas or set it back to 1, or remove autoscaling.", id="roles: replicas beside autoscaling"),
    pytest.param({"spec.roles.rollout": {"autoscaling": {"minReplicas": 3, "maxReplicas": 2}}}, "spec.roles.rollout.autoscaling.maxReplicas: 2 is below minReplicas 3. Give at least minReplicas.", id="roles: autoscaling between bounds that cross"),
    pytest.param({"spec.roles.actorFwd": {"shareDevicesWith": "actor", "gpus": 1}}, "spec.roles.actorFwd.shareDevicesWith: actor needs gpus of at least 1, and no more in all pods (replicas x gpus) than the actor has, but roles.actorFwd.gpus is 1 and the actor has 1 x 0. Change gpus or replicas, or remove shareDevicesWith.", id="roles: an actorFwd that shares devices of an actor without"),
    pytest.param({"spec.roles.actor": {"gpus": 1}, "spec.roles.reference": {"shareDevicesWith": "actor", "gpus": 1, "replicas": 2}}, "spec.roles.reference.shareDevicesWith: actor needs gpus of at least 1, and no more in all pods (replicas x gpus) than the actor has, but roles.reference.gpus is 1 and the actor has 1 x 1. Change gpus or replicas, or remove shareDevicesWith.", id="roles: two references that share one device"),
    pytest.param({"spec.roles.actor": {"backend": "Fsdp"}, "spec.roles.reference": {"replicas": 3, "ranksPerPod": 2, "shards": 4}}, "spec.roles.reference.shards: 4 ranks for each model leave ranks over: 3 pods have 2 each, and a model lies within a pod or on whole pods. Give a divisor of a pod's ranks, or a multiple of them that divides the ranks of all pods.", id="roles: a reference whose pods make no whole models"),
    pytest.param({"spec.roles.reference": {"replicas": 2, "shards": 2}}, "spec.roles.reference.shards: 2 needs the backend Fsdp, and this role has another, of which each rank holds a whole model. Set backend to Fsdp or leave shards out.", id="roles: a sharded reference of a decoder that is whole"),
    pytest.param({"spec.roles.actorFwd": {"replicas": 2, "shards": 2}}, "spec.roles.actorFwd.shards: 2 needs the backend Fsdp, and this role has another, of which each rank holds a whole model. Set backend to Fsdp or leave shards out.", id="roles: a sharded actorFwd of a decoder that is whole"),
    pytest.param({"spec.roles.actor": {"gpus": 1, "shareDevicesWith": "actor"}}, "spec.roles.actor.shareDevicesWith: actor is for rollout, critic, actorFwd and reference. Remove it.", id="roles: an actor that shares with itself"),
    pytest.param({"spec.roles.advantages": {"shareDevicesWith": "actor"}}, "spec.roles.advantages.shareDevicesWith: actor is for rollout, critic, actorFwd and reference. Remove it.", id="roles: advantages that share"),
    pytest.param({"spec.algorithm.advantage": "Gae", "spec.roles.critic": {"shareDevicesWith": "actor", "gpus": 1}}, "spec.roles.critic.shareDevicesWith: actor needs gpus of at least 1, and no more in all pods (replicas x gpus) than the actor has, but roles.critic.gpus is 1 and the actor has 1 x 0. Change gpus or replicas, or remove shareDevicesWith.", id="roles: a critic that shares devices of an actor without"),
    pytest.param({"spec.roles.critic": {}}, "spec.roles.critic: is a role whose values algorithm.advantage Grpo does not read. Set advantage to Gae, or remove roles.critic.", id="critic: one whose values no one reads"),
    pytest.param({"spec.algorithm.advantage": "Gae"}, "spec.algorithm.advantage: Gae needs the role critic, which is absent. Add roles.critic (as {} for one replica), or choose another advantage.", id="critic: none for advantages of values"),
    pytest.param({"spec.training.criticOnlySteps": 5}, "spec.training.criticOnlySteps: 5 needs the role critic, which is absent. Add roles.critic, or remove criticOnlySteps.", id="critic: steps of one that is absent"),
    pytest.param({"spec.algorithm.advantage": "Gae", "spec.roles.critic": {"backend": "Sim"}}, "spec.roles.critic.backend: Sim does not go with the actor's: both are simulated, or neither. Leave backend out.", id="critic: a simulated one beside an actor that computes"),
    pytest.param({"spec.algorithm.advantage": "Gae", "spec.roles": {"reference": {}, "critic": {"modelPath": "/models/reward"}, "rollout": {"engine": {"kind": "Sim"}}}}, "spec.roles.critic.modelPath: /models/reward is not read by a simulated job. Remove it.", id="critic: a model for a simulated one"),
    pytest.param({"spec.algorithm.advantage": "Gae", "spec.roles.critic": {"gpus": 2, "ranksPerPod": 1}}, "spec.roles.critic.ranksPerPod: 1 is not the number of its GPUs, 2, and each GPU has one rank. Leave ranksPerPod out, or set gpus to 0.", id="critic: ranks beside its GPUs"),
    pytest.param({"spec.algorithm.advantage": "Gae", "spec.training.itersPerTrainUpdate": 256, "spec.training.microBatchSize": 1, "spec.roles.critic": {"replicas": 2, "ranksPerPod": 2}}, "spec.training.itersPerTrainUpdate: 256 slices of training.globalBatchSize 512 do not go evenly to 4 models of the critic (2 replicas x 2 ranks per pod / 1 ranks per model). Give a divisor of globalBatchSize / models.", id="critic: slices that do not go evenly to its ranks"),
    pytest.param({"spec.algorithm.advantage": "Gae", "spec.training.claimPolicy": "Group", "spec.training.itersPerTrainUpdate": 4, "spec.training.globalBatchSize": 64, "spec.training.microBatchSize": 2, "spec.roles.critic": {"replicas": 4}}, "spec.training.claimPolicy: Group cannot give whole groups of 16 samples to 4 models of the critic (4 replicas x 1 ranks per pod / 1 ranks per model) in 4 slices of training.globalBatchSize 64. Give a global batch that is a multiple of their product, or Balanced.", id="critic: whole groups that do not go evenly to its ranks"),
    pytest.param({"spec.restartPolicy": {"table": {"actor": "InPlace"}}}, "spec.restartPolicy.table.actor: InPlace is not possible: a gradient that is half applied cannot be taken back, so a failed actor restarts the job. Give Global or leave the row out.", id="restart: an actor in place"),
    pytest.param({"spec.restartPolicy": {"table": {"critic": "InPlace"}}}, "spec.restartPolicy.table.critic: InPlace is not possible: a gradient that is half applied cannot be taken back, so a failed critic restarts the job. Give Global or leave the row out.", id="restart: a critic in place"),
    pytest.param({"spec.checkpoint": {"volume": {"claimName": "mine", "onDelete": "Retain"}}}, "spec.checkpoint.volume.onDelete: Retain is for a claim that is made for the job, but claimName mine is yours, and is never deleted. Remove one of the two.", id="checkpoint: what becomes of a claim that is the user's"),
    pytest.param({"spec.model": {"path": "/models/moe"}, "spec.training.experts": {}}, "spec.training.experts: needs the backend Megatron for every role that trains, and this job has another, which does not balance experts. Set backend to Megatron or leave experts out.", id="training: experts that nothing balances"),
    pytest.param({"spec.model": {"path": "/models/moe"}, "spec.training.experts": {}, "spec.algorithm.advantage": "Gae", "spec.roles.actor": {"backend": "Megatron"}, "spec.roles.critic": {"backend": "Fsdp"}}, "spec.training.experts: needs the backend Megatron for every role that trains, and this job has another, which does not balance experts. Set backend to Megatron or leave experts out.", id="training: experts that the critic does not balance"),
    pytest.param({"spec.roles.actor": {"backend": "Megatron"}, "spec.training.experts": {"auxLossCoefficient": 0.001}}, "spec.training.experts: needs a model with experts, and that of model.config has none. Leave experts out, or give model.path.", id="training: no experts to balance"),
    pytest.param({"spec.training.recomputeModules": ["CoreAttn"]}, "spec.training.recomputeModules: needs the backend Megatron, and this job has another, which computes whole layers again or nothing. Set roles.actor.backend to Megatron or leave recomputeModules out.", id="training: parts that nothing computes again"),
    pytest.param({"spec.roles.actor": {"backend": "Megatron"}, "spec.training.recomputeModules": ["Mlp", "Moe"]}, "spec.training.recomputeModules: has Moe, and the layers of model.config have no experts. Give Mlp in its place.", id="training: no experts to compute again"),
    pytest.param({"spec.roles.actor": {"backend": "Megatron"}, "spec.training.recomputeModules": ["Mlp"], "spec.training.activationCheckpointing": True}, "spec.training.recomputeModules: names parts of a layer, and activationCheckpointing true has all of it computed again. Give one of them.", id="training: parts and the whole computed again"),
    pytest.param({"spec.restartPolicy": {"backoff": {"initialSeconds": 100}}}, "spec.restartPolicy.backoff.maxSeconds: 60 is below initialSeconds 100. Give at least initialSeconds.", id="restart: a backoff that begins above its end"),
    pytest.param({"spec.restartPolicy": {"stallTimeoutSeconds": 30}}, "spec.restartPolicy.stallTimeoutSeconds: 30 is not above heartbeatTimeoutSeconds 30, so that a rank that hangs would be called a stalled job. Give more than heartbeatTimeoutSeconds.", id="restart: a stall that is called before a hang"),
    pytest.param({"spec.restartPolicy": {"collectiveTimeoutSeconds": 30}}, "spec.restartPolicy.collectiveTimeoutSeconds: 30 is not above heartbeatTimeoutSeconds 30, so that those who wait for a rank that hangs would give up before it is called silent. Give more than heartbeatTimeoutSeconds, or leave it out.", id="restart policy: those who wait would be named"),
    pytest.param({"spec.restartPolicy": {"collectiveTimeoutSeconds": 600}}, "spec.restartPolicy.collectiveTimeoutSeconds: 600 is not below stallTimeoutSeconds 600, so that a rank that does not come would be called a stalled job. Give less than stallTimeoutSeconds, or leave it out.", id="restart policy: a collective that outlasts a stall"),
    pytest.param({"spec.restartPolicy": {"coordinatorAbsenceSeconds": 600}}, "spec.restartPolicy.coordinatorAbsenceSeconds: 600 is not below stallTimeoutSeconds 600, so that a rank that waits for its coordinator would be called a stalled job. Give less than stallTimeoutSeconds, or leave it out.", id="restart policy: a coordinator that is waited for until the job is stalled"),
    pytest.param({"spec.restartPolicy": {"coordinatorAbsenceSeconds": 50, "collectiveTimeoutSeconds": 40}}, "spec.restartPolicy.coordinatorAbsenceSeconds: 50 is not below collectiveTimeoutSeconds 40, so that a rank that waits for its coordinator would be called one that hangs. Give less than collectiveTimeoutSeconds, or leave it out.", id="restart policy: a coordinator that is waited for until others give up"),
    pytest.param({"spec.restartPolicy": {"failureRules": [{"name": "oom", "action": "FailJob"}]}}, "spec.restartPolicy.failureRules[0].exitCodes: neither exitCodes nor podReasons says which failures the rule oom is for. Give at least one.", id="restart: a rule for no failure"),
]  # fmt: skip

STATED_BY_PYTHON_ALONE = [
    pytest.param({"spec.roles.rollout": {"engine": {"env": {"A=B": "1"}}}}, "spec.roles.rollout.engine.env: 'A=B' is no name of a variable. Give letters, digits and _, and no digit first.", id="a variable that is none"),
    pytest.param({"spec.rollout.reward": {"judge": {"url": "http://j", "model": "m", "rubric": "Grade it."}}}, "spec.rollout.reward.judge.rubric: it has no {response}: the judge would see no answer. Put it where the answer goes.", id="reward: a rubric without an answer"),
    pytest.param({"spec.rollout.reward": {"format": {"pattern": "(a"}}}, "spec.rollout.reward.format.pattern: it is no regular expression (missing ), unterminated subpattern at position 0). Correct it.", id="reward: no pattern"),
    pytest.param({"spec.data.chatTemplate": {"kwargs": {"tokenize": True}}}, "spec.data.chatTemplate.kwargs: tokenize is no variable of a template, but given by the job. Remove it.", id="data: a variable of ours"),
    pytest.param({"spec.data": {"sources": [{"prompts": "a", "weight": 1000}, {"prompts": "b"}]}}, "spec.data.sources: the weight 1 of b is less than a thousandth of all. Raise it, or leave the source out.", id="data: a rare source"),
    pytest.param({"spec.model.config.tokenizer.alphabet": "abca"}, "spec.model.config.tokenizer.alphabet: the character 'a' is in it twice. Write each once.", id="model: an alphabet with twins"),
]  # fmt: skip
"""CEL cannot say within its budget that characters are distinct, or what the keys of a map look like."""

SYNTAX = [
    pytest.param("a: [1", "job.yaml: line 1, column 6: is not a manifest in YAML: while parsing a flow sequence, expected ',' or ']', but got '<stream end>'.", id="an open bracket"),
    pytest.param("a: 1\nb:\n  c: 1\n  c: 2", "job.yaml: line 4, column 3: is not a manifest in YAML: the key 'c' is given twice (first in line 3).", id="a key given twice"),
    pytest.param("- a\n- b", "job.yaml: holds no object. Give one with apiVersion, kind, metadata and spec, as examples/ has them.", id="a list"),
    pytest.param("", "job.yaml: holds no object. Give one with apiVersion, kind, metadata and spec, as examples/ has them.", id="nothing"),
]  # fmt: skip
