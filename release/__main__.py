"""The command: `scripts/release [--out DIR] [IMAGE...]`, from a checkout of a tag."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from release.bill import write_bills
from release.packages import IMAGES, archive_images, build_distributions, pack_chart, write_checksums
from release.source import Refused, export

USAGE = 64
"""Exit code of what is asked for in vain, as of the command `rljob`."""


def main() -> int:
    """Gives the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/release", description="Makes wheel, sdist, chart, bills of materials and checksums of a tag."
    )
    parser.add_argument(
        "images", metavar="IMAGE", nargs="*", help=f"also archives of these images: {', '.join(IMAGES)}"
    )
    parser.add_argument("--out", type=Path, default=Path("dist"), help="where all of it is put (dist)")
    arguments = parser.parse_args()
    try:
        release(Path.cwd(), arguments.out.absolute(), arguments.images)
    except Refused as error:
        print(f"release: {error}", file=sys.stderr)  # noqa: T201 - that is its message
        return USAGE
    return 0


def release(checkout: Path, out: Path, images: list[str]) -> None:
    """Raises Refused."""
    for image in images:
        if image not in IMAGES:
            raise Refused(f"there is no image {image}. Give some of {', '.join(IMAGES)}.")
    if out.exists() and any(out.iterdir()):
        raise Refused(f"{out} holds files already, which would be taken for a part of this release. Remove them.")
    with tempfile.TemporaryDirectory(prefix="rljob-release-") as folder:
        source = export(checkout, Path(folder))
        out.mkdir(parents=True, exist_ok=True)
        wheel = build_distributions(source, out)
        pack_chart(source, out)
        write_bills(source, wheel, out)
        archive_images(source, out, images)
    write_checksums(out)


if __name__ == "__main__":
    sys.exit(main())
