"""Every program of ours that README, docs or Makefile name is started by some test, or by what starts the tests."""

import re
import subprocess
from pathlib import Path

import pytest

from rljob_cli.main import SUBCOMMANDS

ROOT = Path(__file__).parents[3]

STARTED_BY = {
    "rljob init": "tests/unit/cli/test_init.py::test_what_is_written_is_valid",
    "rljob run": "tests/integration/run/job.py::start",
    "rljob evaluate": "tests/integration/run/test_evaluation.py::evaluate",
    "rljob validate": "tests/cluster/test_commands.py::test_a_bad_manifest_ends_rljob_validate_with_64",
    "rljob render": "tests/cluster/test_commands.py::test_an_example_and_what_render_makes_of_it_are_accepted",
    "rljob reward": "tests/unit/cli/test_checks.py::test_the_command_shows_what_answers_are_worth",
    "rljob audit": "tests/unit/cli/test_audit_command.py::test_a_whole_log_holds",
    "rljob checkpoint show": "tests/unit/cli/test_checkpoint_commands.py::test_the_latest_record_of_a_run_is_shown",
    "rljob checkpoint export": (
        "tests/unit/cli/test_checkpoint_commands.py::test_a_folder_is_exported_and_written_over_by_nothing"
    ),
    "rljob queue stats": "tests/cluster/test_quickstart.py::test_the_quickstart_succeeds_by_the_commands_of_its_page",
    "rljob queue check": "tests/cluster/test_quickstart.py::test_the_quickstart_succeeds_by_the_commands_of_its_page",
    "rljob queue drain": "tests/cluster/test_quickstart.py::test_the_quickstart_succeeds_by_the_commands_of_its_page",
    "rljob queue peek": (
        "tests/integration/run/test_queue_commands.py::test_the_queue_of_a_run_is_looked_at_proven_and_drained"
    ),
    "rljob restart": "tests/cluster/test_commands.py::test_rljob_restart_waits_until_it_is_carried_out",
    "rljob clone": "tests/cluster/test_commands.py::test_a_clone_can_be_applied",
    "rljob logs": "tests/unit/cli/test_logs.py::test_the_ends_of_a_runs_logs",
    "rljob samples": "tests/unit/cli/test_samples.py::test_a_page_shows_the_text_and_what_became_of_it",
    "rljob crd": "Makefile::lint",
    "rljob docs": "Makefile::lint",
    "rljob_workers.dcs.coordinator": "tests/integration/dcs/world.py::start",
    "rljob_workers.dcs.coordinator.pod": (
        "tests/integration/launcher/test_pod_job.py::test_a_job_of_containers_grows_shrinks_loses_a_rank_and_ends"
    ),
    "rljob_workers.launcher.parent": "tests/integration/run/job.py::start",
    "rljob_workers.launcher.pod": (
        "tests/integration/launcher/test_pod_job.py::test_a_job_of_containers_grows_shrinks_loses_a_rank_and_ends"
    ),
    "rljob_workers.telemetry.trackers": (
        "tests/unit/telemetry/test_tensorboard.py::test_the_command_gives_the_rest_of_a_run_that_has_ended"
    ),
    "scripts/cluster-packages": "Makefile::cluster-build",
    "scripts/cluster-values": "tests/unit/bench/test_benches_start.py::test_values_for_the_cluster_of_this_machine",
    "scripts/count-walks": "tests/integration/test_walks.py::test_no_way_has_become_longer",
    "scripts/draw_panels.py": "tests/cluster/test_monitoring.py::test_the_panels_can_be_drawn",
    "scripts/draw_timeline.py": (
        "tests/integration/run/test_folder.py::test_a_job_trains_to_its_end_and_is_then_finished"
    ),
    "scripts/record_recovery.py": (
        "tests/integration/run/test_recording.py::test_a_run_is_recorded_from_its_command_to_the_proof"
    ),
    "scripts/check_names.py": "tests/integration/test_check_names.py::check",
    "scripts/gpu-wheels": "tests/integration/bench/test_gpu_without_gpu.py::test_every_package_has_its_version",
    "scripts/images": "tests/cluster/test_images.py::test_the_worker_image_runs_a_job_by_itself",
    "scripts/install": "Makefile::install",
    "scripts/ratchets": "tests/unit/ratchets/test_checkout.py::test_no_figure_of_this_checkout_is_above_its_bound",
    "scripts/release": "tests/integration/release/test_release.py::test_the_command_installs_its_tools_from_the_lock",
    "scripts/run_targets.py": "Makefile::test",
    "scripts/test-gpu": "tests/integration/bench/test_gpu_without_gpu.py::test_without_a_gpu_the_target_states_it",
    "tests.gpu.speed": "tests/integration/bench/test_gpu_without_gpu.py::test_the_figures_are_measured",
    "tests.bench.cluster_restart": "tests/unit/bench/test_benches_start.py::test_a_bench_states_how_it_is_called",
    "tests.bench.coordinator": "tests/integration/bench/test_smallest_benches.py::test_the_coordinator",
    "tests.bench.coordinator.quickstart": (
        "tests/unit/bench/test_benches_start.py::test_a_bench_states_how_it_is_called"
    ),
    "tests.bench.fsdp": "tests/integration/bench/test_smallest_benches.py::test_training_of_transformers_models",
    "tests.bench.layouts": "tests/integration/bench/test_smallest_benches.py::test_layouts_of_two_ranks",
    "tests.bench.operator_scale": "tests/unit/bench/test_benches_start.py::test_a_bench_states_how_it_is_called",
    "tests.bench.queue": "tests/integration/bench/test_smallest_benches.py::test_the_queue",
    "tests.bench.quickstart": (
        "tests/integration/bench/test_smallest_benches.py::test_samples_per_second_of_the_quickstart"
    ),
    "tests.bench.restart": "tests/integration/bench/test_smallest_benches.py::test_restarts",
    "tests.bench.step_lengths": "tests/integration/bench/test_smallest_benches.py::test_lengths_of_optimizer_steps",
    "tests.bench.tail": "tests/integration/bench/test_smallest_benches.py::test_answers_with_a_long_tail",
    "tests.bench.tail.learning": "tests/integration/bench/test_smallest_benches.py::test_learning_with_slow_groups",
    "tests.peer.run": "Makefile::test-peer",
    "tests.promises": "Makefile::test-promises",
    "tests/cluster/node/build.sh": "Makefile::cluster-build",
    "tests/cluster/node/gang.sh": "tests/cluster/harness/gangs.py::add_scheduler",
    "tests/cluster/node/gitops.sh": (
        "tests/cluster/test_gitops.py::test_kstatus_and_argo_cd_read_each_state_as_the_table_states"
    ),
    "tests/cluster/node/kueue.sh": "tests/cluster/harness/kueue.py::add_kueue",
    "tests/cluster/node/kwok.sh": "tests/cluster/harness/gangs.py::add_pretended_nodes",
    "tests/cluster/node/up.sh": "tests/cluster/harness/machine.py::bring_up",
    "tests/cluster/node/down.sh": "Makefile::cluster-down",
}
"""Program: who starts it, a function or a target. Benchmarks with their smallest size; those of a cluster show their
help in `make test`, and run in `make test-long`."""

