"""Marks every test by the folder it lies in, so that `-m unit` and `tests/unit` mean the same; long files go first."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before anything imports torch. Models of tests are tiny: two threads that wait for each other on a busy machine take a
# hundred times as long as one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No test asserts on time: on a loaded machine an example takes as long as it takes. What the profile that CI is given
# says beside that stays: its examples are the same in every run.
settings.register_profile("untimed", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

_KINDS = frozenset({"unit", "integration", "cluster", "gpu"})
_TESTS = Path(__file__).parent

LONGEST_FIRST = (
    "cluster/test_monitoring.py",
    "cluster/test_operator.py",
    "cluster/test_lifecycle.py",
    "cluster/test_api.py",
    "cluster/test_scaling.py",
    "cluster/test_quickstart.py",
    "cluster/test_restarts.py",
    "cluster/test_rights.py",
    "cluster/test_waits.py",
    "cluster/test_retained_checkpoints.py",
    "cluster/test_commands.py",
    "cluster/test_images.py",
    "cluster/test_refused_edit.py",
    "cluster/test_helm.py",
    "cluster/test_admission_policy.py",
    "cluster/test_names.py",
    "cluster/test_startup.py",
    "cluster/test_operator_faults.py",
    "cluster/test_node.py",
    "integration/run/test_restart_storms.py",
    "integration/run/test_kills.py",
    "integration/engines/contract/test_updates.py",
    "integration/engines/contract/test_ends.py",
    "integration/test_walks.py",
    "integration/run/test_folder.py",
    "integration/run/test_failing_rewards.py",
    "integration/run/test_megatron.py",
    "integration/transfer_queue/test_state_machine.py",
    "integration/run/test_autoscaling.py",
    "integration/run/test_evaluation.py",
    "integration/trainers/test_megatron_layouts.py",
    "integration/run/test_rewards.py",
    "integration/run/test_gpu_example.py",
    "integration/run/test_restart_policy.py",
    "integration/trainers/test_fsdp_families.py",
    "integration/launcher/test_pods.py",
    "integration/run/test_wrong_weights.py",
    "integration/launcher/test_engine.py",
    "integration/run/test_lost_state.py",
    "integration/run/test_resume.py",
    "integration/recorded/test_jobs.py",
    "integration/run/test_data_files.py",
    "integration/run/test_stops.py",
    "integration/run/test_failpoints.py",
    "integration/launcher/test_engine_program.py",
    "integration/run/test_order.py",
    "integration/transfer_queue/test_schedules.py",
    "integration/dcs/test_blackholes.py",
    "integration/run/test_long_prompts.py",
    "integration/run/test_critic.py",
    "integration/run/test_gangs.py",
)
"""Files of about half a minute and more, longest first: one process runs a file, and none of these shall begin last.
Where a file stands decides how long a run takes, and nothing else."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Gives each test the marker named as its first folder, and sorts; the long tests of a story bring the others."""
    places = {_TESTS / file: place for place, file in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
    for item in items:
        kind = item.path.relative_to(_TESTS).parts[0]
        if kind in _KINDS:
            item.add_marker(kind)
        if item.get_closest_marker("story") and config.getoption("markexpr") == "long":
            item.add_marker("long")
