"""The bills of materials: what wheel and images are made of, in CycloneDX's JSON, out of their locks.

A component has version, package URL and the hashes that the lock allows. What an image's base has is not in them.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from release.locks import Locked, in_images, needed_by_wheel, read_lock
from release.packages import digest
from release.source import Source

LOCKS = {
    "operator": ("operator",),
    "worker-cpu": ("worker-cpu",),
    "worker-gpu": ("worker-gpu", "sglang"),  # an environment of its own, with another torch
}
"""By image: the locks that its environments are installed from."""


def write_bills(source: Source, wheel: Path, out: Path) -> None:
    """One of the wheel, one of each image."""
    needed = needed_by_wheel(read_lock(source.folder / "requirements.lock"), source.folder / "pyproject.toml")
    ours = _component(Locked("rljob", source.version, frozenset({digest(wheel)}), None, frozenset()))
    _write(source, ours, needed, out / f"{wheel.name}.cdx.json")
    for image, locks in LOCKS.items():
        name = f"rljob-{image}"
        held = [Locked("rljob", source.version, frozenset(), None, frozenset())]
        for lock in locks:
            held += in_images(read_lock(source.folder / "images" / f"{lock}.lock"))
        subject = Component(name=name, version=source.version, type=ComponentType.CONTAINER, bom_ref=name)
        _write(source, subject, held, out / f"{name}-{source.version}.cdx.json")


def _write(source: Source, subject: Component, packages: Iterable[Locked], path: Path) -> None:
    components = {str(each.purl): each for each in map(_component, packages)}
    made_of = hashlib.sha256("\n".join([source.commit, *sorted(components)]).encode()).hexdigest()
    bom = Bom(
        # Of the same release the same one.
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"https://rljob.dev/bills/{path.name}/{made_of}"),
        metadata=BomMetaData(component=subject, timestamp=datetime.fromtimestamp(source.seconds, UTC)),
        components=components.values(),
    )
    bom.register_dependency(subject, components.values())  # all that it comes with: locks of images say no more
    text = JsonV1Dot6(bom).output_as_string(indent=2)
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    assert wrong is None, f"{path.name} is not of its schema: {wrong}"
    path.write_text(f"{text}\n")


def _component(package: Locked) -> Component:
    purl = PackageURL("pypi", name=package.name, version=package.version)
    return Component(
        name=package.name,
        version=package.version,
        type=ComponentType.LIBRARY,
        bom_ref=str(purl),
        purl=purl,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=each) for each in package.hashes],
    )
