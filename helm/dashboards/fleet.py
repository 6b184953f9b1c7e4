"""All jobs: how many are in which phase, how each is doing, which wait or restart."""

from helm.dashboards.panels import RECENT, Board, Query, Row, choice, figure, lines, rows_of_now, sources

_CHOSEN = 'namespace=~"$namespace"'
_JOB_LINK = (
    "/d/rljob-job/rljob-one-job?var-namespace=${__data.fields.namespace}&var-job=${__data.fields.job}"
    "&${__url_time_range}"
)


def _each(name: str, also: str = "") -> str:
    """A gauge of each job."""
    return f"max by (namespace, job) ({name}{{{_CHOSEN}{also}}})"


def _in_phase(phases: str) -> str:
    labels = f',phase=~"{phases}"'
    return f"count({_each('rljob_operator_job_phase', labels)}) or vector(0)"


def _holds_not(condition: str) -> str:
    labels = f',condition="{condition}"'
    return f"count({_each('rljob_operator_job_condition', labels)} == 0) or vector(0)"


_PER_JOB = "{{namespace}}/{{job}}"

_NOW = Row(
    "Now",
    [
        figure("Running", "Jobs that train.", "none", Query(_in_phase("Running"), "jobs")),
        figure(
            "Waiting", "Not ready yet, or restarting.", "none", Query(_in_phase("Pending|Starting|Restarting"), "jobs")
        ),
        figure("Stalled", "Their steps do not advance.", "none", Query(_in_phase("Stalled"), "jobs")),
        figure("Failed", "Until somebody deletes them.", "none", Query(_in_phase("Failed"), "jobs")),
        figure(
            "Refused",
            "The operator cannot take care of them: their condition Accepted says why.",
            "none",
            Query(_holds_not("Accepted"), "jobs"),
        ),
        figure(
            "Samples a second",
            "All jobs, each by its last step.",
            "none",
            Query(f"sum({_each('rljob_step_samples')} / {_each('rljob_step_seconds')})", "samples"),
        ),
        rows_of_now(
            "Jobs",
            "A row each; its name opens its own dashboard.",
            [
                (f"max by (namespace, job, phase) (rljob_operator_job_phase{{{_CHOSEN}}})", "known", "none"),
                (f"{_each('rljob_operator_job_step')} + 1", "trained", "none"),
                (_each("rljob_operator_job_total_steps"), "of", "none"),
                (_each("rljob_reward"), "reward", "none"),
                (f"{_each('rljob_step_samples')} / {_each('rljob_step_seconds')}", "samples a second", "none"),
                (_each("rljob_staleness"), "staleness", "none"),
                (_each("rljob_operator_job_global_restarts_total"), "restarts", "none"),
            ],
            _JOB_LINK,
        ),
    ],
)

_OVER_TIME = Row(
    "Over time",
    [
        lines(
            "Phases",
            "Jobs by phase.",
            "none",
            Query(
                f"count by (phase) (max by (namespace, job, phase) (rljob_operator_job_phase{{{_CHOSEN}}}))",
                "{{phase}}",
            ),
            stacked=True,
        ),
        lines(
            "Progress",
            "Trained rollouts of those that are wanted.",
            "percentunit",
            Query(f"({_each('rljob_operator_job_step')} + 1) / {_each('rljob_operator_job_total_steps')}", _PER_JOB),
            most=1,
        ),
        lines("Reward", "Mean of a step.", "none", Query(_each("rljob_reward"), _PER_JOB), least=None),
        lines(
            "Samples a second",
            "Each step's, by its seconds.",
            "none",
            Query(f"{_each('rljob_step_samples')} / {_each('rljob_step_seconds')}", _PER_JOB),
        ),
        lines(
            "Queue",
            "Groups that were issued and not trained, of those that may be. Full: training is slow; empty: generation.",
            "percentunit",
            Query(f"{_each('rljob_groups_issued')} / {_each('rljob_groups_capacity')}", _PER_JOB),
            most=1,
        ),
        lines(
            "Global restarts",
            "In each interval.",
            "none",
            Query(
                f"sum by (namespace, job) (increase(rljob_operator_job_global_restarts_total{{{_CHOSEN}}}[{RECENT}]))",
                _PER_JOB,
            ),
        ),
    ],
)

BOARD = Board(
    uid="rljob-fleet",
    title="RLJob: all jobs",
    description="Phases, progress, reward, speed and restarts of all RLJobs.",
    variables=[
        sources(),
        choice("namespace", "Namespace", "label_values(rljob_operator_job_phase, namespace)", every=True),
    ],
    rows=[_NOW, _OVER_TIME],
)
