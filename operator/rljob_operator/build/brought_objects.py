"""Objects and identities that the administrator's part names: a volume or variable of a job's would open them whole.

Pure. Called by `trespasses`. Claims, Secrets and devices by their names, the pod's service account by what gives out
its identity, and drivers of volumes, which could mount the same with other rights.
"""

from collections.abc import Iterator
from typing import Any

from rljob_operator.build.brought import WHOSE, Brought, Json, field_of, jobs_containers
from rljob_operator.build.volumes import RUN

_SECRET_REFERENCES = ("secretRef", "secretKeyRef", "nodePublishSecretRef", "secret")
"""`secret` is a projected volume's; a volume's own has `secretName`."""
_IDENTITIES = {"serviceAccountToken", "podCertificate"}
"""Sources of a projected volume."""
_RUN_PATH = "checkpoint.volume.claimName (or roles.actor.template.spec.volumes[run])"


def objects(brought: Brought, before: Json, after: Json, path: str) -> Iterator[str]:
    """A sentence for each of them that the job names, too."""
    pulls = [each["name"] for each in brought.spec.get("imagePullSecrets", [])]
    named = {*_all_named(brought.spec), *(("Secret", name) for name in (*brought.pull_secrets, *pulls))}
    for volume in after["spec"].get("volumes", []):
        if volume["name"] in brought.volumes:
            continue
        where = _RUN_PATH if volume["name"] == RUN else f"{path}.spec.volumes[{volume['name']}]"
        yield from _sentences(named, volume, where)
        yield from _identities(brought, volume, where)
    for claim in after["spec"].get("resourceClaims", []):
        if claim["name"] not in brought.names("resourceClaims"):
            yield from _sentences(named, claim, f"{path}.spec.resourceClaims[{claim['name']}]")
    for where, container, known in jobs_containers(brought, before, after, path):
        for source in ("env", "envFrom"):
            rest = [entry for entry in container.get(source, []) if entry not in known.get(source, [])]
            yield from _sentences(named, {source: rest}, f"{where}.{source}")


def _identities(brought: Brought, volume: Json, path: str) -> Iterator[str]:
    """What a volume of the job's gets in the name of the pod's account, or by a driver of the administrator's."""
    sources = field_of(volume.get("projected"), "sources")
    kinds = {key for each in sources if isinstance(each, dict) for key in each} if isinstance(sources, list) else set()
    if brought.has_account and _IDENTITIES & kinds:
        yield f"{path}: is the account's identity, which {WHOSE}. Remove it."
    if "csi" not in volume:
        return
    driver = field_of(volume["csi"], "driver")
    if brought.has_account:
        yield f"{path}: the driver {driver} may act in the name of the account, which {WHOSE}. Use a claim instead."
    elif driver in brought.drivers:
        yield f"{path}: the driver {driver} mounts a volume that {WHOSE}. Use a claim instead."


def _sentences(named: set[tuple[str, str]], value: Json, path: str) -> Iterator[str]:
    for kind, name in _all_named(value):
        if (kind, name) in named:
            yield f"{path}: the {kind} {name} is one that the operator's workloads.podTemplate names. Name another one."


def _all_named(value: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - JSON
    """Kind and name of each claim and Secret that is named in it, wherever."""
    if isinstance(value, list):
        for each in value:
            yield from _all_named(each)
    if not isinstance(value, dict):
        return
    for key, inner in value.items():
        if key == "claimName":
            yield "PersistentVolumeClaim", str(inner)
        elif key in ("secretName", "resourceClaimName"):
            yield ("Secret" if key == "secretName" else "ResourceClaim"), str(inner)
        elif key in ("dataSource", "dataSourceRef") and isinstance(inner, dict):  # a claim that begins as a copy
            yield str(inner.get("kind")), str(inner.get("name"))
        elif key in _SECRET_REFERENCES and isinstance(inner, dict) and "name" in inner:
            yield "Secret", str(inner["name"])
        else:
            yield from _all_named(inner)
