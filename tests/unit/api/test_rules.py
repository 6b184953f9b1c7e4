"""Every cross-field rule says the same in Python and in CEL."""

from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rljob_api.generate.crd import Schema, spec_schema
from rljob_api.problems import sentences
from rljob_api.rule import VALIDATIONS
from rljob_api.spec import RLJob
from tests.unit.api.api_server import broken_rules, defaulted
from tests.unit.api.manifests import changed
from tests.unit.api.sentences import CROSS_FIELD

SCHEMA = spec_schema()

SIZES = st.sampled_from([1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512])
SHAPE: dict[str, st.SearchStrategy[Any]] = {
    "replicas": st.integers(1, 4),
    "ranksPerPod": st.integers(1, 3),
    "gpus": st.integers(0, 3),
    "shareDevicesWith": st.sampled_from([None, "actor"]),
}
SHAPES = st.fixed_dictionaries({}, optional=SHAPE)
FEW = st.sampled_from([1, 1, 2, 3])
PARALLELISM = st.none() | st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("tensor", "pipeline", "virtualPipeline", "context", "expert", "expertTensor"), FEW),
        "sequence": st.sampled_from([True, False, None]),
    },
)
LAID_OUT = {
    "backend": st.sampled_from(["Flat", "Fsdp", "Megatron", "Megatron", "Sim", None]),
    "parallelism": PARALLELISM,
}
ACTOR = st.fixed_dictionaries(
    {}, optional={**SHAPE, **LAID_OUT, "backend": st.sampled_from(["Flat", "Fsdp", "Megatron", "Megatron", None])}
)
CRITIC = st.fixed_dictionaries(
    {},
    optional={
        **SHAPE,
        **LAID_OUT,
        "modelPath": st.sampled_from(["r", None]),
    },
)
FORWARD = {**SHAPE, **LAID_OUT, "shards": st.sampled_from([1, 2, 3])}
REFERENCE = st.fixed_dictionaries({}, optional={**FORWARD, "modelPath": st.sampled_from(["t", None])})
ENGINE = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from(["Torch", "SGLang"]),
        "args": st.lists(st.sampled_from(["--log-level", "--port=1", "--attention-backend", "triton"]), max_size=2),
        "env": st.sampled_from([{}, {"A": "1"}, {"OMP_NUM_THREADS": "2"}]),
        "python": st.sampled_from(["/opt/python", None]),
        "tensorParallel": st.integers(1, 3),
    },
)
AUTOSCALING = st.fixed_dictionaries({"minReplicas": st.integers(1, 3), "maxReplicas": st.integers(1, 3)})
ROLLOUT = st.fixed_dictionaries(
    {}, optional={**SHAPE, "engine": ENGINE, "autoscaling": st.one_of(st.none(), AUTOSCALING)}
)
EVALUATION_DATA = st.sampled_from(
    [
        {"prompts": "a"},
        {"prompts": "a", "labelKey": "", "sourceKey": "b"},
        {"prompts": "a", "labelKey": None, "sourceKey": None},
        {"prompts": "a", "promptKey": None, "applyChatTemplate": None, "chatTemplate": None},
        {"prompts": "a", "labelKey": "c", "sourceKey": ""},
        {"prompts": "a", "applyChatTemplate": True, "systemPrompt": ""},
        {"prompts": "a", "applyChatTemplate": False, "chatTemplate": {"kwargs": {}}},
        {"prompts": "a", "chatTemplate": {"file": ""}},
        {"prompts": "a", "applyChatTemplate": True, "chatTemplate": {"file": "t"}},
        {"reasoningGym": {"dataset": "d"}, "labelKey": "", "sourceKey": ""},
        {"reasoningGym": {"dataset": "d"}, "labelKey": None, "sourceKey": None},
    ]
)
EVALUATION_SETS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["a", "b"]), "data": EVALUATION_DATA},
        optional={
            "sampling": st.sampled_from([None, {}, {"stop": []}, {"stop": ["."]}]),
            "samplesPerPrompt": st.sampled_from([1, 2, 3, 8]),
        },
    ),
    min_size=1,
    max_size=2,
)
MEASURED = st.sampled_from(
    [
        *("reward", "rewards", "reward/mean", "reward/", "rollout/turns", "policy/entropy", "policy/kl"),
        *("eval/a/mean@1", "eval/a/mean@2", "eval/b/source/pass@2", "eval/a/pass@3", "eval/a/pass@6", "eval/a/std@1"),
        *("eval/a/std@3", "eval/c/mean@1", "eval/a/prompts", "eval/prompts", "eval/b/medians", "eval/"),
        *("critic/loss", "critic/value", "groups/draws", "groups/put_off", "staleness/kl", "seconds/log_probs"),
        *("kl/in_reward", "staleness/too_old_share", "samples/filtered_share"),
        *("policy/kl_reference", "correction/weight", "experts/load_max", "experts/aux_loss", "experts/z_loss"),
        *("reward/a", "reward/a/own", "reward/overlong", "reward/shorter", "rollout/greedy_reward"),
    ]
)
BOUND = st.sampled_from([0, 0.5, -1, None])
# Always with a learning rate: the CEL library of this test writes 1e-06 as 0.000001.
OPTIMIZER = st.fixed_dictionaries(
    {"learningRate": st.sampled_from([0.125, 1])},
    optional={
        "schedule": st.sampled_from(["Constant", "Linear", "Cosine"]),
        "minLearningRate": st.sampled_from([0, 0.0, 0.125, 0.5, 1]),
    },
)
SCOPES = st.sampled_from(["Global", "InPlace"])

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "spec.model.path": st.sampled_from(["p", None]),
    "spec.model.config": st.none(),
    "spec.model.tokenizerPath": st.sampled_from(["t", None]),
    "spec.model.config.numAttentionHeads": st.sampled_from([2, 3, 4, 6]),
    "spec.model.config.numKeyValueHeads": st.sampled_from([1, 2, 3, 4]),
    "spec.model.config.numLayers": st.sampled_from([1, 2, 3, 4, 12]),
    "spec.model.config.intermediateSize": st.sampled_from([8, 9, 12]),
    "spec.model.config.maxPositionEmbeddings": st.sampled_from([8, 64, 1024]),
    "spec.model.config.vocabSize": st.sampled_from([12, 13, 97, 98, 257, 258, None]),
    "spec.model.config.tokenizer.kind": st.sampled_from(["Character", "Byte"]),
    # ASCII only: the CEL library of this test counts bytes where CEL, and so the API server, counts characters.
    "spec.model.config.tokenizer.alphabet": st.sampled_from(["ab", "0123456789=", None]),
    "spec.data.prompts": st.none(),
    "spec.data.sources": st.sampled_from(
        [None, [{"prompts": "a"}], [{"prompts": "a", "weight": 0.5}, {"prompts": "b"}], [{"prompts": "a", "weight": 1}]]
    ),
    "spec.data.chatTemplate": st.sampled_from([None, {}, {"file": "t"}]),
    "spec.data.systemPrompt": st.sampled_from([None, "s"]),
    "spec.rollout.longPrompts": st.sampled_from(["Drop", "Refuse"]),
    "spec.data.reasoningGym": st.sampled_from([{"dataset": "d"}, None]),
    "spec.data.labelKey": st.sampled_from([None, "", "answer"]),
    "spec.data.sourceKey": st.sampled_from([None, "kind"]),
    "spec.data.applyChatTemplate": st.booleans(),
    "spec.algorithm.kl.coefficient": st.sampled_from([0, 0.0, 0.5, 1]),
    "spec.rollout.batchSize": SIZES,
    "spec.rollout.samplesPerPrompt": st.sampled_from([1, 2, 3, 16]),
    "spec.rollout.sampling.maxNewTokens": st.sampled_from([7, 8, 64]),
    "spec.rollout.sampling.stop": st.sampled_from([[], ["."], ["a", "b"]]),
    "spec.rollout.sampling.minP": st.sampled_from([None, 0, 0.1]),
    "spec.rollout.function": st.none()
    | st.fixed_dictionaries({"function": st.just("a:b")}, optional={"timeoutSeconds": st.sampled_from([1, 30, None])}),
    "spec.rollout.reward.exactMatch": st.sampled_from([{}, None]),
    "spec.rollout.reward.characterMatch": st.sampled_from([{}, None]),
    "spec.rollout.reward.mathVerify": st.sampled_from([{}, None]),
    "spec.rollout.reward.format": st.sampled_from([{"pattern": "a"}, None]),
    "spec.rollout.reward.judge": st.none()
    | st.fixed_dictionaries(
        {"url": st.just("http://j"), "model": st.just("m"), "rubric": st.just("{response}")},
        optional={"lowest": st.sampled_from([1, 2]), "highest": st.sampled_from([1, 5])},
    ),
    "spec.rollout.reward.overlong": st.sampled_from([{"buffer": 1}, None]),
    "spec.rollout.reward.shorter": st.sampled_from([{}, None]),
    "spec.rollout.reward.remote": st.sampled_from([{"url": "http://r"}, None]),
    "spec.rollout.order": st.sampled_from(["Bound", "Swap"]),
    "spec.rollout.maxStaleness": st.sampled_from([0, 1]),
    "spec.training.epochsPerRollout": st.sampled_from([1, 2]),
    "spec.rollout.reward.custom": st.sampled_from([{"function": "a:b"}, None]),
    "spec.rollout.reward.sum": st.none()
    | st.lists(
        st.fixed_dictionaries(
            {"name": st.sampled_from(["a", "b", "std"])},
            optional={
                "exactMatch": st.just({}),
                "tags": st.just({"names": ["t"]}),
                "custom": st.just({"function": "a:b"}),
                "weight": st.just(0.5),
            },
        ),
        min_size=1,
        max_size=3,
    ),
    "spec.rollout.reward.onFailure": st.fixed_dictionaries(
        {},
        optional={
            "then": st.sampled_from(["Invalid", "Score"]),
            "score": st.sampled_from([None, 0, 0.5]),
            "retries": st.just(0),
        },
    ),
    "spec.stopWhen": st.none()
    | st.fixed_dictionaries({"metric": MEASURED}, optional={"above": BOUND, "below": BOUND, "forSteps": st.just(3)}),
    "spec.checkpoint.keepBest": st.none() | st.fixed_dictionaries({"metric": MEASURED}),
    "spec.rollout.overSampling": st.sampled_from([None, 1.25]),
    "spec.rollout.partial": st.sampled_from([None, {}, {"maxTokens": 4}]),
    "spec.rollout.curriculum": st.sampled_from([None, {"function": "a:b"}]),
    "spec.rollout.dynamicSampling": st.sampled_from([None, {}, {"filter": "NoVariance"}, {"filter": "a:b"}]),
    "spec.evaluation": st.none() | st.fixed_dictionaries({"sets": EVALUATION_SETS, "everySteps": st.just(2)}),
    "spec.algorithm.noVariance": st.sampled_from(["Keep", "LeaveOut"]),
    "spec.algorithm.sampleFilter": st.sampled_from(["a:b", None]),
    "spec.algorithm.proximal": st.sampled_from(["Actor", "Rollout", "Recompute", None]),
    "spec.algorithm.kl.estimator": st.sampled_from(["K1", "K2", "K3"]),
    "spec.algorithm.kl.weighted": st.sampled_from([True, False, None]),
    "spec.algorithm.lossAggregation": st.sampled_from(["TokenMean", "Constant", "m:own"]),
    "spec.algorithm.constantLength": st.sampled_from([8, None]),
    "spec.algorithm.loss": st.sampled_from(["PpoClip", "Gspo", "Cispo", "Sapo", "Reinforce", "m:own", None]),
    "spec.algorithm.clip": st.fixed_dictionaries(
        {},
        optional={
            "low": st.just(0.5),
            "high": st.sampled_from([0.5, None]),
            "dual": st.sampled_from([1.25, 3.0]),
            "positiveTemperature": st.sampled_from([2.0, None]),
            "negativeTemperature": st.just(2.0),
        },
    ),
    "spec.algorithm.correction.kind": st.sampled_from(["None", "Tis", "IcePop", "Untruncated", "m:own"]),
    "spec.algorithm.correction.cap": st.sampled_from([2.0, None]),
    "spec.algorithm.correction.level": st.sampled_from(["Token", "Sequence", None]),
    "spec.algorithm.correction.mask": st.none()
    | st.fixed_dictionaries(
        {},
        optional={
            "level": st.sampled_from(["GeometricMean", None]),
            "floor": st.sampled_from([0.5, None]),
            "cap": st.sampled_from([1.5, None]),
        },
    ),
    "spec.training.globalBatchSize": SIZES,
    "spec.training.microBatchSize": st.one_of(SIZES, st.none()),
    "spec.training.packing": st.booleans(),
    "spec.training.activationCheckpointing": st.sampled_from([True, False, None]),
    "spec.training.recomputeModules": st.sampled_from([None, ["CoreAttn"], ["Mlp", "CoreAttn"], ["Moe"]]),
    "spec.training.experts": st.sampled_from(
        [
            None,
            {},
            {"auxLossCoefficient": 0.5, "balancing": "SeqAuxLoss"},
            {"auxLossCoefficient": 0, "zLossCoefficient": 1},
        ]
    ),
    "spec.training.maxTokensPerMicroBatch": st.sampled_from([4096, None]),
    "spec.training.optimizer": OPTIMIZER,
    "spec.training.itersPerTrainUpdate": SIZES,
    "spec.training.claimPolicy": st.sampled_from(["Fifo", "Group", "Balanced"]),
    "spec.training.refUpdateInterval": st.sampled_from([1, 5, None]),
    "spec.algorithm.advantage": st.sampled_from(["Grpo", "Gae", "ReMax", "Distillation"]),
    "spec.algorithm.kl.placement": st.sampled_from(["Reward", "Loss", None]),
    "spec.training.criticOnlySteps": st.sampled_from([1, 5, None]),
    "spec.roles.actor": ACTOR,
    "spec.roles.critic": st.one_of(st.none(), CRITIC),
    "spec.roles.rollout": ROLLOUT,
    "spec.roles.actorFwd": st.one_of(st.none(), st.fixed_dictionaries({}, optional=FORWARD)),
    "spec.roles.reference": st.one_of(st.none(), REFERENCE),
    "spec.roles.advantages": st.one_of(st.none(), SHAPES),
    "spec.restartPolicy.table.actor": st.one_of(st.none(), SCOPES),
    "spec.restartPolicy.table.rollout": SCOPES,
    "spec.restartPolicy.backoff.initialSeconds": st.sampled_from([0, 60, 61.5]),
    "spec.restartPolicy.backoff.maxSeconds": st.sampled_from([0.0, 60, 100]),
    "spec.restartPolicy.failureRules": st.lists(
        st.fixed_dictionaries(
            {"name": st.just("oom"), "action": st.sampled_from(["Count", "FailJob"])},
            optional={
                "exitCodes": st.lists(st.just(1), max_size=1),
                "podReasons": st.lists(st.just("OOMKilled"), max_size=2),
            },
        ),
        max_size=2,
    ),
    "spec.restartPolicy.stallTimeoutSeconds": st.sampled_from([2, 30, 31]),
    "spec.restartPolicy.collectiveTimeoutSeconds": st.sampled_from([1, 30, 31, 600, None]),
    "spec.restartPolicy.coordinatorAbsenceSeconds": st.sampled_from([1, 30, 31, 600, None]),
    "spec.restartPolicy.heartbeatTimeoutSeconds": st.sampled_from([1, 30, 600]),
}


