"""Room on file systems: what weights on their way take, and the sentence of one that is full."""

import errno
from pathlib import Path
from typing import Any

import pytest

from rljob_api.machine.room import FileSystem, in_units, named_room, require_room_of_pod
from rljob_api.names import Role
from rljob_api.spec import RLJob
from rljob_api.staged_weights import staged_bytes, staged_bytes_of_all
from tests.unit.api.manifests import changed

MIB = 1 << 20


def make_job(changes: dict[str, Any]) -> RLJob:
    """A good one with these changes."""
    return RLJob.model_validate(changed(changes))


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1 KiB"),
        (64 * MIB, "64 MiB"),
        (5 << 40, "5 TiB"),
        (5 << 50, "5120 TiB"),
    ],
)
def test_bytes_in_sentences(number: int, text: str) -> None:
    assert in_units(number) == text


@pytest.mark.parametrize(
    ("role", "model", "elements"),
    [
        (Role.ROLLOUT, {"dtype": "bfloat16"}, 3 * 2),
        (Role.ROLLOUT, {}, 3 * 4),
        (Role.ACTOR_FWD, {}, 3 * 4),
        (Role.REFERENCE, {}, 4),
        (Role.ACTOR, {"dtype": "bfloat16"}, 4),
        (Role.ADVANTAGES, {}, 0),
    ],
    ids=[
        "an engine's pod has three versions in bfloat16",
        "and in float32",
        "log-probs of the policy, too",
        "the reference has its one",
        "the actor begins with float32",
        "advantages need no weights",
    ],
)
def test_what_a_pod_keeps_of_weights(role: Role, model: dict[str, Any], elements: int) -> None:
    job = make_job({f"spec.model.{name}": value for name, value in model.items()})
    assert staged_bytes(job.spec, role, 10_000_000) == elements * 10_000_000 + MIB


def test_pods_of_one_machine_share_its_memory() -> None:
    one, two = (make_job({"spec.roles.rollout": {"replicas": replicas}}).spec for replicas in (1, 2))
    assert staged_bytes_of_all(two, 1000) - staged_bytes_of_all(one, 1000) == 3 * 4 * 1000 + MIB


def test_a_pod_that_is_too_small_is_refused_with_figures_and_cure(tmp_path: Path) -> None:
    """The model is one that no file system has room for."""
    sizes = {"vocabSize": 1 << 20, "hiddenSize": 1 << 16, "intermediateSize": 1 << 18, "numLayers": 256}
    huge = make_job({f"spec.model.config.{name}": value for name, value in sizes.items()})
    with pytest.raises(
        ValueError,
        match=r"pod of the role rollout, and /.* is smaller\. Give it more: docker.*sizeLimit of a volume shm",
    ):
        require_room_of_pod(huge.spec, Role.ROLLOUT, tmp_path)
    require_room_of_pod(huge.spec, Role.ADVANTAGES, tmp_path)
    require_room_of_pod(make_job({}).spec, Role.ROLLOUT, tmp_path)
    require_room_of_pod(make_job({"spec.model": {"path": str(tmp_path)}}).spec, Role.ROLLOUT, tmp_path)


def _full(cause: BaseException) -> None:
    try:
        raise cause
    except BaseException as error:
        raise RuntimeError("the writer has failed") from error


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device"),
            r"has no room for checkpoint 3\. Free some space",
        ),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), r"has no room for checkpoint 3\."),
        (OSError(errno.EROFS, "Read-only file system"), r"is read-only, and checkpoint 3 cannot be written; then"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), r"has no room for checkpoint 3\."),
    ],
    ids=["no space", "a quota", "read-only", "of a library in Rust"],
)
def test_a_full_file_system_is_named(tmp_path: Path, error: BaseException, sentence: str) -> None:
    with (
        pytest.raises(ValueError, match=rf"^The file system /.* \(.*, of which .* are free\) {sentence}"),
        named_room(tmp_path / "not" / "there", "checkpoint 3"),
    ):
        _full(error)


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(OSError, match="Input/output") as found, named_room(tmp_path, "checkpoint 3"):
        raise error
    assert found.value is error


def test_a_file_system_is_named_by_where_it_is_mounted() -> None:
    found = FileSystem.of(Path("/proc/self"))
    assert found.path == Path("/proc")
