"""A critic of one rank: its values, its first weights, what it saves, and that it learns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rljob_api.manifest import parse_manifest
from rljob_api.spec import RLJobSpec
from rljob_api.spec.model import ModelSpec
from rljob_api.spec.training import OptimizerSpec
from rljob_workers.algorithms.objective import Output
from rljob_workers.models.blob import WEIGHTS_FILE, read_blob, write_blob
from rljob_workers.models.building import build_config, initial_state, save_folder
from rljob_workers.models.slices import state_files
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.models.value_head import VALUE_HEAD, critic_files
from rljob_workers.models.weights import Folder
from rljob_workers.tensors.columns import Column
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers import build_critic, build_trainer, load_critic_version_0, load_version_0
from rljob_workers.trainers.base import Trainer, TrainRows
from rljob_workers.trainers.data_parallel import SingleRank
from rljob_workers.trainers.settings import CriticSettings
from tests.near import FORWARD, assert_near
from tests.train_rows import rows_of
from tests.unit.trainers.critics import assert_is_classifier, critic_rows, logits_of_prefixes, save_critic, settings_of
from tests.unit.trainers.rows import make_spec, select_rows

SIM = """
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: tiny}
spec:
  model: {config: {tokenizer: {alphabet: "0123456789="}}}
  data: {prompts: prompts.jsonl}
  rollout: {numRollouts: 4, batchSize: 4, samplesPerPrompt: 4}
  training: {globalBatchSize: 16, microBatchSize: 3, maxSkippedSteps: 1}
  roles: {rollout: {engine: {kind: Sim}}}