@st.composite
def manifests(draw: st.DrawFn) -> dict[str, Any]:
    """The good manifest with a few fields changed, each to a value that is right by itself."""
    paths = draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=6, unique=True))
    if "spec.model.config" in paths:
        paths = [path for path in paths if not path.startswith("spec.model.config.")]
    return changed({path: draw(VALUES[path]) for path in paths})


def _refused_by_python(manifest: dict[str, Any]) -> set[str]:
    try:
        RLJob.model_validate(manifest)
    except ValidationError as error:
        return set(sentences(error))
    return set()


def _refused_by_cel(manifest: dict[str, Any]) -> set[str]:
    spec = defaulted(SCHEMA, manifest["spec"])
    return {f"{broken.field}: {broken.sentence}" for broken in broken_rules(SCHEMA, spec, "spec")}


@settings(max_examples=100, deadline=None)
@given(manifests())
def test_python_and_cel_accept_the_same_manifests(manifest: dict[str, Any]) -> None:
    by_python, by_cel = _refused_by_python(manifest), _refused_by_cel(manifest)
    assert bool(by_python) == bool(by_cel)
    # A rule of the whole spec is asked in Python only once all rules of its parts hold.
    assert by_python <= by_cel


def test_cel_states_the_sentences_of_the_table_which_has_a_row_for_every_rule() -> None:
    seen = set()
    for row in CROSS_FIELD:
        changes, sentence = cast("tuple[dict[str, Any], str]", row.values)
        broken = list(broken_rules(SCHEMA, defaulted(SCHEMA, changed(changes)["spec"]), "spec"))
        assert sentence in {f"{each.field}: {each.sentence}" for each in broken}, row.id
        seen |= {each.rule for each in broken}
    assert seen == set(_rules(SCHEMA))


