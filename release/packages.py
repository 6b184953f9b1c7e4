"""The files of a release that people install from: wheel and sdist, the chart, archives of the images.

Wheel, sdist and chart are the same bytes whenever they are made by the same Python: names in order, one time, modes
that no umask changes. Of an image that is not so: see docs/releasing.md.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from release.source import CHART, Source

IMAGES = ("operator", "worker-cpu", "worker-gpu")


def build_distributions(source: Source, out: Path) -> Path:
    """Wheel and sdist, whose builder sets modes and order by itself; gives the wheel."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(out)]
    _run(command, source)
    return out / f"rljob-{source.version}-py3-none-any.whl"


def pack_chart(source: Source, out: Path) -> Path:
    """As `helm package` does, which has each file's own time and mode."""
    folder = source.folder / CHART
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            member = tarfile.TarInfo(f"{folder.name}/{file.relative_to(folder).as_posix()}")
            member.size, member.mtime, member.mode = file.stat().st_size, source.seconds, 0o644
            with file.open("rb") as content:
                archive.addfile(member, content)
    path = out / f"{folder.name}-{source.version}.tgz"
    path.write_bytes(gzip.compress(packed.getvalue(), mtime=0))
    return path


def archive_images(source: Source, out: Path, names: Sequence[str]) -> None:
    """OCI archives, by scripts/images: as root, with buildah."""
    if names:
        _run(["scripts/images", "archive", str(out), *names], source)


def write_checksums(out: Path) -> None:
    """SHA256SUMS of all that is there, which `sha256sum --check` reads."""
    files = sorted(path for path in out.iterdir() if path.is_file())
    lines = [f"{digest(file)}  {file.name}\n" for file in files]
    (out / "SHA256SUMS").write_text("".join(lines))


def digest(file: Path) -> str:
    """SHA-256."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _run(command: Sequence[str], source: Source) -> None:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(source.seconds), "REVISION": source.commit}
    subprocess.run(command, cwd=source.folder, env=environment, stdout=sys.stderr, check=True)
