"""An earlier release, as its commit has it: for tests of what meets it after an upgrade, or before a rollback.

It runs with the packages that are installed here; nothing is fetched.
"""

import compileall
import subprocess
from pathlib import Path

from tests.cluster.harness.machine import REPOSITORY

_FOLDERS = ("crds", "operator", "cli", "workers", "examples")
_PYTHON = ("crds", "operator", "workers")


def check_out(version: str, folder: Path) -> Path:
    """The release's folders within `folder`. LookupError with the reason if this checkout's history lacks it."""
    listed = _git("log", "--format=%H", "--max-count=1", "--grep", f"^Release {version.replace('.', '[.]')}:", "HEAD")
    commit = listed.stdout.decode().strip()
    if not commit:
        message = listed.stderr.decode().strip() or "no commit of this checkout's history has its title"
        raise LookupError(
            f"release {version} is not to be had: {message}. Fetch the whole history (not a shallow clone)"
        )
    archive = _git("archive", commit, *_FOLDERS)
    folder.mkdir(parents=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True, timeout=60)
    for name in _PYTHON:  # pods may not write byte code, and without it their start takes several times as long
        compileall.compile_dir(folder / name, quiet=1)
    return folder


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, timeout=60, check=False)
