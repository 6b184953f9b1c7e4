"""One job: what it trains, what its roles wait for, its queue, its weights."""

from helm.dashboards.panels import RECENT, Board, Query, Row, choice, figure, lines, rate, sources, states

_JOB = 'namespace="$namespace",job="$job"'


def _rate(name: str, by: str = "role") -> str:
    return rate(name, _JOB, by)


def _increase(name: str, by: str = "role") -> str:
    return f"sum by ({by}) (increase({name}{{{_JOB}}}[{RECENT}]))"


def _share(part: str, whole: str) -> str:
    return f"max(rate({part}{{{_JOB}}}[{RECENT}])) / max(rate({whole}{{{_JOB}}}[{RECENT}]))"


def _of_job(name: str) -> str:
    """A gauge that a job has once, from any replica of the operator: of two one leads."""
    return f"max({name}{{{_JOB}}})"


def _of_sets(name: str, by: str) -> str:
    """A figure of whole sets, without those of their sources."""
    return f'max by ({by}) ({name}{{{_JOB},source=""}})'


_NOW = Row(
    "Now",
    [
        figure(
            "Phase",
            "One word for the conditions.",
            "none",
            Query(f"max by (phase) (rljob_operator_job_phase{{{_JOB}}})", "{{phase}}"),
            names=True,
        ),
        figure(
            "Progress",
            "Trained rollouts of those that are wanted.",
            "percentunit",
            Query(
                f"({_of_job('rljob_operator_job_step')} + 1) / {_of_job('rljob_operator_job_total_steps')}", "progress"
            ),
        ),
        figure("Step", "Last trained rollout.", "none", Query(_of_job("rljob_step"), "step")),
        figure("Reward", "Mean of the last step.", "none", Query(_of_job("rljob_reward"), "reward")),
        figure(
            "Global restarts",
            "Restarts of the whole job.",
            "none",
            Query(_of_job("rljob_operator_job_global_restarts_total"), "restarts"),
        ),
        figure(
            "Failures to be decided",
            "They wait for the operator.",
            "none",
            Query(_of_job("rljob_failures_unacknowledged"), "failures"),
        ),
    ],
)

_TRAINING = Row(
    "Training",
    [
        lines(
            "Reward", "Mean over the samples of a step.", "none", Query(_of_job("rljob_reward"), "reward"), least=None
        ),
        lines("Loss", "Of a step.", "none", Query(_of_job("rljob_loss"), "loss"), least=None),
        lines(
            "Staleness",
            "Rollout id minus version: of the oldest version in a step, and the mean over its tokens.",
            "none",
            Query(_of_job("rljob_staleness"), "oldest"),
            Query(_of_job("rljob_token_staleness"), "tokens"),
        ),
        lines(
            "Seconds a step",
            "From its first row to its optimizer step.",
            "s",
            Query(_of_job("rljob_step_seconds"), "seconds"),
        ),
        lines(
            "Samples and tokens a second",
            "Each step's, by its seconds.",
            "none",
            Query(f"{_of_job('rljob_step_samples')} / {_of_job('rljob_step_seconds')}", "samples"),
            Query(f"{_of_job('rljob_step_tokens')} / {_of_job('rljob_step_seconds')}", "tokens"),
        ),
        lines(
            "Samples that count for nothing or little",
            "Share of a step's: without a score, and cut off.",
            "percentunit",
            Query(_of_job("rljob_invalid_share"), "without a score"),
            Query(_of_job("rljob_truncated_share"), "cut off"),
            most=1,
        ),
    ],
)

