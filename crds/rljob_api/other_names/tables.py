"""Names of our fields elsewhere: the tables of docs/coming-from.md, and of the hints that refused manifests get.

A cell of another trainer is Markdown, with its names as code; ours is a field, with its value where it stands for one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OtherName:
    """An option of another trainer."""

    trainer: str
    name: str
    """As it is written there; dotted where it stands in a section."""
    value: str | None
    """None: whatever value it has."""
    ours: str
    """A field, without `spec.`."""
    our_value: str | None
    """None: our field has its value, or one made of it."""


@dataclass(frozen=True, slots=True)
class NameTable:
    """A table of the page."""

    heading: str
    trainers: tuple[str, str]
    rows: tuple[tuple[str, str, str], ...]
    """Ours, and a cell for each of the trainers."""

    @property
    def markdown(self) -> str:
        """As it stands on the page."""
        head = f"| here | {self.trainers[0]} | {self.trainers[1]} |\n|---|---|---|\n"
        return head + "".join(f"| `{ours}` |{_cell(one)}|{_cell(other)}|\n" for ours, one, other in self.rows)

    @property
    def names(self) -> Iterator[OtherName]:
        """Options by themselves in each cell: not what stands in a formula, or in another option."""
        for ours, *cells in self.rows:
            field, _, value = ours.partition(": ")
            for trainer, cell in zip(self.trainers, cells, strict=True):
                for found in _NAME.findall(cell):
                    name, _, given = found.partition("=")
                    yield OtherName(trainer, name.removeprefix("a."), given.strip('"') or None, field, value or None)


_NAME = re.compile(r"(?:^|, )`([^`]+)`")


def _cell(text: str) -> str:
    return f" {text} " if text else " "


TABLES = (
    NameTable(
        "Model and data",
        ("TRL", "verl"),
        (
            ("model.path", "`model`", "`a.model.path`"),
            ("model.dtype", "`dtype` in `model_init_kwargs`, `bf16`", "`a.actor.fsdp_config.model_dtype`"),
            ("data.prompts", "`train_dataset`", "`data.train_files`"),
            ("data.promptKey", "the column `prompt`", "`data.prompt_key`"),
            ("data.labelKey", "any other column", "`ground_truth` in `reward_model` of a row"),
            ("data.sourceKey", "", "`data_source` of a row"),
            ("data.applyChatTemplate", "by the form of the prompt", "always"),
            ("data.chatTemplate.kwargs", "`chat_template_kwargs`", "`data.apply_chat_template_kwargs`"),
            ("data.shuffleSeed", "`shuffle_dataset`, `seed`", "`data.shuffle`, `data.seed`"),
            ("rollout.maxPromptTokens", "", "`data.max_prompt_length`"),
        ),
    ),
    NameTable(
        "Rollouts",
        ("TRL", "verl"),
        (
            (
                "rollout.numRollouts",
                "`max_steps` / `steps_per_generation` / `num_iterations`",
                "`trainer.total_training_steps`",
            ),
            ("rollout.batchSize", "`generation_batch_size` / `num_generations`", "`data.train_batch_size`"),
            ("rollout.samplesPerPrompt", "`num_generations`", "`a.rollout.n`"),
            ("rollout.maxStaleness", "", "`async_training.staleness_threshold`, a share of the samples"),
            ("rollout.sampling.maxNewTokens", "`max_completion_length`", "`data.max_response_length`"),
            ("rollout.sampling.temperature", "`temperature`", "`a.rollout.temperature`"),
            ("rollout.sampling.topP", "`top_p`", "`a.rollout.top_p`"),
            ("rollout.sampling.topK", "`top_k`", "`a.rollout.top_k`"),
            ("rollout.sampling.minP", "`min_p`", ""),
            ("rollout.function", "`rollout_func`, `tools`", "`a.rollout.agent.default_agent_loop`"),
            ("rollout.curriculum", "", "`data.sampler.class_name`, a class in the trainer's process"),
            ("rollout.partial", "", "`async_training.partial_rollout`"),
            ("rollout.dynamicSampling", "", "`algorithm.filter_groups.enable`"),
            (
                "rollout.dynamicSampling.maxAttempts",
                "",
                "`algorithm.filter_groups.max_num_gen_batches`, which fails a run",
            ),
            ("roles.rollout.engine.kind: SGLang", "`use_vllm`", "`a.rollout.name`"),
            (
                "roles.rollout.engine.tensorParallel",
                "`vllm_tensor_parallel_size`",
                "`a.rollout.tensor_model_parallel_size`",
            ),
            ("roles.rollout.replicas", "", "`a.rollout.n_gpus_per_node` / tensor parallel"),
        ),
    ),
    NameTable(
        "Rewards",
        ("TRL", "verl"),
        (
            (
                "rollout.reward.custom.function",
                "`reward_funcs`",
                "`reward.custom_reward_function.path`, `reward.custom_reward_function.name`",
            ),
            ("rollout.reward.sum[0].weight", "`reward_weights`", ""),
            (
                "rollout.reward.overlong.buffer",
                "`get_soft_overlong_punishment`",
                "`reward.reward_kwargs.overlong_buffer_cfg` of the manager `dapo`",
            ),
        ),
    ),
    NameTable(
        "Algorithm",
        ("TRL", "verl"),
        (
            ("algorithm.advantage: Grpo", '`scale_rewards="group"`', "`algorithm.adv_estimator=grpo`"),
            ("algorithm.advantage: DrGrpo", '`scale_rewards="none"`', "`algorithm.norm_adv_by_std_in_grpo=False`"),
            ("algorithm.advantage: Rloo", "`RLOOTrainer`", "`algorithm.adv_estimator=rloo`"),
            ("algorithm.advantage: ReMax", "", "`algorithm.adv_estimator=remax`"),
            ("algorithm.advantage: Gae", "", "`algorithm.adv_estimator=gae`"),
            ("algorithm.gae.lambda", "", "`algorithm.lam`"),
            ("algorithm.gae.gamma", "", "`algorithm.gamma`"),
            ("algorithm.loss: Gspo", '`importance_sampling_level="sequence"`', "`a.actor.policy_loss.loss_mode=gspo`"),
            ("algorithm.loss: Cispo", '`loss_type="cispo"`', "`a.actor.policy_loss.loss_mode=cispo`"),
            ("algorithm.loss: Sapo", '`loss_type="sapo"`', "`a.actor.policy_loss.loss_mode=sapo`"),
            ("algorithm.lossAggregation: TokenMean", '`loss_type="dapo"`', "`a.actor.loss_agg_mode=token-mean`"),
            (
                "algorithm.lossAggregation: SequenceMean",
                '`loss_type="grpo"`',
                "`a.actor.loss_agg_mode=seq-mean-token-mean`",
            ),
            (
                "algorithm.lossAggregation: Constant",
                '`loss_type="dr_grpo"`',
                "`a.actor.loss_agg_mode=seq-mean-token-sum-norm`",
            ),
            ("algorithm.clip.low", "`epsilon`", "`a.actor.clip_ratio_low`"),
            ("algorithm.clip.high", "`epsilon_high`", "`a.actor.clip_ratio_high`"),
            ("algorithm.clip.dual", "`delta`", "`a.actor.clip_ratio_c`"),
            ("algorithm.kl.coefficient", "`beta`", "`a.actor.kl_loss_coef`, `algorithm.kl_ctrl.kl_coef`"),
            ("algorithm.kl.placement: Reward", "of RLOO, always", "`algorithm.use_kl_in_reward`"),
            ("algorithm.kl.estimator", "of GRPO K3, of RLOO K1", "`a.actor.kl_loss_type`"),
            ("algorithm.entropyBonus", "`entropy_coef`", "`a.actor.entropy_coeff`"),
            ("algorithm.kl.weighted", "`use_bias_correction_kl`", ""),
            (
                "algorithm.correction.kind: Tis",
                '`vllm_importance_sampling_mode="token_truncate"`',
                "`algorithm.rollout_correction.rollout_is`",
            ),
            ("algorithm.correction.kind: IcePop", '`vllm_importance_sampling_mode="token_mask"`', ""),
            (
                "algorithm.correction.cap",
                "`vllm_importance_sampling_clip_max`",
                "`algorithm.rollout_correction.rollout_is_threshold`",
            ),
            ("algorithm.truncated: Mask", "`mask_truncated_completions`", ""),
            ("training.refUpdateInterval", "`sync_ref_model`, `ref_model_sync_steps`", ""),
        ),
    ),
    NameTable(
        "Training",
        ("TRL", "verl"),
        (
            ("training.globalBatchSize", "see above", "`a.actor.ppo_mini_batch_size` x `a.rollout.n`"),
            ("training.microBatchSize", "`per_device_train_batch_size`", "`a.actor.ppo_micro_batch_size_per_gpu`"),
            ("training.maxTokensPerMicroBatch", "", "`a.actor.ppo_max_token_len_per_gpu`"),
            ("training.epochsPerRollout", "`num_iterations`", "`a.actor.ppo_epochs`"),
            ("training.activationCheckpointing", "`gradient_checkpointing`", "`a.model.enable_gradient_checkpointing`"),
            ("training.optimizer.learningRate", "`learning_rate`", "`a.actor.optim.lr`"),
            ("training.optimizer.schedule", "`lr_scheduler_type`", "`a.actor.optim.lr_scheduler_type`"),
            ("training.optimizer.warmupSteps", "`warmup_steps`", "`a.actor.optim.lr_warmup_steps`"),
            ("training.optimizer.weightDecay", "`weight_decay`", "`a.actor.optim.weight_decay`"),
            ("training.optimizer.beta1", "`adam_beta1`", "`a.actor.optim.betas`"),
            ("training.optimizer.maxGradNorm", "`max_grad_norm`", "`a.actor.optim.clip_grad`"),
            ("roles.actor.backend", "a config of accelerate", "`a.actor.strategy`"),
            ("roles.actor.parallelism.tensor", "", "`a.actor.megatron.tensor_model_parallel_size`"),
            ("roles.critic.optimizer.learningRate", "", "`critic.optim.lr`"),
            ("roles.critic.valueClip", "", "`critic.cliprange_value`"),
            ("training.criticOnlySteps", "", "`trainer.critic_warmup`"),
        ),
    ),
    NameTable(
        "Around it",
        ("TRL", "verl"),
        (
            ("metadata.name", "`run_name`", "`trainer.experiment_name`"),
            ("checkpoint.everySteps", "`save_steps`", "`trainer.save_freq`"),
            ("checkpoint.keep", "`save_total_limit`", "`trainer.max_actor_ckpt_to_keep`"),
            ("checkpoint.path", "`output_dir`", "`trainer.default_local_dir`"),
            ("telemetry.generationsPerRollout", "`log_completions`", "`trainer.rollout_data_dir`"),
            ("telemetry.reportTo", "`report_to`", "`trainer.logger`"),
            ("evaluation.sets[0].data.prompts", "`eval_dataset`", "`data.val_files`"),
            ("evaluation.sets[0].samplesPerPrompt", "`num_generations_eval`", "`a.rollout.val_kwargs.n`"),
            ("evaluation.everySteps", "`eval_steps`", "`trainer.test_freq`"),
            ("evaluation.atStart", "`eval_on_start`", "`trainer.val_before_train`"),
            ("seed", "`seed`", "`a.rollout.seed`"),
        ),
    ),
    NameTable(
        "slime and prime-rl",
        ("slime", "prime-rl"),
        (
            ("model.path", "`hf-checkpoint`", "`model.name`"),
            ("data.prompts", "`prompt-data`", "an environment: `orchestrator.train.source`"),
            ("data.promptKey", "`input-key`", ""),
            ("data.labelKey", "`label-key`", ""),
            ("data.applyChatTemplate", "`apply-chat-template`", ""),
            ("rollout.numRollouts", "`num-rollout`", "`orchestrator.max_steps`"),
            ("rollout.batchSize", "`rollout-batch-size`", "`orchestrator.batch_size` / `orchestrator.group_size`"),
            ("rollout.samplesPerPrompt", "`n-samples-per-prompt`", "`orchestrator.group_size`"),
            ("rollout.maxStaleness", "", "`orchestrator.max_off_policy_steps`, beyond which samples are dropped"),
            ("rollout.partial", "`partial-rollout`; with order Swap also `mask-offpolicy-in-partial-rollout`", ""),
            ("rollout.overSampling", "`over-sampling-batch-size` / `rollout-batch-size`", ""),
            ("rollout.sampling.temperature", "`rollout-temperature`", "`orchestrator.train.sampling.temperature`"),
            (
                "rollout.sampling.maxNewTokens",
                "`rollout-max-response-len`",
                "`orchestrator.train.sampling.max_completion_tokens`",
            ),
            ("rollout.function", "`custom-generate-function-path`", "an environment"),
            ("rollout.reward.custom.function", "`custom-rm-path`", "an environment"),
            ("roles.rollout.gpus", "`rollout-num-gpus`", "`deployment.num_infer_gpus`"),
            ("roles.rollout.engine.tensorParallel", "`rollout-num-gpus-per-engine`", ""),
            ("roles.actor.gpus", "`actor-num-gpus-per-node`", "`deployment.num_train_gpus`"),
            ("algorithm.advantage", "`advantage-estimator`", "`orchestrator.algo.type`"),
            ("algorithm.clip.low", "`eps-clip`", ""),
            ("algorithm.clip.high", "`eps-clip-high`", ""),
            ("algorithm.clip.dual", "`eps-clip-c`", ""),
            ("algorithm.kl.coefficient", "`kl-loss-coef`, `kl-coef`", ""),
            ("algorithm.correction.cap", "`tis-clip`", ""),
            ("training.globalBatchSize", "`global-batch-size`", "`orchestrator.batch_size`"),
            ("training.maxTokensPerMicroBatch", "`max-tokens-per-gpu`", ""),
            ("training.optimizer.learningRate", "`lr`", "`trainer.optim.lr`"),
            ("training.optimizer.maxGradNorm", "`clip-grad`", "`trainer.optim.max_norm`"),
            ("training.refUpdateInterval", "`ref-update-interval`", ""),
            ("training.criticOnlySteps", "`num-critic-only-steps`", ""),
            ("roles.critic.valueClip", "`value-clip`", ""),
            ("evaluation.everySteps", "`eval-interval`", "`orchestrator.eval.interval`"),
            ("checkpoint.everySteps", "`save-interval`", "`ckpt.interval`"),
            ("checkpoint.keep", "", "`ckpt.keep_last`"),
            ("checkpoint.keepEvery", "", "`ckpt.keep_interval`"),
            ("telemetry.reportTo", "`use-wandb`, `use-tensorboard`", "`monitors.wandb`"),
        ),
    ),
)