"""
ARCHITECTURES = [
    pytest.param("Qwen3", True, id="Qwen3, tied"),
    pytest.param("Qwen3", False, id="Qwen3, untied"),
    pytest.param("Llama", False, id="Llama, untied"),
]


def make_critic(spec: RLJobSpec, scratch: Path, settings: CriticSettings | None = None) -> Trainer:
    """Of version 0."""
    settings = settings or settings_of("Flat")
    tokenizer = build_tokenizer(spec.model)
    critic = build_critic(settings, spec, tokenizer, SingleRank())
    load_critic_version_0(critic, settings, spec, tokenizer, scratch)
    return critic


def values_of(critic: Trainer, rows: TrainRows) -> torch.Tensor:
    return critic.score(rows.tokens, rows.response_lengths, Output.VALUES, 1.0).values


def reward_model(spec: RLJobSpec, folder: Path) -> Path:
    """A folder with a head that is not 0, and no language head."""
    tokenizer = build_tokenizer(spec.model)
    state = {name: one for name, one in initial_state(spec.model, tokenizer).items() if name != "lm_head.weight"}
    head = torch.randn(1, 32, generator=torch.Generator().manual_seed(4))
    save_folder(folder, build_config(spec.model, tokenizer), tokenizer, {**state, VALUE_HEAD: head})
    return folder


@pytest.mark.parametrize(("architecture", "tied"), ARCHITECTURES)
def test_values_are_transformers_logits_of_all_that_was_before(architecture: str, tied: bool, tmp_path: Path) -> None:
    spec = make_spec(architecture=architecture, tied=tied, micro_batch_size=5)
    critic = make_critic(spec, tmp_path, settings_of("Flat", reward_model(spec, tmp_path / "rewards")))
    for step in range(3):
        critic.accumulate(critic_rows(step))
        critic.optimizer_step()
    folder = save_critic(critic, tmp_path / "saved", critic_files(spec.model, build_tokenizer(spec.model)))
    assert_is_classifier(folder)
    rows = select_rows(critic_rows(9, longest=30), [0, 1, 5, 11])
    expected = logits_of_prefixes(folder, rows)
    assert float(expected.std()) > 0.1
    assert_near(values_of(critic, rows), expected, FORWARD, "values")


@pytest.mark.parametrize("tied", [True, False])
def test_version_0_is_the_policy_with_values_that_are_all_0(tied: bool, tmp_path: Path) -> None:
    spec = make_spec(tied=tied)
    critic = make_critic(spec, tmp_path)
    policy = initial_state(spec.model, build_tokenizer(spec.model))
    found = critic.stage_weights()
    assert found.keys() - policy.keys() == {VALUE_HEAD}
    assert policy.keys() - found.keys() == (set() if tied else {"lm_head.weight"})
    assert all(torch.equal(found[name], policy[name]) for name in found if name != VALUE_HEAD)
    assert not values_of(critic, critic_rows(0)).any()
    assert not list(tmp_path.iterdir()), "nothing is left in the scratch folder"


def test_version_0_of_a_policys_folder_has_its_backbone(tmp_path: Path) -> None:
    spec = make_spec(tied=False)
    tokenizer = build_tokenizer(spec.model)
    folder, policy = tmp_path / "policy", initial_state(spec.model, tokenizer)
    save_folder(folder, build_config(spec.model, tokenizer), tokenizer, policy)
    of_folder = spec.model_copy(update={"model": ModelSpec(path=str(folder))})
    found = make_critic(of_folder, tmp_path).stage_weights()
    assert all(torch.equal(found[name], policy[name]) for name in found if name != VALUE_HEAD)


def test_the_first_step_moves_the_head_and_the_second_one_all_that_is_below(tmp_path: Path) -> None:
    spec = make_spec()
    critic = make_critic(spec, tmp_path)
    moved = []
    for step in range(2):
        before = {name: one.clone() for name, one in critic.stage_weights().items()}
        critic.accumulate(critic_rows(step))
        critic.optimizer_step()
        after = critic.stage_weights()
        # Weight decay moves matrices anyhow, so norms tell.
        moved.append({name for name, one in before.items() if not torch.equal(one, after[name]) and one.dim() == 1})
        assert not torch.equal(before[VALUE_HEAD], after[VALUE_HEAD])
    assert not moved[0]
    assert len(moved[1]) == sum(one.dim() == 1 for one in critic.stage_weights().values())


def test_values_of_a_model_in_bfloat16_are_not_rounded_to_it(tmp_path: Path) -> None:
    spec = make_spec(dtype="bfloat16")
    critic = make_critic(spec, tmp_path, settings_of("Flat", reward_model(spec, tmp_path / "rewards")))
    values = values_of(critic, critic_rows(0))
    assert float((values != values.bfloat16().float()).float().mean()) > 0.9


REFUSED = [
    pytest.param(
        None,
        r"^critic: .*rewards has no tensor score\.weight, so that it is no reward model\. Give the folder of a"
        r" \.\.\.ForSequenceClassification with num_labels 1, or none: then",
        id="a policy",
    ),
    pytest.param(
        (2, 32), r"^critic: score\.weight in .*rewards has 2 labels, but a state has one value\.", id="labels"
    ),
    pytest.param(
        (1, 16), r"^model: .*rewards do not fit: tensor score\.weight is of shape \[1, 16\] there", id="another width"
    ),
]


@pytest.mark.parametrize(("shape", "sentence"), REFUSED)
def test_what_is_no_reward_model_is_refused_with_the_cure(
    shape: tuple[int, ...] | None, sentence: str, tmp_path: Path
) -> None:
    spec = make_spec()
    folder = reward_model(spec, tmp_path / "rewards")
    state = {name: one.clone() for name, one in read_blob(folder / WEIGHTS_FILE).items() if name != VALUE_HEAD}
    write_blob(folder / WEIGHTS_FILE, state if shape is None else {**state, VALUE_HEAD: torch.zeros(shape)})
    with pytest.raises(ValueError, match=sentence):
        make_critic(spec, tmp_path, settings_of("Flat", folder))


def test_a_policy_gives_no_values_and_a_critic_no_log_probs(tmp_path: Path) -> None:
    spec, rows = make_spec(), critic_rows(0)
    policy = build_trainer(spec, build_tokenizer(spec.model), SingleRank())
    load_version_0(policy, spec, build_tokenizer(spec.model), tmp_path)
    for model, output in ((policy, Output.VALUES), (make_critic(spec, tmp_path), Output.LOG_PROBS)):
        with pytest.raises(ValueError, match=rf"^{output.value}: this model computes .* only\. Ask one that has"):
            model.score(rows.tokens, rows.response_lengths, output, 1.0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_critic_goes_on_where_it_was_saved_under_its_own_name(dtype: str, tmp_path: Path) -> None:
    spec = make_spec(dtype=dtype)
    critic = make_critic(spec, tmp_path)
    for step in range(2):
        critic.accumulate(critic_rows(step))
        critic.optimizer_step()
    saved = save_critic(critic, tmp_path / "saved", critic_files(spec.model, build_tokenizer(spec.model)))
    write_state(critic, saved, "critic")
    other = build_critic(settings_of("Flat"), spec, build_tokenizer(spec.model), SingleRank())
    other.restore(saved)
    rows = critic_rows(3)
    assert torch.equal(values_of(other, rows), values_of(critic, rows))
    for one in (critic, other):
        one.accumulate(rows)
    assert critic.optimizer_step() == other.optimizer_step()
    found, expected = other.stage_weights(), critic.stage_weights()
    assert all(torch.equal(found[name], one) for name, one in expected.items())
    with pytest.raises(ValueError, match="has no state of actor"):
        build_trainer(spec, build_tokenizer(spec.model), SingleRank()).restore(saved)


def write_state(critic: Trainer, folder: Path, role: str) -> None:
    state = critic.stage_state()
    tensors, description = state_files(role, 0)
    write_blob(folder / tensors, state.tensors())
    (folder / description).write_bytes(state.description())


def test_a_micro_batch_more_or_less_changes_nothing(tmp_path: Path) -> None:
    results = []
    for size in (16, 3):
        critic = make_critic(make_spec(micro_batch_size=size), tmp_path)
        critic.accumulate(critic_rows(0))
        results.append(critic.optimizer_step())
    assert results[1].loss == pytest.approx(results[0].loss, rel=1e-5)
    assert results[1].metrics == pytest.approx(results[0].metrics, rel=1e-5)
    assert set(results[0].metrics) == {
        "critic/value", "critic/squared_error", "critic/clip_fraction", "critic/explained_variance"
    }  # fmt: skip


def rows_to_learn(seed: int, critic: Trainer) -> TrainRows:
    """Returns are a function of the prompt's first token alone; values are the critic's own."""
    chance = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 8, (16,), generator=chance)
    first = torch.randint(0, 10, (16,), generator=chance)
    others = [torch.randint(0, 10, (3 + length,), generator=chance) for length in lengths.tolist()]
    tokens = Jagged.from_rows([torch.cat([one[None], rest]).int() for one, rest in zip(first, others, strict=True)])
    returns = ((first * 7 % 10).float() / 10 - 0.45).repeat_interleave(lengths)

    def per_token(values: torch.Tensor) -> Jagged:
        return Jagged.from_lengths(values, lengths)

    return rows_of(
        tokens=tokens,
        response_lengths=lengths,
        loss_masks=per_token(torch.ones(len(returns), dtype=torch.uint8)),
        returns=per_token(returns),
        values=critic.score(tokens, lengths, Output.VALUES, 1.0),
    )


def test_it_learns_what_the_returns_are_a_function_of(tmp_path: Path) -> None:
    torch.manual_seed(0)
    optimizer = OptimizerSpec(learning_rate=0.01, weight_decay=0.0, max_grad_norm=1.0)
    critic = make_critic(make_spec(), tmp_path, settings_of("Flat", optimizer=optimizer))
    explained = []
    for step in range(100):
        critic.accumulate(rows_to_learn(step, critic))
        explained.append(critic.optimizer_step().metrics["critic/explained_variance"])
    assert abs(explained[0]) < 1e-6, "values that are all 0 explain nothing"
    assert sum(explained[-10:]) / 10 > 0.9


def sim_spec() -> RLJobSpec:
    return parse_manifest(SIM, "tiny").spec


def test_a_simulated_critic_has_values_that_every_return_changes(tmp_path: Path) -> None:
    settings, rows = settings_of("Sim"), critic_rows(0)
    one, other = (make_critic(sim_spec(), tmp_path, settings) for _ in range(2))
    before = values_of(one, rows)
    assert torch.equal(before, values_of(other, rows))
    assert float(before.abs().max()) <= 1.0
    assert float(before.std()) > 0.3
    changed = rows.columns[Column.RETURNS].values.clone()
    changed[rows.columns[Column.LOSS_MASKS].values.argmax()] += 1.0
    for critic, returns in ((one, rows.columns[Column.RETURNS].values), (other, changed)):
        columns = {**rows.columns, Column.RETURNS: Jagged.from_lengths(returns, rows.response_lengths)}
        critic.accumulate(TrainRows(columns))
        assert critic.optimizer_step().skipped is None
    after = values_of(one, rows)
    assert not torch.equal(after, before)
    assert not torch.equal(after, values_of(other, rows))


def test_a_simulated_critic_is_restored_under_its_own_name(tmp_path: Path) -> None:
    settings, rows = settings_of("Sim"), critic_rows(0)
    critic = make_critic(sim_spec(), tmp_path, settings)
    critic.accumulate(rows)
    critic.optimizer_step()
    saved = save_critic(critic, tmp_path / "saved", {})
    write_state(critic, saved, "critic")
    other = make_critic(sim_spec(), tmp_path, settings)
    other.restore(saved)
    for one in (critic, other):
        one.accumulate(critic_rows(1))
        one.optimizer_step()
    assert torch.equal(values_of(other, rows), values_of(critic, rows))
    other.load(Folder(saved / WEIGHTS_FILE))
    assert not torch.equal(values_of(other, rows), values_of(critic, rows))
