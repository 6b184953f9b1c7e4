"""Names of the Hugging Face hub in the place of paths: `hf:Qwen/Qwen3-0.6B@main`, found in huggingface_hub's cache.

Used where a manifest's paths become absolute. Nothing is ever downloaded here: processes of a job that each fetched a
model would do so at every restart, and hang where there is no network. A sentence says what to download, and how.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

PREFIX = "hf:"

_NAME = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^/@]+))?(?:/(?P<inner>.+))?")
_INDEX = "model.safetensors.index.json"


class RepoKind(StrEnum):
    """Kinds of repositories: each has names of its own on the hub."""

    MODEL = "model"
    DATASET = "dataset"


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository, or what is in it."""

    repo: str
    """OWNER/NAME."""
    revision: str | None
    """A branch, a tag or a commit; None: the default branch."""
    inner: str | None
    """A path in the repository, which may end with a pattern."""
    kind: RepoKind

    @property
    def command(self) -> str:
        """Puts it into the cache."""
        kind = f" --repo-type {self.kind}" if self.kind is not RepoKind.MODEL else ""
        revision = f" --revision {self.revision}" if self.revision else ""
        return f"hf download {self.repo}{kind}{revision}"


def is_hub_name(path: str) -> bool:
    """Whether it is no path of the file system."""
    return path.startswith(PREFIX)


def parse_hub_name(name: str, kind: RepoKind) -> HubName:
    """Raises ValueError. A slash in a revision is written as %2F, as in hf:// of huggingface_hub."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name} is no name of the hub. Write {PREFIX}OWNER/NAME, with @REVISION where you want one.")
    revision = found["revision"]
    return HubName(found["repo"], revision and revision.replace("%2F", "/"), found["inner"], kind)


def cached_path(name: str, kind: RepoKind) -> Path:
    """Where the cache has it. ValueError says what to download where it has not, or not all of it."""
    wanted = parse_hub_name(name, kind)
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError
    except ImportError:
        raise ValueError(
            f"{name} is a name of the hub, and huggingface_hub, which finds it, is not installed. Install it: pip"
            " install 'rljob[worker]'."
        ) from None
    try:
        folder = Path(
            snapshot_download(wanted.repo, repo_type=kind.value, revision=wanted.revision, local_files_only=True)
        )
    except HFValidationError as error:
        raise ValueError(f"{name} is no name of the hub ({error}). Correct it.") from error
    except OSError:
        raise _missing(name, wanted, "is not in the cache of huggingface_hub on this machine") from None
    path = folder if wanted.inner is None else folder / wanted.inner
    if not path.exists() and not ("*" in path.name and any(path.parent.glob(path.name))):
        raise _missing(name, wanted, f"lacks {wanted.inner} in the cache of huggingface_hub on this machine")
    absent = _absent_weights(path)
    if absent is not None:
        raise _missing(name, wanted, f"lacks {absent} in the cache of huggingface_hub on this machine")
    return path


def _missing(name: str, wanted: HubName, how: str) -> ValueError:
    return ValueError(f"{name} {how}. Where there is a network, download it: {wanted.command}.")


def _absent_weights(folder: Path) -> str | None:
    """A file of weights that the index names and that was not downloaded."""
    index = folder / _INDEX
    if not index.is_file():
        return None
    files = sorted(set(json.loads(index.read_bytes()).get("weight_map", {}).values()))
    return next((file for file in files if not (folder / file).is_file()), None)
