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
    formula: str | None
    """How ours is made of it, where it is not the same number."""


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
                for found, rest in _NAME.findall(cell):
                    name, _, given = found.removeprefix("a.").partition("=")
                    formula = f"{name}{rest}".replace("`", "") if rest else None
                    yield OtherName(trainer, name, given.strip('"') or None, field, value or None, formula)


_NAME = re.compile(r"(?:^|, )`([^`]+)`((?: (?:x|/|as) [^,]*)?)")


def _cell(text: str) -> str:
    return f" {text} " if text else " "


TABLES = (
    NameTable(
        "Model and data",
        ("TRL", "verl"),
        (
            ("model.path", "`model`", "`a.model.path`"),
            ("model.dtype", "`dtype` in `model_init_kwargs`, `bf16`", "`a.actor.fsdp_config.model_dtype`"),
            ("model.headDtype", "`cast_lm_head_to_fp32`", ""),
            ("data.prompts", "`train_dataset`", "`data.train_files`"),
            ("data.promptKey", "the column `prompt`", "`data.prompt_key`"),
            ("data.labelKey", "any other column", "`ground_truth` in `reward_model` of a row"),
            ("data.sourceKey", "", "`data_source` of a row"),
            ("data.applyChatTemplate", "by the form of the prompt", "always"),
            ("data.chatTemplate.kwargs", "`chat_template_kwargs`", "`data.apply_chat_template_kwargs`"),
            ("data.chatTemplate.file", "", "`a.model.custom_chat_template`, the text itself"),
            ("data.shuffleSeed", "`shuffle_dataset`, `seed`", "`data.shuffle`, `data.seed`"),
            ("rollout.maxPromptTokens", "", "`data.max_prompt_length`"),
            ("rollout.longPrompts", "", "`data.filter_overlong_prompts`, `data.truncation`"),
        ),
    ),
    NameTable(
        "Rollouts",
        ("TRL", "verl"),
        (
            (
                "rollout.numRollouts",
                "`max_steps` / `steps_per_generation` / `num_iterations`, `num_train_epochs` x rows / batchSize",
                "`trainer.total_training_steps`, `trainer.total_epochs` x rows / batchSize",
            ),
            ("rollout.batchSize", "`generation_batch_size` / `num_generations`", "`data.train_batch_size`"),
            ("rollout.samplesPerPrompt", "`num_generations`", "`a.rollout.n`"),
            ("rollout.maxStaleness", "", "`async_training.staleness_threshold`, a share of the samples"),
            ("rollout.sampling.maxNewTokens", "`max_completion_length`", "`data.max_response_length`"),
            ("rollout.sampling.temperature", "`temperature`", "`a.rollout.temperature`"),
            ("rollout.sampling.topP", "`top_p`", "`a.rollout.top_p`"),
            ("rollout.sampling.topK", "`top_k`", "`a.rollout.top_k`"),
            ("rollout.sampling.minP", "`min_p`", ""),
            ("rollout.sampling.stop", "`stop` in `generation_kwargs`", ""),
            (
                "rollout.function",
                "`rollout_func`, `tools`",
                "`a.rollout.agent.default_agent_loop`, `a.rollout.multi_turn`",
            ),
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
            ("roles.rollout.shareDevicesWith: actor", '`vllm_mode="colocate"`', "`a.hybrid_engine`"),
            (
                "roles.rollout.engine.args",
                "`vllm_gpu_memory_utilization` as `--mem-fraction-static`, `vllm_max_model_length` as"
                " `--context-length`",
                "`a.rollout.gpu_memory_utilization` as `--mem-fraction-static`, `a.rollout.max_num_seqs` as"
                " `--max-running-requests`, `a.rollout.max_model_len` as `--context-length`",
            ),
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
            ("rollout.reward", "", "`reward_model.reward_manager`, `reward.reward_manager.name`"),
            ("rollout.reward.remote.url", "", "`reward.sandbox_fusion.url`, of a server that gives rewards"),
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
            ("algorithm.clip.low", "`epsilon`", "`a.actor.clip_ratio_low`, `a.actor.clip_ratio`"),
            ("algorithm.clip.high", "`epsilon_high`", "`a.actor.clip_ratio_high`"),
            ("algorithm.clip.dual", "`delta`", "`a.actor.clip_ratio_c`"),
            ("algorithm.clip.positiveTemperature", "`sapo_temperature_pos`", "`a.actor.tau_pos`"),
            ("algorithm.clip.negativeTemperature", "`sapo_temperature_neg`", "`a.actor.tau_neg`"),
            ("algorithm.kl.coefficient", "`beta`", "`a.actor.kl_loss_coef`, `algorithm.kl_ctrl.kl_coef`"),
            ("algorithm.kl.placement: Loss", "of GRPO, always", "`a.actor.use_kl_loss=True`"),
            ("algorithm.kl.placement: Reward", "of RLOO, always", "`algorithm.use_kl_in_reward`"),
            ("algorithm.kl.estimator", "of GRPO K3, of RLOO K1", "`a.actor.kl_loss_type`, `algorithm.kl_penalty`"),
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
            ("algorithm.correction.mask.level", "", "`algorithm.rollout_correction.rollout_rs`"),
            ("algorithm.correction.mask.cap", "", "`algorithm.rollout_correction.rollout_rs_threshold`"),
            ("algorithm.proximal: Rollout", "", "`algorithm.rollout_correction.bypass_mode=True`"),
            ("algorithm.truncated: Mask", "`mask_truncated_completions`", ""),
            ("training.refUpdateInterval", "`sync_ref_model`, `ref_model_sync_steps`", ""),
        ),
    ),
    NameTable(
        "Training",
        ("TRL", "verl"),
        (
            (
                "training.globalBatchSize",
                "`gradient_accumulation_steps` x `per_device_train_batch_size` x processes",
                "`a.actor.ppo_mini_batch_size` x `a.rollout.n`",
            ),
            (
                "training.microBatchSize",
                "`per_device_train_batch_size`",
                "`a.actor.ppo_micro_batch_size_per_gpu`, `a.actor.ppo_micro_batch_size`",
            ),
            ("training.maxTokensPerMicroBatch", "", "`a.actor.ppo_max_token_len_per_gpu`, `a.actor.use_dynamic_bsz`"),
            ("training.packing", "", "`a.model.use_remove_padding`"),
            ("training.epochsPerRollout", "`num_iterations`", "`a.actor.ppo_epochs`"),
            ("training.activationCheckpointing", "`gradient_checkpointing`", "`a.model.enable_gradient_checkpointing`"),
            ("training.optimizer.learningRate", "`learning_rate`", "`a.actor.optim.lr`"),
            (
                "training.optimizer.schedule",
                "`lr_scheduler_type`",
                "`a.actor.optim.lr_scheduler_type`, `a.actor.optim.warmup_style`",
            ),
            (
                "training.optimizer.warmupSteps",
                "`warmup_steps`, `warmup_ratio` x steps",
                "`a.actor.optim.lr_warmup_steps`, `a.actor.optim.lr_warmup_steps_ratio` x steps",
            ),
            (
                "training.optimizer.minLearningRate",
                "`min_lr` in `lr_scheduler_kwargs`",
                "`a.actor.optim.min_lr_ratio` x learningRate",
            ),
            ("training.optimizer.weightDecay", "`weight_decay`", "`a.actor.optim.weight_decay`"),
            ("training.optimizer.beta1", "`adam_beta1`", "`a.actor.optim.betas`"),
            ("training.optimizer.beta2", "`adam_beta2`", "`a.actor.optim.betas`"),
            ("training.optimizer.epsilon", "`adam_epsilon`", ""),
            ("training.optimizer.maxGradNorm", "`max_grad_norm`", "`a.actor.optim.clip_grad`, `a.actor.grad_clip`"),
            ("roles.actor.backend", "`fsdp`, a config of accelerate", "`a.actor.strategy`"),
            ("roles.actor.replicas", "", "`trainer.nnodes`"),
            ("roles.actor.gpus", "", "`trainer.n_gpus_per_node`"),
            ("roles.actor.parallelism.tensor", "", "`a.actor.megatron.tensor_model_parallel_size`"),
            ("roles.actor.parallelism.context", "", "`a.actor.ulysses_sequence_parallel_size`"),
            ("roles.critic.modelPath", "", "`critic.model.path`"),
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
            ("checkpoint.everySteps", "`save_steps`, `save_strategy`", "`trainer.save_freq`"),
            ("checkpoint.keep", "`save_total_limit`", "`trainer.max_actor_ckpt_to_keep`"),
            ("checkpoint.keepBest.metric", "`metric_for_best_model`, `load_best_model_at_end`", ""),
            ("checkpoint.keepBest.mode", "`greater_is_better`", ""),
            ("checkpoint.path", "`output_dir`", "`trainer.default_local_dir`"),
            (
                "telemetry.generationsPerRollout",
                "`log_completions`, `num_completions_to_print`",
                "`trainer.rollout_data_dir`",
            ),
            ("telemetry.reportTo", "`report_to`", "`trainer.logger`"),
            ("evaluation.sets[0].data.prompts", "`eval_dataset`", "`data.val_files`"),
            ("evaluation.sets[0].samplesPerPrompt", "`num_generations_eval`", "`a.rollout.val_kwargs.n`"),
            ("evaluation.everySteps", "`eval_steps`, `eval_strategy`", "`trainer.test_freq`"),
            ("evaluation.atStart", "`eval_on_start`", "`trainer.val_before_train`"),
            ("seed", "`seed`, `data_seed`", "`a.rollout.seed`"),
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
            ("data.shuffleSeed", "`rollout-shuffle`, `rollout-seed`", ""),
            ("roles.rollout.shareDevicesWith: actor", "`colocate`", ""),
            ("rollout.numRollouts", "`num-rollout`, `num-epoch` x rows / batchSize", "`orchestrator.max_steps`"),
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
            ("rollout.sampling.topP", "`rollout-top-p`", ""),
            ("rollout.sampling.topK", "`rollout-top-k`", ""),
            ("rollout.sampling.stop", "`rollout-stop`", ""),
            ("rollout.sampling.stopTokenIds", "`rollout-stop-token-ids`", ""),
            ("rollout.maxPromptTokens", "`rollout-max-prompt-len`", ""),
            ("rollout.dynamicSampling.filter", "`dynamic-sampling-filter-path`", ""),
            ("rollout.function", "`custom-generate-function-path`, `rollout-function-path`", "an environment"),
            ("rollout.reward.custom.function", "`custom-rm-path`", "an environment"),
            ("rollout.reward.remote.url", "`rm-url`", ""),
            ("rollout.reward", "`rm-type`", ""),
            ("roles.rollout.gpus", "`rollout-num-gpus`", "`deployment.num_infer_gpus`"),
            ("roles.rollout.engine.tensorParallel", "`rollout-num-gpus-per-engine`", ""),
            ("roles.actor.replicas", "`actor-num-nodes`", ""),
            ("roles.actor.gpus", "`actor-num-gpus-per-node`", "`deployment.num_train_gpus`"),
            ("roles.reference.modelPath", "`ref-load`", ""),
            ("algorithm.advantage", "`advantage-estimator`", "`orchestrator.algo.type`"),
            ("algorithm.clip.low", "`eps-clip`", ""),
            ("algorithm.clip.high", "`eps-clip-high`", ""),
            ("algorithm.clip.dual", "`eps-clip-c`", ""),
            ("algorithm.kl.coefficient", "`kl-loss-coef`, `kl-coef`", ""),
            ("algorithm.kl.placement: Loss", "`use-kl-loss`", ""),
            ("algorithm.kl.estimator", "`kl-loss-type`", ""),
            ("algorithm.kl.weighted", "`use-unbiased-kl`", ""),
            ("algorithm.entropyBonus", "`entropy-coef`", ""),
            ("algorithm.loss", "`custom-loss-function-path`", ""),
            ("algorithm.lossAggregation: TokenMean", "`calculate-per-token-loss`", ""),
            ("algorithm.advantage: DrGrpo", "`disable-grpo-std-normalization`", ""),
            ("algorithm.proximal: Rollout", "`use-rollout-logprobs`", ""),
            ("algorithm.correction.kind: Tis", "`use-tis`", ""),
            ("algorithm.correction.cap", "`tis-clip`", ""),
            ("algorithm.correction.floor", "`tis-clip-low`", ""),
            ("training.globalBatchSize", "`global-batch-size`", "`orchestrator.batch_size`"),
            ("training.itersPerTrainUpdate", "`num-steps-per-rollout`", ""),
            ("training.maxTokensPerMicroBatch", "`max-tokens-per-gpu`, `use-dynamic-batch-size`", ""),
            ("training.optimizer.learningRate", "`lr`", "`trainer.optim.lr`"),
            ("training.optimizer.maxGradNorm", "`clip-grad`", "`trainer.optim.max_norm`"),
            ("training.refUpdateInterval", "`ref-update-interval`", ""),
            ("training.criticOnlySteps", "`num-critic-only-steps`", ""),
            ("roles.critic.valueClip", "`value-clip`", ""),
            ("evaluation.everySteps", "`eval-interval`", "`orchestrator.eval.interval`"),
            ("evaluation.sets[0].data.prompts", "`eval-prompt-data`", ""),
            ("evaluation.sets[0].samplesPerPrompt", "`n-samples-per-eval-prompt`", ""),
            ("evaluation.sets[0].sampling.maxNewTokens", "`eval-max-response-len`", ""),
            ("evaluation.sets[0].sampling.temperature", "`eval-temperature`", ""),
            ("evaluation.sets[0].sampling.topP", "`eval-top-p`", ""),
            ("checkpoint.everySteps", "`save-interval`", "`ckpt.interval`"),
            ("checkpoint.keep", "", "`ckpt.keep_last`"),
            ("checkpoint.keepEvery", "", "`ckpt.keep_interval`"),
            ("telemetry.reportTo", "`use-wandb`, `use-tensorboard`", "`monitors.wandb`"),
        ),
    ),
    NameTable(
        "AReaL and OpenRLHF",
        ("AReaL", "OpenRLHF"),
        (
            ("model.path", "`actor.path`", "`actor.model_name_or_path`"),
            ("data.prompts", "`train_dataset.path`", "`data.prompt_dataset`"),
            ("data.promptKey", "", "`data.input_key`"),
            ("data.labelKey", "", "`data.label_key`"),
            ("data.sources[0].weight", "", "`data.prompt_probs`"),
            (
                "rollout.numRollouts",
                "`total_train_steps`, `total_train_epochs` x rows / batchSize",
                "`train.num_episodes` x rows / batchSize",
            ),
            ("rollout.batchSize", "`consumer_batch_size`", "`rollout.batch_size`"),
            ("rollout.samplesPerPrompt", "`gconfig.n_samples`", "`rollout.n_samples_per_prompt`"),
            ("rollout.maxStaleness", "`rollout.max_head_offpolicyness`", "`train.async_queue_size`"),
            ("rollout.concurrency", "`rollout.max_concurrent_rollouts`", ""),
            ("rollout.partial", "", "`train.partial_rollout_enable`"),
            ("rollout.sampling.maxNewTokens", "`gconfig.max_new_tokens`", "`rollout.max_new_tokens`"),
            ("rollout.dynamicSampling", "", "`algo.dynamic_filtering_enable`"),
            ("rollout.function", "`agent_cls_path`", "`train.agent_func_path`"),
            ("rollout.reward.remote.url", "", "`reward.remote_url`"),
            ("rollout.reward.overlong.buffer", "`actor.overlong_tokens`", "`reward.overlong_buffer_len`"),
            (
                "rollout.reward.overlong.penalty",
                "`actor.overlong_penalty_factor`",
                "`reward.overlong_penalty_factor`",
            ),
            ("algorithm.advantage", "`actor.adv_norm`", "`algo.advantage.estimator`"),
            ("algorithm.advantage: DrGrpo", "", "`algo.advantage.no_std_norm`"),
            ("algorithm.gae.lambda", "`actor.gae_lambda`", "`algo.advantage.lambd`"),
            ("algorithm.gae.gamma", "`actor.discount`", "`algo.advantage.gamma`"),
            ("algorithm.clip.low", "`actor.eps_clip`", "`actor.eps_clip_low_high`, its first"),
            ("algorithm.clip.high", "`actor.eps_clip_higher`", "`actor.eps_clip_low_high`, its second"),
            ("algorithm.clip.dual", "`actor.c_clip`", "`actor.dual_clip`"),
            ("algorithm.loss", "", "`actor.policy_loss_type`"),
            ("algorithm.kl.coefficient", "`actor.kl_ctl`", "`algo.kl.init_coef`"),
            ("algorithm.kl.estimator", "`actor.kl_estimator`", "`algo.kl.estimator`"),
            ("algorithm.kl.placement: Loss", "", "`algo.kl.use_loss`"),
            ("algorithm.proximal: Recompute", "`actor.use_decoupled_loss`, `actor.recompute_logprob`", ""),
            ("algorithm.correction.kind", "`actor.rejection_sampling`", "`algo.advantage.is_correction_enable`"),
            ("algorithm.correction.cap", "", "`algo.advantage.is_correction_threshold`"),
            ("algorithm.truncated: Mask", "`actor.mask_no_eos_with_zero`", ""),
            ("training.globalBatchSize", "batch / `actor.ppo_n_minibatches`", "`train.batch_size`"),
            ("training.microBatchSize", "", "`train.micro_batch_size`"),
            ("training.maxTokensPerMicroBatch", "`actor.mb_spec.max_tokens_per_mb`", "`train.max_tokens_per_gpu`"),
            ("training.epochsPerRollout", "", "`train.max_epochs`"),
            ("training.packing", "", "`ds.packing_samples`"),
            ("training.activationCheckpointing", "", "`actor.gradient_checkpointing_enable`"),
            (
                "training.optimizer.warmupSteps",
                "`actor.optimizer.warmup_steps_proportion` x steps",
                "`actor.lr_warmup_ratio` x steps",
            ),
            ("training.optimizer.maxGradNorm", "`actor.optimizer.gradient_clipping`", "`actor.max_norm`"),
            ("training.criticOnlySteps", "", "`critic.freezing_steps`"),
            ("roles.critic.modelPath", "`critic.path`", "`critic.model_name_or_path`"),
            ("roles.reference.modelPath", "`ref.path`", "`ref.model_name_or_path`"),
            ("roles.actor.replicas", "`cluster.n_nodes`", "`actor.num_nodes`"),
            ("roles.actor.gpus", "`cluster.n_gpus_per_node`", "`actor.num_gpus_per_node`"),
            ("roles.actor.parallelism.tensor", "", "`ds.tensor_parallel_size`"),
            ("roles.actor.parallelism.context", "", "`ds.ring_attn_size`"),
            ("roles.rollout.replicas", "", "`vllm.num_engines`"),
            ("roles.rollout.shareDevicesWith: actor", "", "`train.colocate_all`"),
            ("evaluation.sets[0].data.prompts", "`valid_dataset.path`", "`eval.dataset`"),
            ("evaluation.everySteps", "`evaluator.freq_steps`", "`eval.steps`"),
            ("checkpoint.everySteps", "`saver.freq_steps`", "`ckpt.save_steps`"),
            ("checkpoint.keep", "", "`ckpt.max_num`"),
            ("checkpoint.keepBest.metric", "", "`ckpt.best_metric_key`"),
        ),
    ),
)
