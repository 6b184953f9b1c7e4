"""Turns an image from `buildah push docker-archive:` into one that lacks the layers which a node already has.

    buildah push NAME docker-archive:/dev/stdout | python scripts/thin_archive.py NAME DIGESTS | ctr images import -

DIGESTS is a file with the digests that the node has, one a line. Everything streams: no layer is held in memory or
written to disk here.
"""

import hashlib
import io
import json
import re
import sys
import tarfile
from pathlib import Path
from typing import IO, Any

_LAYER = re.compile(r"([0-9a-f]{64})\.tar")
_CONFIG = re.compile(r"([0-9a-f]{64})\.json")
_DOCKER = "application/vnd.docker"


def thin(name: str, known: frozenset[str], source: IO[bytes], sink: IO[bytes]) -> None:
    """Copies the image `name` from `source` to `sink`, without the layers in `known`."""
    sizes: dict[str, int] = {}
    config, layers = "", list[str]()
    with tarfile.open(fileobj=source, mode="r|") as old, tarfile.open(fileobj=sink, mode="w|") as new:
        _add(new, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        for member in old:
            content = old.extractfile(member) if member.isreg() else None
            if content is None:
                continue
            if member.name == "manifest.json":
                manifest = json.load(content)[0]
                config, layers = manifest["Config"], manifest["Layers"]
            elif found := _LAYER.fullmatch(member.name) or _CONFIG.fullmatch(member.name):
                digest = f"sha256:{found[1]}"
                sizes[digest] = member.size
                if digest not in known or member.name.endswith(".json"):
                    member.name = _blob(digest)
                    new.addfile(member, content)
        described = _manifest(config, layers, sizes)
        digest = f"sha256:{hashlib.sha256(described).hexdigest()}"
        _add(new, _blob(digest), described)
        _add(new, "index.json", _index(name, digest, len(described)))


def _manifest(config: str, layers: list[str], sizes: dict[str, int]) -> bytes:
    """What docker-archive calls by file names, by digest and size."""

    def part(kind: str, file: str) -> dict[str, Any]:
        digest = f"sha256:{file.partition('.')[0]}"
        return {"mediaType": f"{_DOCKER}.{kind}", "digest": digest, "size": sizes[digest]}

    return json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{_DOCKER}.distribution.manifest.v2+json",
            "config": part("container.image.v1+json", config),
            "layers": [part("image.rootfs.diff.tar", layer) for layer in layers],
        }
    ).encode()


def _index(name: str, digest: str, size: int) -> bytes:
    manifest = {
        "mediaType": f"{_DOCKER}.distribution.manifest.v2+json",
        "digest": digest,
        "size": size,
        "annotations": {"io.containerd.image.name": name},
    }
    return json.dumps({"schemaVersion": 2, "manifests": [manifest]}).encode()


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def main() -> None:
    """Reads the arguments and copies standard input to standard output."""
    if len(sys.argv) != 3:
        sys.exit("usage: buildah push ... | thin_archive.py NAME DIGESTS | ctr images import -")
    thin(sys.argv[1], frozenset(Path(sys.argv[2]).read_text().split()), sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