_POLICY = Row(
    "Policy",
    [
        lines(
            "Entropy",
            "The policy's at each token, mean over a step. Near 0 it explores nothing any more.",
            "none",
            Query(_of_job("rljob_policy_entropy_nats"), "nats"),
            width=6,
        ),
        lines(
            "KL",
            "New over proximal policy, and to the reference as the loss takes it; mean over a step's tokens.",
            "none",
            Query(_of_job("rljob_policy_approx_kl_nats"), "to the proximal policy"),
            Query(_of_job("rljob_policy_kl_reference_nats"), "to the reference"),
            width=6,
            least=None,
        ),
        lines(
            "Engine against trainer",
            "KL at tokens of the version that is trained, which arithmetic makes, and at those of earlier ones.",
            "none",
            Query(_of_job("rljob_mismatch_kl_nats"), "the same version: mismatch"),
            Query(_of_job("rljob_staleness_kl_nats"), "earlier versions: staleness"),
            width=6,
        ),
        lines(
            "Importance weights",
            "Effective share of a step's tokens, and those that the correction masks.",
            "percentunit",
            Query(_of_job("rljob_correction_effective_share"), "effective"),
            Query(_of_job("rljob_correction_masked_fraction"), "masked"),
            width=6,
            most=1,
            without="No correction",
        ),
        lines(
            "Clipped tokens",
            "Share of a step's tokens whose ratio is clipped, at either bound.",
            "percentunit",
            Query(_of_job("rljob_policy_clip_fraction_low"), "low"),
            Query(_of_job("rljob_policy_clip_fraction_high"), "high"),
            width=6,
        ),
        lines(
            "Ratio",
            "New over proximal policy: mean over a step's tokens, and the largest.",
            "none",
            Query(_of_job("rljob_policy_ratio"), "mean"),
            Query(_of_job("rljob_policy_ratio_max"), "largest"),
            width=6,
        ),
        lines(
            "Gradient",
            "Its norm before clipping: mean over a rollout's optimizer steps, and the largest.",
            "none",
            Query(_of_job("rljob_optimizer_grad_norm"), "mean"),
            Query(_of_job("rljob_optimizer_grad_norm_max"), "largest"),
            width=6,
        ),
        lines(
            "Learning rate",
            "The last optimizer step's.",
            "sci",
            Query(_of_job("rljob_optimizer_learning_rate"), "learning rate"),
            width=6,
        ),
    ],
)

_SAMPLES = Row(
    "Samples of a step",
    [
        lines(
            "Groups",
            "Groups by their samples' rewards. One without variance teaches nothing where advantages are of groups.",
            "percentunit",
            Query(_of_job("rljob_groups_all_right_share"), "all right"),
            Query(_of_job("rljob_groups_mixed_share"), "mixed"),
            Query(_of_job("rljob_groups_all_wrong_share"), "all wrong"),
            Query(_of_job("rljob_groups_no_variance_share"), "without variance"),
            width=8,
            most=1,
        ),
        lines(
            "Exchanged groups",
            "Trained in another rollout than they were begun for, and tokens that were too old by then.",
            "percentunit",
            Query(_of_job("rljob_groups_brought_forward_share"), "earlier"),
            Query(_of_job("rljob_groups_put_off_share"), "later"),
            Query(_of_job("rljob_staleness_too_old_share"), "tokens too old"),
            width=8,
            most=1,
        ),
        lines(
            "Length",
            "Tokens of responses and prompts.",
            "none",
            Query(_of_job("rljob_response_length_mean_tokens"), "response"),
            Query(_of_job("rljob_response_length_max_tokens"), "longest response"),
            Query(_of_job("rljob_prompt_length_mean_tokens"), "prompt"),
            width=8,
        ),
        lines(
            "What the job itself measures",
            "Metrics of its rewards, rollout functions and losses.",
            "none",
            Query(f"max by (metric) (rljob_step_metric{{{_JOB}}})", "{{metric}}"),
            width=12,
            least=None,
            without="No metric of the job's own",
        ),
        lines(
            "Seconds of a step",
            "Work of the actor's first rank. It waits for rows, mostly.",
            "s",
            Query(f"max by (phase) (rljob_actor_seconds{{{_JOB}}})", "{{phase}}"),
            width=12,
            stacked=True,
        ),
    ],
)

_NO_CRITIC = "No step of a critic"
"""Most jobs have none."""

_NO_EVALUATION = "No version was evaluated"

_EVALUATION = Row(
    "Evaluation",
    [
        lines(
            "Mean reward of evaluations",
            "mean@k of each set, of the newest version that was evaluated.",
            "none",
            Query(_of_sets("rljob_evaluation_reward_mean", "set, k"), "{{set}} mean@{{k}}"),
            least=None,
            without=_NO_EVALUATION,
        ),
        lines(
            "Answers that pass",
            "pass@k of each set: the chance that one of k answers passes.",
            "percentunit",
            Query(_of_sets("rljob_evaluation_pass_share", "set, k"), "{{set}} pass@{{k}}"),
            without=_NO_EVALUATION,
        ),
        lines(
            "Cut off answers",
            "Answers of evaluations that are as long as they may be.",
            "percentunit",
            Query(_of_sets("rljob_evaluation_truncated_share", "set"), "{{set}}"),
            width=4,
            without=_NO_EVALUATION,
        ),
        lines(
            "Evaluated version",
            "The version that the other panels of this row are of.",
            "none",
            Query(_of_job("rljob_evaluation_version"), "version"),
            width=4,
            least=None,
            without=_NO_EVALUATION,
        ),
    ],
)

