"""Promises of engines, weights, training, evaluation and checkpoints."""

from tests.promises.patch import Promise

WORKERS = (
    Promise(
        "lost-engine",
        "A rank whose engine died hands its tickets back, so that their groups are generated again.",
        "rljob_workers.rollout.loop:RolloutLoop._collect",
        old="self._queue.return_tickets(tickets, killed=isinstance(error, EngineGone | EngineStalled))",
        new="_log.warning('lost: %s', tickets)",
        tests=("tests/unit/rollout/test_lost_requests.py::test_all_that_an_engine_had_is_saved_by_one_call",),
    ),
    Promise(
        "reply-of-another-engine",
        "A reply of another incarnation of the engine than the one that was asked does not count.",
        "rljob_workers.engines.torch_engine.torch_client:TorchEngineClient._require",
        old="reply.incarnation != asked.incarnation",
        new="reply.incarnation is None",
        tests=("tests/integration/engines/test_engine_client.py::test_a_reply_of_another_incarnation_does_not_count",),
    ),
    Promise(
        "weights-of-one-epoch",
        "Parts that were staged in two epochs never make one weight.",
        "rljob_workers.dcs.coordinator.weights:gathered",
        old="before.epoch != epoch or ",
        new="",
        tests=("tests/unit/dcs/test_weight_parts.py::test_parts_of_two_epochs_never_make_a_weight",),
    ),
    Promise(
        "weights-verified",
        "A chunk of weights with wrong bytes is refused and taken from another source.",
        "rljob_workers.dcs.weights.chunk_transfer:_pull_from",
        old="if checksum(chunk) != progress.checksums[number * CHECKSUM_BYTES : (number + 1) * CHECKSUM_BYTES]:",
        new="if not chunk:",
        tests=("tests/integration/dcs/test_weights.py::test_a_corrupt_chunk_is_refused_and_taken_from_another_source",),
    ),
    Promise(
        "weights-proven",
        "No group is put before the engine is proven to have the version that drew its tokens.",
        "rljob_workers.rollout.verification:WeightProof.awaited_by",
        old="expected is not None and ",
        new="expected is None and ",
        tests=("tests/unit/rollout/test_verification.py::test_groups_wait_for_the_proof_of_what_made_their_tokens",),
    ),
    Promise(
        "wrong-weights-void",
        "What wrong weights may have made is never put, though only a token in its middle is of them.",
        "rljob_workers.rollout.verification:_spans",
        old="place_of(oldest) <= place_of(weight) <= place_of(newest)",
        new="weight in (oldest, newest)",
        tests=(
            "tests/unit/rollout/test_verification.py::"
            "test_what_wrong_weights_have_made_is_void_and_stays_so_when_they_are_right",
        ),
    ),
    Promise(
        "versions-of-tokens",
        "Each drawn token is named by the version that drew it, also behind tokens of a tool or an earlier turn.",
        "rljob_workers.rollout.trajectory:TrajectoryBuilder.add_turn",
        old="offset + span.start, ",
        new="span.start, ",
        tests=("tests/unit/rollout/test_trajectory.py::test_spans_of_a_turn_move_to_their_places_in_the_response",),
    ),
    Promise(
        "old-tokens-are-context",
        "Of a group that was carried on, tokens older than maxStaleness allows are context and not learnt from.",
        "rljob_workers.training.learnt_tokens:LearntTokens.of_samples",
        old="made_since(batch, batch.rollout_id - self.max_age)",
        new="made_since(batch, batch.rollout_id - self.max_age - 1)",
        tests=("tests/unit/training/test_rows.py::test_tokens_that_are_too_old_are_context_alone",),
    ),
    Promise(
        "log-probs-of-a-row",
        "The log-prob of a response token is that of the position before it, in its own row.",
        "rljob_workers.trainers.micro_batches:pack",
        old="[first_of_response] + index_in_response),",
        new="[first_of_response] + index_in_response - 1),",
        tests=(
            "tests/unit/trainers/test_packing.py::"
            "test_each_response_token_is_predicted_from_exactly_what_precedes_it_in_its_row",
        ),
    ),
    Promise(
        "rewards-retried",
        "Only the answers that a reward failed on are asked again.",
        "rljob_workers.rewards.retries:Retried._to_ask",
        old="[index for index, outcome in enumerate(group) if isinstance(outcome, RewardError)]",
        new="list(range(len(group)))",
        tests=(
            "tests/unit/rewards/test_retries.py::test_of_a_reward_per_sample_only_answers_that_failed_are_asked_again",
        ),
    ),
    Promise(
        "critic-masks",
        "A token that is not learnt from, whatever value it has, leaves the critic's loss as it is.",
        "rljob_workers.algorithms.value:ValueObjective.loss",
        old="torch.where(keep, outputs.values, 0.0)",
        new="outputs.values",
        tests=("tests/unit/algorithms/test_value.py::test_errors_are_clipped_around_the_values_of_before",),
    ),
    Promise(
        "evaluated-at-one-version",
        "A sample of an evaluation counts only if every token is of the version that is evaluated.",
        "rljob_workers.rollout.evaluating:Evaluator._counts",
        old="all(weight.version",
        new="any(weight.version",
        tests=("tests/unit/rollout/test_evaluating.py::test_a_sample_with_a_token_of_another_version_is_drawn_again",),
    ),
    Promise(
        "evaluation-before-the-next-step",
        "No optimizer step leaves a version before its evaluation is over.",
        "rljob_workers.training.loop:ActorLoop.await_leave",
        old="has_rows=is_over",
        new="has_rows=True",
        tests=(
            "tests/unit/training/test_loop.py::"
            "test_no_weights_leave_a_version_that_is_evaluated_and_a_drain_ends_the_wait",
        ),
    ),
    Promise(
        "resume-is-exact",
        "A resumed trainer goes on bit for bit as the one that saved: weights, moments, step count.",
        "rljob_workers.trainers.flat_model:FlatModel.restore",
        old="self._optimizer.steps = saved.values[STEPS]",
        new="self._optimizer.steps = 0",
        tests=("tests/unit/trainers/test_flat_trainer.py::test_resume_is_bitwise",),
    ),
    Promise(
        "resume-of-chance",
        "A resumed trainer draws the random numbers that the one that saved would have drawn next.",
        "rljob_workers.trainers.flat_model:FlatModel.restore",
        old='torch.random.set_rng_state(own["random"].clone())',
        new="pass",
        tests=("tests/unit/trainers/test_flat_trainer.py::test_random_state_resumes",),
    ),
    Promise(
        "checkpoint-whole",
        "A checkpoint with any damaged or missing file is named as damaged and never trained from.",
        "rljob_workers.dcs.checkpoints.on_disk:verify",
        old="if found == expected:",
        new="if found:",
        tests=("tests/unit/dcs/test_checkpoint_on_disk.py::test_a_damaged_file_is_named",),
    ),
    Promise(
        "record-atomic",
        "A record file is replaced whole: a power cut leaves the old or the new content.",
        "rljob_workers.dcs.checkpoints.on_disk:replace_synced",
        old="beside.replace(path)",
        new="path.write_bytes(content)",
        tests=("tests/unit/dcs/test_durable.py::test_a_replaced_file_is_whole_at_once",),
    ),
)