_GROUPS = ("checkpoint", "queue")
"""Commands that have commands of their own."""
_OURS = re.compile(
    rf"\brljob (?:(?:{'|'.join(_GROUPS)}) \w+|{'|'.join(name for name in SUBCOMMANDS if name not in _GROUPS)})\b"
    r"|(?<=-m )(?:tests|rljob_\w+)[\w.]*\w"
    r"|(?<![\w/])(?:scripts|tests/cluster/node)/[\w.-]*\w"
)
_BY_PATH = re.compile(r"python \S*tests/\S+\.py")


def recipes() -> str:
    """What every target would run."""
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    command = ["make", "--dry-run", "--no-print-directory", *targets]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout


def texts() -> str:
    pages = [ROOT / "README.md", ROOT / "Makefile", *sorted((ROOT / "docs").rglob("*.md"))]
    return recipes() + "".join(page.read_text() for page in pages)


def test_every_program_that_is_named_is_in_the_table_and_no_other() -> None:
    assert set(_OURS.findall(texts())) == set(STARTED_BY)


def test_no_program_of_the_tests_is_started_by_its_path() -> None:
    """Its folder would come before the standard library, and a neighbour called `queue` would hide a module of it."""
    programs = "".join(path.read_text() for path in sorted((ROOT / "tests/bench").rglob("*.py")))
    assert _BY_PATH.findall(texts() + programs) == []


@pytest.mark.parametrize("starter", sorted(set(STARTED_BY.values())))
def test_who_starts_it_is_there(starter: str) -> None:
    file, name = starter.split("::")
    definition = {".py": rf"def {name}\(", "Makefile": rf"{name}:"}
    pattern = definition[Path(file).suffix or file]
    assert re.search(rf"^\s*{pattern}", (ROOT / file).read_text(), re.MULTILINE), starter