_CRITIC = Row(
    "Critic",
    [
        lines(
            "Explained variance",
            "The returns', by the values of before the step. 1: all of it; 0 or less: a constant would do as well.",
            "none",
            Query(_of_job("rljob_critic_explained_variance"), "explained"),
            width=6,
            least=None,
            most=1,
            without=_NO_CRITIC,
        ),
        lines(
            "Value loss",
            "Of a step.",
            "none",
            Query(_of_job("rljob_critic_loss"), "loss"),
            width=6,
            without=_NO_CRITIC,
        ),
        lines(
            "Clipped share",
            "The share of a step's tokens whose value has moved so far that its clipped error counts.",
            "percentunit",
            Query(_of_job("rljob_critic_clipped_share"), "clipped"),
            width=6,
            most=1,
            without=_NO_CRITIC,
        ),
        lines(
            "Seconds of a step",
            "Work of the critic's first rank. It waits for rows, and for the actor.",
            "s",
            Query(f"max by (phase) (rljob_critic_seconds{{{_JOB}}})", "{{phase}}"),
            width=6,
            stacked=True,
            without=_NO_CRITIC,
        ),
    ],
)

_ROLES = Row(
    "Roles",
    [
        lines(
            "Ranks that are ready",
            "Beside those that the job has: a gap is a restart, or a pod that waits.",
            "none",
            Query(f"sum by (role) (rljob_pod_ranks_ready{{{_JOB}}})", "{{role}}"),
            Query(f"sum(rljob_pod_ranks{{{_JOB}}})", "all ranks"),
        ),
        lines(
            "Share of time that ranks wait for rows",
            "The role whose ranks never wait is the slow one.",
            "percentunit",
            Query(
                f"{_rate('rljob_rank_queue_wait_seconds_total')} / count by (role) (rljob_rank_ready{{{_JOB}}})",
                "{{role}}",
            ),
            most=1,
        ),
        lines(
            "Rows a second",
            "Rows that the ranks of a role have claimed.",
            "none",
            Query(_rate("rljob_rank_queue_rows_total"), "{{role}}"),
        ),
        lines(
            "Silence",
            "Since the last beat of a role's most silent rank; heartbeatTimeoutSeconds is the limit.",
            "s",
            Query(f"max by (role) (rljob_rank_beat_age_seconds{{{_JOB}}})", "{{role}}"),
        ),
        lines(
            "Starts",
            "Ranks, engines and containers that began in each interval.",
            "none",
            Query(_increase("rljob_pod_rank_starts_total"), "{{role}} ranks"),
            Query(_increase("rljob_pod_engine_starts_total"), "{{role}} engines"),
            Query(_increase("rljob_pod_container_restarts_total"), "{{role}} containers"),
        ),
        lines(
            "Skipped steps",
            "Optimizer steps whose loss or gradient was not finite, in each interval.",
            "none",
            Query(f"max by (role) (increase(rljob_rank_skipped_steps_total{{{_JOB}}}[{RECENT}]))", "{{role}}"),
        ),
    ],
)

_ROLLOUT = Row(
    "Rollout",
    [
        lines(
            "Groups a second",
            "Put into the queue, lost since they came too late, drawn again, and refused by dynamic sampling.",
            "none",
            Query(_rate("rljob_rank_groups_put_total"), "put"),
            Query(_rate("rljob_rank_groups_lost_total"), "lost"),
            Query(_rate("rljob_rank_groups_redrawn_total"), "redrawn"),
            Query(_rate("rljob_rank_groups_refused_total"), "refused"),
        ),
        states(
            "Why no ticket is given",
            "Staleness: engines need newer weights. Capacity: training is the slow part.",
            Query(f"max by (reason) (rljob_queue_withheld{{{_JOB}}})", "{{reason}}"),
        ),
        lines(
            "Rewards and prompts",
            "Calls whose reward had failed, samples that stayed without a score, prompts that were too long; a second.",
            "none",
            Query(_rate("rljob_rank_reward_retries_total"), "retries"),
            Query(_rate("rljob_rank_samples_unscored_total"), "without a score"),
            Query(_rate("rljob_rank_judge_replies_unread_total"), "judges' replies without one"),
            Query(_rate("rljob_rank_prompts_passed_over_total"), "too long"),
        ),
        lines(
            "Rollouts",
            "Replicas that are wanted and that there are, and engines that run.",
            "none",
            Query(_of_job("rljob_operator_job_rollouts_wanted"), "wanted"),
            Query(_of_job("rljob_operator_job_rollouts"), "replicas"),
            Query(f"sum(rljob_pod_engine_running{{{_JOB}}})", "engines"),
        ),
        lines(
            "What autoscaling goes by",
            "Share of its time that the actor waits for rows, and of their capacity that rollouts stand idle.",
            "percentunit",
            Query(_share("rljob_actor_starved_seconds_total", "rljob_actor_loop_seconds_total"), "actor is starved"),
            Query(_share("rljob_rollout_withheld_seconds_total", "rljob_rollout_loop_seconds_total"), "rollouts idle"),
            most=1,
        ),
        lines(
            "Bytes through the queue a second",
            "Values that a role has read, and chunks that it has put.",
            "Bps",
            Query(_rate("rljob_rank_queue_got_bytes_total"), "{{role}} reads"),
            Query(_rate("rljob_rank_queue_put_bytes_total"), "{{role}} puts"),
        ),
    ],
)