def _rules(schema: Schema) -> list[str]:
    below = [_rules(part) for part in schema.get("properties", {}).values()]
    if "items" in schema:
        below.append(_rules(schema["items"]))
    own = [entry["rule"] for entry in schema.get(VALIDATIONS, ()) if "oldSelf" not in entry["rule"]]
    return own + [rule for rules in below for rule in rules]


ALONE: dict[str, Any] = {
    "spec.rollout.samplesPerPrompt": 1,
    "spec.training.globalBatchSize": 32,
    "spec.training.microBatchSize": 32,
}


@pytest.mark.parametrize(
    ("changes", "is_possible"),
    [
        pytest.param({"spec.algorithm.advantage": "Grpo"}, False, id="Grpo compares samples"),
        pytest.param({"spec.algorithm.advantage": "DrGrpo"}, False, id="so does DrGrpo"),
        pytest.param({"spec.algorithm.advantage": "Rloo"}, False, id="and Rloo"),
        pytest.param(
            {"spec.algorithm.advantage": "ReinforcePlusPlusBaseline"}, False, id="and ReinforcePlusPlusBaseline"
        ),
        pytest.param({"spec.algorithm.advantage": "ReMax"}, True, id="ReMax has a greedy answer"),
        pytest.param({"spec.algorithm.advantage": "ReinforcePlusPlus"}, True, id="ReinforcePlusPlus has the rollout"),
        pytest.param({"spec.algorithm.advantage": "Gae", "spec.roles.critic": {}}, True, id="Gae has a critic"),
        pytest.param(
            {
                "spec.algorithm.advantage": "Gae",
                "spec.algorithm.gae": {"whiten": "Partition"},
                "spec.roles.critic": {},
            },
            True,
            id="so has one that whitens",
        ),
        pytest.param(
            {"spec.algorithm.advantage": "Distillation", "spec.roles.reference": {"modelPath": "teacher"}},
            True,
            id="Distillation has a teacher",
        ),
        pytest.param({"spec.algorithm.advantage": "mine:of_rewards"}, True, id="a function knows itself"),
        pytest.param(
            {"spec.algorithm.advantage": "ReMax", "spec.algorithm.noVariance": "LeaveOut"},
            True,
            id="a greedy answer may have another reward",
        ),
    ],
)
def test_prompts_of_one_sample_are_possible_where_it_is_measured_against_something(
    changes: dict[str, Any], is_possible: bool
) -> None:
    manifest = changed({**ALONE, **changes})
    assert (not _refused_by_python(manifest)) is is_possible
    assert (not _refused_by_cel(manifest)) is is_possible


@pytest.mark.parametrize("of_training", [pytest.param("answer", id="labels"), pytest.param("", id="no labels")])
@pytest.mark.parametrize("data", [{}, {"labelKey": None}, {"labelKey": None, "sourceKey": None, "promptKey": None}])
def test_a_null_of_a_set_is_as_training_at_both_doors(data: dict[str, Any], of_training: str) -> None:
    sets = [{"name": "a", "data": {"prompts": "a", **data}}]
    evaluation = {"sets": sets, "everySteps": 2}
    manifest = changed({"spec.data.labelKey": of_training, "spec.evaluation": evaluation})
    assert (not _refused_by_python(manifest)) is (of_training != "")
    assert (not _refused_by_cel(manifest)) is (of_training != "")
