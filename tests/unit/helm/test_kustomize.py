"""kustomize's list of names in an RLJob has every place where a job may name an object that kustomize makes."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml

from rljob_api.generate.crd import spec_schema
from rljob_operator.build.named_objects import EACH, POD_PLACES, SPEC_PLACES, Access, Kind, Place

FILE = Path(__file__).parents[3] / "helm/gitops/kustomize.yaml"
LIST: dict[str, Any] = yaml.safe_load(FILE.read_text())

MADE = (Kind.SECRET, Kind.CONFIG_MAP, Kind.CLAIM)
RARE = {"azureFile", "cephfs", "cinder", "ephemeral", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos"}
"""Kinds of volumes whose Secrets and claims are left to a list of one's own."""


def test_each_place_of_a_name_is_in_the_list() -> None:
    listed = {each["kind"]: {spec["path"] for spec in each["fieldSpecs"]} for each in LIST["nameReference"]}
    wanted: dict[str, set[str]] = defaultdict(set)
    for place in SPEC_PLACES:
        if _is_renamed(place):
            wanted[place.kind].add("/".join(("spec", *place.path)))
    for template in _templates():
        for place in POD_PLACES:
            if _is_renamed(place):
                wanted[place.kind].add("/".join((template, *(part for part in place.path if part != EACH))))
    assert {kind: listed[kind] for kind in wanted} == wanted


def test_each_image_of_a_spec_is_in_the_list() -> None:
    assert {each["path"] for each in LIST["images"]} == set(_images(spec_schema(), "spec"))


def _is_renamed(place: Place) -> bool:
    is_rare = RARE & set(place.path) or "ephemeralContainers" in place.path
    return place.kind in MADE and place.access in (Access.OPEN, Access.PULLED) and not is_rare


def _templates() -> list[str]:
    roles = spec_schema()["properties"]["roles"]["properties"]
    return ["spec/infrastructure/template", *(f"spec/roles/{role}/template" for role in roles)]


def _images(schema: dict[str, Any], path: str) -> list[str]:
    found = []
    for name, part in schema.get("properties", {}).items():
        where = f"{path}/{name}"
        found += [where] if name.lower().endswith("image") else _images(part, where)
    return found