_QUEUE = Row(
    "Queue",
    [
        lines(
            "Groups",
            "Issued and not trained yet. At its capacity training is the slow part, near zero generation.",
            "none",
            Query(_of_job("rljob_groups_issued"), "issued"),
            Query(_of_job("rljob_groups_capacity"), "capacity"),
        ),
        lines(
            "Rows that are ready",
            "And wait for a task.",
            "none",
            Query(f"max by (task) (rljob_rows_ready{{{_JOB}}})", "{{task}}"),
        ),
        lines(
            "Rows",
            "Rows of all tasks, by state.",
            "none",
            Query(f"sum by (state) (rljob_queue_rows{{{_JOB}}})", "{{state}}"),
            stacked=True,
        ),
        lines(
            "Oldest work",
            "How long the rollouts' oldest ticket, and a task's oldest claim, are in work.",
            "s",
            Query(_of_job("rljob_queue_oldest_ticket_seconds"), "ticket"),
            Query(f"max by (task) (rljob_queue_oldest_lease_seconds{{{_JOB}}})", "{{task}}"),
        ),
        lines(
            "Tickets",
            "Tickets that rollouts work on, and that came back.",
            "none",
            Query(_of_job("rljob_queue_tickets_in_work"), "in work"),
            Query(_of_job("rljob_queue_tickets_returned"), "returned"),
        ),
        lines(
            "Storage",
            "All units together; above high water no ticket is given.",
            "bytes",
            Query(f"sum(rljob_queue_unit_used_bytes{{{_JOB}}})", "used"),
            Query(f"sum(rljob_queue_unit_high_water_bytes{{{_JOB}}})", "high water"),
            Query(f"sum(rljob_queue_unit_limit_bytes{{{_JOB}}})", "limit"),
        ),
        lines(
            "Traffic of storage",
            "Bytes a second.",
            "Bps",
            Query(_rate("rljob_queue_unit_received_bytes_total", "unit"), "unit {{unit}} takes"),
            Query(_rate("rljob_queue_unit_sent_bytes_total", "unit"), "unit {{unit}} gives"),
            width=12,
        ),
        lines(
            "Lost and dropped",
            "Rows that went because storage was full, and chunks that a unit lost; in each interval.",
            "none",
            Query(_increase("rljob_queue_dropped_rows_total", "kind"), "{{kind}} rows"),
            Query(f"sum(increase(rljob_queue_unit_lost_chunks_total{{{_JOB}}}[{RECENT}]))", "chunks"),
            width=12,
        ),
    ],
)

_WEIGHTS = Row(
    "Weights and checkpoints",
    [
        lines(
            "Versions",
            "Trained, published for the engines, and recorded as a checkpoint.",
            "none",
            Query(f"{_of_job('rljob_step')} + 1", "trained"),
            Query(_of_job("rljob_published_version"), "published"),
            Query(_of_job("rljob_recorded_version"), "recorded"),
            width=12,
        ),
        lines(
            "Steps that a restart would repeat",
            "Since the last recorded checkpoint.",
            "none",
            Query(f"{_of_job('rljob_step')} + 1 - {_of_job('rljob_recorded_version')}", "steps"),
            width=6,
        ),
        lines(
            "Epoch",
            "It grows with each global restart. 0 beside it: the control Redis is not open.",
            "none",
            Query(_of_job("rljob_epoch"), "epoch"),
            Query(_of_job("rljob_server_open"), "control Redis is open"),
            width=6,
        ),
    ],
)

BOARD = Board(
    uid="rljob-job",
    title="RLJob: one job",
    description="Roles, reward, staleness, queue, weights and restarts of one RLJob. Orange lines are new epochs.",
    variables=[
        sources(),
        choice("namespace", "Namespace", "label_values(rljob_operator_job_phase, namespace)"),
        choice("job", "Job", 'label_values(rljob_operator_job_phase{namespace="$namespace"}, job)'),
    ],
    rows=[_NOW, _TRAINING, _POLICY, _SAMPLES, _EVALUATION, _CRITIC, _ROLES, _ROLLOUT, _QUEUE, _WEIGHTS],
    marks=[Query(f"max(changes(rljob_epoch{{{_JOB}}}[{RECENT}])) > 0", "New epoch")],
)
