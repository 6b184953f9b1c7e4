"""The examples with which the pages of the reference begin: a whole manifest, and a part of one for each section.

Only text. `generate.reference` prints it, and tests put each part in the place of what the quickstart has there.
"""

WHOLE = """\
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata:
  name: first
spec:
  model:
    config: # a tiny model with random weights; path: names a checkpoint instead
      tokenizer: {alphabet: 0123456789=.}
  data:
    prompts: ../../examples/data/reverse-and-end.jsonl
  rollout:
    numRollouts: 240
    batchSize: 32 # prompts
    samplesPerPrompt: 16
    maxStaleness: 1
    sampling: {maxNewTokens: 3, stopTokenIds: [11]} # the full stop, twelfth in the alphabet
    reward: {characterMatch: {}}
  training:
    globalBatchSize: 512 # samples of an optimizer step
    microBatchSize: 512
    optimizer: {learningRate: 2.0e-3}
"""

EXAMPLES = {
    "model": """\
spec:
  model:
    path: /models/Qwen3-4B # or hf:Qwen/Qwen3-4B, from the cache of huggingface_hub
    dtype: bfloat16
""",
    "data": """\
spec:
  data:
    prompts: /data/train.parquet
    promptKey: question
    labelKey: answer
    systemPrompt: Think step by step.
    chatTemplate: {file: /data/template.jinja, kwargs: {enable_thinking: false}}
    applyChatTemplate: true
""",
    "algorithm": """\
spec:
  algorithm:
    advantage: DrGrpo
    lossAggregation: Constant
    clip: {low: 0.2, high: 0.28}
""",
    "rollout": """\
spec:
  rollout:
    numRollouts: 500
    batchSize: 32 # prompts
    samplesPerPrompt: 16
    maxStaleness: 2 # rollouts that generation may be ahead of training
    sampling: {temperature: 1.0, maxNewTokens: 30}
    reward:
      sum:
        - {name: right, exactMatch: {}}
        - {name: form, weight: 0.2, custom: {function: "reward:form", path: .}}
""",
    "training": """\
spec:
  training:
    globalBatchSize: 256 # samples of an optimizer step: two for each rollout of 32 prompts x 16
    maxTokensPerMicroBatch: 32768
    optimizer: {learningRate: 1.0e-6, schedule: Cosine, warmupSteps: 10}
""",
    "roles": """\
spec:
  roles:
    actor: {gpus: 4}
    rollout:
      replicas: 2
      gpus: 2
      engine: {kind: SGLang, tensorParallel: 2, python: /opt/sglang/bin/python}
    reference: {gpus: 1}
""",
    "transferQueue": """\
spec:
  transferQueue:
    storageUnits: 4
    storageBytes: 8589934592
""",
    "weightSync": """\
spec:
  weightSync:
    interruption: InPlace # samples that run go on under the new weights
    timeoutSeconds: 120
""",
    "checkpoint": """\
spec:
  checkpoint:
    everySteps: 20
    keep: 3
    keepEvery: 100
""",
    "restartPolicy": """\
spec:
  restartPolicy:
    table: {rollout: InPlace} # an engine's machine may go at any time
    heartbeatTimeoutSeconds: 60
    failureRules:
      - {name: out of memory, podReasons: [OOMKilled], action: FailJob}
""",
    "evaluation": """\
spec:
  evaluation:
    everySteps: 20
    sets:
      - name: held-out
        data: {prompts: /data/held-out.jsonl}
        samplesPerPrompt: 8
""",
    "stopWhen": """\
spec:
  stopWhen: {metric: reward, above: 0.95, forSteps: 5}
""",
    "telemetry": """\
spec:
  telemetry:
    sampleLog: true # what rljob audit reads
    generationsPerRollout: 32
""",
    "simulation": """\
spec:
  simulation:
    generation: {secondsPerToken: 0.01}
    training: {secondsPerRow: 0.002}
    speed: 10
  roles:
    rollout: {engine: {kind: Sim}}
    reference: {}
""",
    "scheduling": """\
spec:
  scheduling:
    priorityClassName: research
    topology: {key: topology.kubernetes.io/zone, rule: Required}
""",
    "infrastructure": """\
spec:
  infrastructure:
    template:
      spec: {nodeSelector: {pool: cpu}}
    coordinator:
      resources: {requests: {cpu: 1, memory: 1Gi}}
""",
    "restartRequest": """\
spec:
  restartRequest: {id: 2026-11-27, reason: a new driver}
""",
}
"""Section: YAML that begins with `spec:`."""
