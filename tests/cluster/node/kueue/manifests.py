"""Kueue's CRDs and webhooks as its module has them, with a URL in the place of a Service: a list in JSON, for kubectl.

Called by kueue.sh: FOLDER URL CA. Webhooks for kinds that this cluster lacks are left out.
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

KINDS = ("clusterqueue", "cohort", "resourceflavor", "workload", "pod", "deployment", "statefulset", "job")
CONVERTED = ("localqueues", "clusterqueues", "cohorts", "workloads", "multikueueclusters")


def main(folder: Path, url: str, ca: str) -> None:
    """Prints the list."""

    def client(path: str) -> dict[str, str]:
        return {"url": url + path, "caBundle": ca}

    definitions = [yaml.safe_load(path.read_text()) for path in sorted((folder / "crd/bases").glob("*.yaml"))]
    for definition in definitions:
        if definition["spec"]["names"]["plural"] in CONVERTED:
            webhook = {"clientConfig": client("/convert"), "conversionReviewVersions": ["v1"]}
            definition["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
    hooks: list[Any] = list(yaml.safe_load_all((folder / "webhook/manifests.yaml").read_text()))
    for hook in hooks:
        hook["metadata"]["name"] = "kueue-" + hook["metadata"]["name"]
        hook["webhooks"] = [each for each in hook["webhooks"] if each["name"].split(".")[0][1:] in KINDS]
        for each in hook["webhooks"]:
            each["clientConfig"] = client(each["clientConfig"]["service"]["path"])
            namespaces = {"key": "kubernetes.io/metadata.name", "operator": "NotIn"}
            each["namespaceSelector"] = {
                "matchExpressions": [{**namespaces, "values": ["kube-system", "kueue-system"]}]
            }
    json.dump({"apiVersion": "v1", "kind": "List", "items": [*definitions, *hooks]}, sys.stdout)


main(Path(sys.argv[1]), *sys.argv[2:4])
