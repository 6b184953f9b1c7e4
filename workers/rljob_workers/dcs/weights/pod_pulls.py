"""Weights are pulled once for each pod: its ranks take turns, and who comes second links what the first has pulled.

Used by the receiver, in its thread. A folder is there under its name only when all of it is verified; beside each part
lie the checksums of its chunks, so that whoever links it can serve it as well. The links outlive what is pruned here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rljob_api.wire.identity import PodKey
from rljob_api.wire.weights import WeightOffer
from rljob_workers.dcs.blob import digest_of
from rljob_workers.dcs.errors import WeightTimeout
from rljob_workers.models.blob import part_file

TURN_SECONDS = 0.05
"""Between two looks whether the rank that pulls is done."""
KEPT_FOLDERS = 2
"""A rank that is slower than the others of its pod may still want the weight before the newest."""
CHECKSUMS = ".checksums"


class PodPulls:
    """What the ranks of one pod have pulled, in memory that they share."""

    def __init__(self, weights_dir: Path, pod: PodKey, timeout_seconds: float) -> None:
        self._pod = pod
        self._root = weights_dir / f"{pod}.pulled"
        self._root.mkdir(parents=True, exist_ok=True)
        self._lock = weights_dir / f"{pod}.lock"
        self._timeout = timeout_seconds

    @contextlib.contextmanager
    def turn(self, pulse: Callable[[], None]) -> Iterator[None]:
        """This rank's turn to look and to pull; a rank that dies in its turn loses it.

        Raises WeightTimeout where another rank of the pod has not finished within the time of a pull.
        """
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._take(descriptor, pulse)
            yield
        finally:
            os.close(descriptor)

    def find(self, offer: WeightOffer) -> dict[int, bytes] | None:
        """The checksums of each part, where this very weight was pulled already."""
        folder = self.folder_of(offer)
        found = {}
        for part in offer.parts:
            path = folder / part_file(part.index, len(offer.parts))
            try:
                checksums = path.with_name(path.name + CHECKSUMS).read_bytes()
            except FileNotFoundError:
                return None
            if digest_of(checksums) != part.digest:
                return None  # another layout, or a job before this one
            found[part.index] = checksums
        return found

    @contextlib.contextmanager
    def pulling(self, offer: WeightOffer) -> Iterator[Path]:
        """A folder to pull into, which goes again unless `keep` was called."""
        partial = self._root / f".partial-{self.folder_of(offer).name}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def keep(self, offer: WeightOffer, pulled: Path, checksums: Mapping[int, bytes]) -> None:
        """All parts of `pulled` are right: from now on it is found."""
        for index, content in checksums.items():
            (pulled / (part_file(index, len(offer.parts)) + CHECKSUMS)).write_bytes(content)
        folder = self.folder_of(offer)
        shutil.rmtree(folder, ignore_errors=True)
        pulled.rename(folder)
        self._prune(offer)

    def link(self, offer: WeightOffer, target: Path) -> None:
        """Makes `target` a folder of its own with the same files."""
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        for path in self.folder_of(offer).iterdir():
            if not path.name.endswith(CHECKSUMS):
                os.link(path, target / path.name)

    def folder_of(self, offer: WeightOffer) -> Path:
        """Where the pod has this weight."""
        return self._root / folder_name(offer)

    def _take(self, descriptor: int, pulse: Callable[[], None]) -> None:
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                pulse()
            if time.monotonic() >= deadline:
                raise WeightTimeout(
                    f"{self._pod}: another rank of this pod has been pulling a weight for {self._timeout:.0f} s "
                    "(weightSync.timeoutSeconds)."
                )
            time.sleep(TURN_SECONDS)

    def _prune(self, newest: WeightOffer) -> None:
        """Older weights of the stream; ranks that still read one have links of their own."""
        of_stream = sorted(self._root.glob(f"{newest.stream.value}-*"), key=lambda path: path.stat().st_mtime_ns)
        for path in of_stream[:-KEPT_FOLDERS]:
            shutil.rmtree(path, ignore_errors=True)


def folder_name(offer: WeightOffer) -> str:
    """Of a weight, in the pod's memory and in each rank's own."""
    return f"{offer.stream.value}-{offer.id.lineage}-{offer.id.version}"
