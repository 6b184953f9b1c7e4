"""`helm test` runs this in a pod of the operator's image with the operator's rights. Standard library only.

A replica is ready, one leads, and the API serves jobs to the operator. Prints a line for each and exits with 1 at
the first that is not so.
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PATIENCE_SECONDS = 60.0
"""For each question: a release that was installed without --wait may still be starting."""


def api(path: str) -> dict[str, Any]:
    """An object of the API server, read as the operator."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    host = f"[{host}]" if ":" in host else host
    token = (ACCOUNT / "token").read_text()
    request = urllib.request.Request(f"https://{host}:{port}{path}", headers={"Authorization": f"Bearer {token}"})
    trust = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, timeout=10, context=trust) as answer:  # noqa: S310 - https, to the API server
        return dict(json.load(answer))


def ready() -> str:
    """A replica behind the Service reports that it is ready."""
    with urllib.request.urlopen(f"http://{os.environ['SERVICE']}/readyz", timeout=10) as answer:
        return f"ready: {answer.read().decode().strip()[:200]}"


def led() -> str:
    """The Lease has a holder."""
    lease = api(f"/apis/coordination.k8s.io/v1/namespaces/{os.environ['NAMESPACE']}/leases/{os.environ['LEASE']}")
    holder = lease["spec"].get("holderIdentity")
    if not holder:
        raise ValueError(f"Lease {os.environ['LEASE']} has no holder: no replica leads")
    return f"leader: {holder}, since {lease['spec'].get('acquireTime')}"


def served() -> str:
    """The API server knows RLJobs, and the operator may list them where it serves them."""
    namespaces = [name for name in os.environ["NAMESPACES"].split(",") if name]
    paths = [f"/apis/rljob.dev/v1alpha1/namespaces/{name}/rljobs" for name in namespaces]
    for path in paths or ["/apis/rljob.dev/v1alpha1/rljobs"]:
        api(f"{path}?limit=1")
    return f"jobs: served in {', '.join(namespaces) or 'all namespaces'}"


def main() -> None:
    """Asks one question after the other, each until it is answered or patience ends."""
    questions: list[Callable[[], str]] = [ready, led, served]
    for question in questions:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                print(question(), flush=True)  # noqa: T201 - `helm test --logs` shows it
                break
            except (OSError, ValueError, KeyError) as error:
                if time.monotonic() > deadline:
                    sys.exit(f"{question.__name__}: not so after {PATIENCE_SECONDS:.0f} s: {error}")
                time.sleep(1)


if __name__ == "__main__":
    main()
