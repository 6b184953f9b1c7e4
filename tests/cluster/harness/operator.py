"""The operator as a process of this machine, which a test starts, stops, freezes and kills.

It serves only the namespaces that it is given, so that others do not meet it. Without a lease, unless a test gives it
one: on a busy machine it would lose that now and then, and no one starts it again.
"""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from rljob_operator.options import OperatorOptions
from tests.cluster.harness.machine import REPOSITORY, Cluster, workload_options
from tests.integration.children import die_with_tests

_STOP_SECONDS = 120


class OperatorProcess:
    """One replica. `with OperatorProcess(...) as operator:` starts it and ends it."""

    def __init__(
        self, cluster: Cluster, namespace: str, folder: Path, *, sources: Path = REPOSITORY, **options: Any
    ) -> None:
        """`options` are fields of the operator's options (camelCase) that differ; files lie in `folder`.

        `sources` is the checkout that it and the pods of its jobs run, with the installed packages of this one.
        """
        self._cluster = cluster
        self._sources = sources
        self._config = folder / "operator.yaml"
        self.log = folder / "operator.log"
        self._clock_folder = folder / "clock"
        self._group: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        file = {**_defaults(cluster, namespace, sources), **options}
        OperatorOptions.model_validate(file)
        self._config.write_text(yaml.safe_dump(file))

    def in_group(self, group: int) -> "OperatorProcess":
        """Its next incarnation is of this group, by which a packet filter distinguishes its packets from the
        kubelet's."""
        self._group = group
        return self

    def ahead(self, seconds: float) -> "OperatorProcess":
        """Its next incarnation is on a machine whose clock is so far ahead of the cluster's; below 0: behind."""
        self._clock_folder.mkdir(exist_ok=True)
        text = f"import time\nown = time.time\ntime.time = lambda: own() + {seconds!r}\n"
        (self._clock_folder / "sitecustomize.py").write_text(text)
        return self

    def start(self) -> None:
        """Starts it; after its end a new one."""
        command = [sys.executable, "-m", "rljob_operator", "--config", str(self._config)]
        if self._group is not None:
            command = ["setpriv", "--regid", str(self._group), "--clear-groups", *command]
        kubeconfig = self._cluster.kubeconfig
        if self._cluster.node is not None:
            command = self._cluster.node.within(*command)
            kubeconfig = str(self._cluster.node.kubeconfig)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["env", f"KUBECONFIG={kubeconfig}", f"PYTHONPATH={self._python_path()}", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_tests,
            )

    def stop(self) -> int:
        """Asks it to end, as the kubelet does; its exit code. AssertionError with its last output if it stays."""
        running = self._running()
        running.send_signal(signal.SIGCONT)
        running.terminate()
        try:
            return running.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired as late:
            self.kill()
            raise AssertionError(
                f"the test waited {_STOP_SECONDS} s for the operator to end after SIGTERM. It said last:\n{self.tail()}"
            ) from late

    def kill(self) -> None:
        """SIGKILL; returns when it is dead."""
        running = self._running()
        running.kill()
        running.wait(_STOP_SECONDS)

    def pause(self) -> None:
        """SIGSTOP: it neither works nor ends, as on a node that hangs."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._running().send_signal(signal.SIGCONT)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._running().poll()

    @property
    def pid(self) -> int:
        """On this machine."""
        return self._running().pid

    def tail(self, num_lines: int = 30) -> str:
        """The end of its log, for an error."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-num_lines:])

    def _python_path(self) -> str:
        """It goes before the folders of the editable install."""
        folders = (self._clock_folder, *(self._sources / name for name in ("crds", "operator")))
        return ":".join(map(str, folders))

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the operator was not started"
        return self._process

    def __enter__(self) -> "OperatorProcess":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.exit_code is None:
            self.stop()


def _defaults(cluster: Cluster, namespace: str, sources: Path) -> dict[str, Any]:
    return {
        "workloads": workload_options(sources),
        "namespaces": [namespace],
        "lease": None,
        "coordinatorAccess": "Service" if cluster.node is not None else "Proxy",
        "healthPort": 0,
        "metricsPort": 0,
    }
