"""Pods that run this checkout: the machine's programs, Python, `.venv` and our source, mounted read-only.

Pure. Nothing is built or imported, and a pod sees an edit at its next start. The image holds empty folders only.
"""

from pathlib import Path
from typing import Any

IMAGE = "localhost/host:1"

_SOURCES = ("crds", "operator", "cli", "workers", "examples")
"""Folders of the repository: the editable install points into the first four, manifests name files beside the last."""
_LITTLE = {"requests": {"cpu": "20m"}}
"""So that several jobs have room on a small machine: what pods ask for by default would fill it with two."""
_PING = (
    'exec 3<>/dev/tcp/127.0.0.1/6379; printf "AUTH %s\\r\\nPING\\r\\n" "$REDISCLI_AUTH" >&3;'
    ' read -r -t 5 _ <&3; read -r -t 5 answer <&3; [[ "$answer" == +PONG* ]]'
)
"""redis-cli's work, which no wheel brings along."""


def workload_options(
    repository: Path, venv: Path, python_prefix: Path, redis_server: Path, sources: Path | None = None
) -> dict[str, Any]:
    """`workloads` of the operator's options, with camelCase keys as in its file and in the chart's values.

    `sources` is where the source that pods run lies, if not in `repository`: they find it at the same paths.
    """
    containers = [container("worker", repository, venv, python_prefix)]
    containers += [container("coordinator", repository, venv, python_prefix)]
    containers += [{"name": "redis", "resources": _LITTLE, "volumeMounts": mounts(repository, venv, python_prefix)}]
    return {
        "workerImage": IMAGE,
        "redisImage": IMAGE,
        "pullPolicy": "Never",
        "python": str(venv / "bin/python"),
        "redisServer": str(redis_server),
        "redisPing": ["bash", "-c", _PING],
        "podTemplate": {
            "spec": {"containers": containers, "volumes": volumes(repository, venv, python_prefix, sources)}
        },
        "terminationGraceSeconds": 5,
        "sharedMemory": "256Mi",
    }


def idle_options(options: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The same `workloads` for jobs whose epoch shall not begin: worker and coordinator sleep instead of computing.

    An import of torch takes six seconds of a processor, in every pod. `folder` gets the program that sleeps.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    program = folder / "idle"
    program.write_text("#!/bin/sh\nexec sleep infinity\n")
    program.chmod(0o755)
    mount = {"name": "idle", "mountPath": str(folder), "readOnly": True}
    spec = options["podTemplate"]["spec"]
    containers = [{**each, "volumeMounts": [*each["volumeMounts"], mount]} for each in spec["containers"]]
    sleeps = [*spec["volumes"], {"name": "idle", "hostPath": {"path": str(folder), "type": "Directory"}}]
    template = {"spec": {**spec, "containers": containers, "volumes": sleeps}}
    return {**options, "python": str(program), "podTemplate": template}


def container(name: str, repository: Path, venv: Path, python_prefix: Path) -> dict[str, Any]:
    """A container's part of a patch. It works in `examples`, so that their paths to data hold."""
    return {
        "name": name,
        "resources": _LITTLE,
        "workingDir": str(repository / "examples"),
        # Two processes with two threads each wait for each other on a busy machine.
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        "volumeMounts": mounts(repository, venv, python_prefix),
    }


def mounts(repository: Path, venv: Path, python_prefix: Path) -> list[dict[str, Any]]:
    """Where a container finds it all: at the same paths as on this machine."""
    folders = _folders(repository, venv, python_prefix)
    return [{"name": name, "mountPath": str(path), "readOnly": True} for name, path in folders.items()]


def volumes(repository: Path, venv: Path, python_prefix: Path, sources: Path | None = None) -> list[dict[str, Any]]:
    """The pod's volumes for these mounts."""
    folders = _folders(repository, venv, python_prefix)
    folders |= {name: sources / path.name for name, path in folders.items() if sources and path.name in _SOURCES}
    return [{"name": name, "hostPath": {"path": str(path), "type": "Directory"}} for name, path in folders.items()]


def _folders(repository: Path, venv: Path, python_prefix: Path) -> dict[str, Path]:
    system = Path("/usr")
    folders = {"host-usr": system, "host-venv": venv}
    if not python_prefix.is_relative_to(system):
        folders["host-python"] = python_prefix
    return folders | {f"host-{name}": repository / name for name in _SOURCES}
