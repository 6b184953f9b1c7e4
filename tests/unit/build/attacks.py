"""What a tenant tries who may only make RLJobs: to get what the administrator brought into pods, or what a node has.

Tried by the unit tests against the build alone, and on the cluster with the chart's admission policy in force.
"""

import json
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

_DROPPED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_APPARMOR = "container.apparmor.security.beta.kubernetes.io"
OWN = ("worker", "coordinator", "redis", "tracker")

SHARES, VAULT = "nfs.csi.k8s.io", "secrets-store.csi.k8s.io"
"""Drivers: of network shares, and of one that fetches secrets in the name of a pod's service account."""

ADMINISTRATORS: Json = {
    "metadata": {"labels": {"team": "research"}, "annotations": {"example.org/mesh": "on"}},
    "spec": {
        "serviceAccountName": "mesh",
        "priorityClassName": "tenants",
        "runtimeClassName": "sandboxed",
        "imagePullSecrets": [{"name": "registry"}],
        "initContainers": [
            {
                "name": "mesh-init",
                "image": "mesh:1",
                "command": ["iptables"],
                "securityContext": {"runAsUser": 0, "runAsNonRoot": False, "capabilities": {"add": ["NET_ADMIN"]}},
            }
        ],
        "containers": [
            {
                "name": "mesh",
                "image": "mesh:1",
                "command": ["mesh"],
                "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "mesh-token", "key": "token"}}}],
                "envFrom": [{"configMapRef": {"name": "mesh-config"}}],
                "securityContext": {"capabilities": {"add": ["NET_ADMIN", "SYS_ADMIN"]}},
                "volumeMounts": [{"name": "node", "mountPath": "/node"}],
            },
            {
                "name": "worker",
                "env": [
                    {"name": "TEAM", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['team']"}}},
                    {"name": "FOLDER", "value": "of-$(TEAM)"},
                    {"name": "LOG_LEVEL", "value": "info"},
                ],
                "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
                "volumeMounts": [
                    {"name": "node", "mountPath": "/node/logs", "subPath": "logs", "readOnly": True},
                    {"name": "models", "mountPath": "/models", "subPathExpr": "$(FOLDER)", "readOnly": True},
                ],
            },
            {"name": "tracker", "env": [{"name": "HTTPS_PROXY", "value": "http://proxy.example.org"}]},
        ],
        "resourceClaims": [
            {"name": "card", "resourceClaimName": "the-card"},
            {"name": "spare", "resourceClaimTemplateName": "cards"},
        ],
        "volumes": [
            {"name": "node", "hostPath": {"path": "/var/lib/node"}},
            {"name": "models", "persistentVolumeClaim": {"claimName": "all-models"}},
            {"name": "share", "csi": {"driver": SHARES, "readOnly": True, "volumeAttributes": {"share": "/all"}}},
        ],
    },
}
"""A sidecar, a hostPath and capabilities; a claim of which each team sees its own folder; a share to read from."""

WORKLOADS: Json = {
    "podTemplate": ADMINISTRATORS,
    "pullSecrets": ["site-pull", "pull-of-site"],
    "reservedObjects": {
        "secrets": ["site-tls", "*-of-site"],
        "configMaps": ["site-config", "site-0-job"],
        "persistentVolumeClaims": ["site-data"],
        "serviceAccounts": ["site-admin"],
        "resourceClaims": ["site-card"],
    },
}
"""The operator's options for them, as the chart has them, too."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One try: fields of the spec, and who refuses it first where the admission policy is not in force."""

    name: str
    spec: Json
    by_build: bool


def _role(template: Json, role: str = "rollout") -> Json:
    return {"roles": {role: {"template": template}}}


def _pod(**fields: Any) -> Json:
    return _role({"spec": fields})


def _in(name: str, key: str = "containers", /, **fields: Any) -> Json:
    return _pod(**{key: [{"name": name, **fields}]})


def _mine(key: str = "containers", volumes: list[Json] | None = None, **fields: Any) -> Json:
    """A container of the tenant's that the policy would take."""
    container = {"name": "mine", "image": "i", "securityContext": _DROPPED, **fields}
    return _pod(**{key: [container]}, **({"volumes": volumes} if volumes else {}))


def _mount(volume: str, path: str, **fields: Any) -> list[Json]:
    return [{"name": volume, "mountPath": path, **fields}]


_SCRATCH: list[Json] = [{"name": "scratch", "emptyDir": {}}]
_CLAIM = {"persistentVolumeClaim": {"claimName": "all-models"}}
_HOST_PROBE = {"httpGet": {"host": "169.254.169.254", "port": 80, "path": "/"}}


def _over(path: str) -> Json:
    """A mount of the tenant's own in the worker."""
    return _pod(containers=[{"name": "worker", "volumeMounts": _mount("scratch", path)}], volumes=_SCRATCH)


_AGAINST_THE_ADMINISTRATOR = {
    "the sidecar's command": _in("mesh", command=["sh", "-c", "mine"]),
    "the sidecar's arguments": _in("mesh", args=["mine"]),
    "the sidecar's image": _in("mesh", image="mine"),
    "the sidecar's environment": _in("mesh", env=[{"name": "LD_PRELOAD", "value": "/mine.so"}]),
    "the sidecar's environment from a map": _in("mesh", envFrom=[{"configMapRef": {"name": "mine"}}]),
    "the sidecar's working folder": _in("mesh", workingDir="/mine"),
    "the sidecar as root": _in("mesh", securityContext={"runAsUser": 0}),
    "the sidecar without its context": _in("mesh", securityContext=None),
    "the sidecar's hook": _in("mesh", lifecycle={"postStart": {"exec": {"command": ["mine"]}}}),
    "the sidecar's probe": _in("mesh", livenessProbe={"exec": {"command": ["mine"]}}),
    "the sidecar's mounts": _in("mesh", volumeMounts=_mount("run", "/mesh")),
    "the sidecar taken away": _in("mesh", **{"$patch": "delete"}),
    "the sidecar taken away and given anew": _pod(
        containers=[{"name": "mesh", "$patch": "delete"}, {"name": "mesh", "image": "i", "securityContext": _DROPPED}]
    ),
    "the sidecar named twice": _pod(containers=[{"name": "mesh"}, {"name": "mesh", "args": ["mine"]}]),
    "the sidecar, shut up by a field set to null": _in("mesh", command=None),
    "the sidecar in the coordinator's pod": {
        "infrastructure": {"template": {"spec": {"containers": [{"name": "mesh", "command": ["mine"]}]}}}
    },
    "the sidecar by a directive": _in("mesh", **{"$retainKeys": ["name"]}),
    "all containers by a directive": _pod(**{"$patch": "replace", "containers": []}),
    "the order of containers by a directive": _pod(**{"$setElementOrder/containers": [{"name": "worker"}]}),
    "the init container's command": _in("mesh-init", "initContainers", command=["mine"]),
    "the init container taken away": _in("mesh-init", "initContainers", **{"$patch": "delete"}),
    "an init container before the administrator's": _pod(
        initContainers=[
            {"name": "mesh-init", "$patch": "delete"},
            {"name": "mine", "image": "i", "securityContext": _DROPPED},
            ADMINISTRATORS["spec"]["initContainers"][0],
        ]
    ),
    "the node's volume from elsewhere": _pod(volumes=[{"name": "node", "hostPath": {"path": "/"}}]),
    "the node's volume as another kind": _pod(volumes=[{"name": "node", "emptyDir": {}}]),
    "the node's volume taken away": _pod(volumes=[{"name": "node", "$patch": "delete"}]),
    "the mount made writable": _in("worker", volumeMounts=_mount("node", "/node/logs", readOnly=False)),
    "the mount made writable by null": _in("worker", volumeMounts=_mount("node", "/node/logs", readOnly=None)),
    "the whole volume instead of its folder": _in("worker", volumeMounts=_mount("node", "/node/logs", subPath="")),
    "the mount taken away": _in("worker", volumeMounts=_mount("node", "/node/logs", **{"$patch": "delete"})),
    "the node's volume mounted once more": _in("worker", volumeMounts=_mount("node", "/mine")),
    "the node's volume in a sidecar of the tenant's": _mine(volumeMounts=_mount("node", "/mine")),
    "the node's volume in an init container": _mine("initContainers", volumeMounts=_mount("node", "/mine")),
    "the node's volume in the coordinator": {
        "infrastructure": {
            "template": {"spec": {"containers": [{"name": "coordinator", "volumeMounts": _mount("node", "/mine")}]}}
        }
    },
    "the node's volume as a device": _in("worker", volumeDevices=[{"name": "node", "devicePath": "/dev/mine"}]),
    "a mount over the administrator's": _over("/models"),
    "a mount below the administrator's": _over("/models/base"),
    "a mount above the administrator's": _over("/node"),
    "a mount over it, written otherwise": _over("/models/"),
    "a mount over it by a way back": _over("/tmp/../models"),
    "a mount over it without a slash": _over("models"),
    "a device below the administrator's mount": _pod(
        containers=[{"name": "worker", "volumeDevices": [{"name": "disk", "devicePath": "/models/mine"}]}],
        volumes=[{"name": "disk", "persistentVolumeClaim": {"claimName": "mine"}}],
    ),
    "a file of the node below the administrator's mount": _in("worker", terminationMessagePath="/node/logs/mine"),
    "a file of the node over it, written otherwise": _in("worker", terminationMessagePath="/tmp/../models"),
    "the share once more, by its driver": _mine(
        volumes=[{"name": "s", "csi": {"driver": SHARES, "volumeAttributes": {"share": "/all"}}}],
        volumeMounts=_mount("s", "/mine"),
    ),
    "the share as the run volume": _role({"spec": {"volumes": [{"name": "run", "csi": {"driver": SHARES}}]}}, "actor"),
    "the account's secrets, by a driver": _pod(volumes=[{"name": "s", "csi": {"driver": VAULT, "readOnly": True}}]),
    "the claim by a volume of the tenant's": _mine(
        volumes=[{"name": "m", **_CLAIM}], volumeMounts=_mount("m", "/models")
    ),
    "a copy of the claim": _pod(
        volumes=[
            {
                "name": "m",
                "ephemeral": {
                    "volumeClaimTemplate": {
                        "spec": {"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "all-models"}}
                    }
                },
            }
        ]
    ),
    "the device of the administrator's": _in("worker", resources={"claims": [{"name": "card"}]}),
    "the device by a claim of the tenant's": _pod(resourceClaims=[{"name": "mine", "resourceClaimName": "the-card"}]),
    "a file of the node's volume as a variable": _in(
        "worker", env=[{"name": "F", "valueFrom": {"fileKeyRef": {"volumeName": "node", "path": "x", "key": "y"}}}]
    ),
    "the token of the sidecar's account": _pod(automountServiceAccountToken=True),
    "a token of the service account": _pod(
        volumes=[{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]
    ),
    "a certificate of the service account": _pod(
        volumes=[
            {
                "name": "t",
                "projected": {
                    "sources": [
                        {"podCertificate": {"signerName": "example.org/s", "keyType": "ED25519", "keyPath": "k"}}
                    ]
                },
            }
        ]
    ),
    "another account": _pod(serviceAccountName="default"),
    "another account by the old name": _pod(serviceAccount="default"),
    "the claim as the checkpoint volume": {"checkpoint": {"volume": {"claimName": "all-models"}}},
    "the claim as the run volume": _role({"spec": {"volumes": [{"name": "run", **_CLAIM}]}}, "actor"),
    "another team's folder by a variable": _in("worker", env=[{"name": "FOLDER", "value": "of-others"}]),
    "another team's folder by a variable of a variable": _in("worker", env=[{"name": "TEAM", "value": "others"}]),
    "another team's folder by a label": _role({"metadata": {"labels": {"team": "others"}}}),
    "an annotation of the administrator's": _role({"metadata": {"annotations": {"example.org/mesh": "off"}}}),
    "an annotation taken away": _role({"metadata": {"annotations": {"example.org/mesh": None}}}),
    "the sidecar's AppArmor profile": _role({"metadata": {"annotations": {f"{_APPARMOR}/mesh": "unconfined"}}}),
    "the worker's capabilities": _in("worker", securityContext={"capabilities": {"add": ["SYS_PTRACE"]}}),
    "the worker's user, who has capabilities": _in("worker", securityContext={"runAsUser": 1000}),
    "the worker's context taken away": _in("worker", securityContext=None),
    "the user of all containers": _pod(securityContext={"runAsUser": 1000}),
    "the group of all containers": _pod(securityContext={"supplementalGroups": [998]}),
    "the sidecar's processes": _pod(shareProcessNamespace=True),
    "the sidecar's names of hosts": _pod(hostAliases=[{"ip": "203.0.113.1", "hostnames": ["mesh.example.org"]}]),
    "the sidecar's name server": _pod(dnsPolicy="None", dnsConfig={"nameservers": ["203.0.113.1"]}),
    "the sidecar's time": _pod(activeDeadlineSeconds=1),
    "the sidecar's share of the pod": _pod(resources={"limits": {"memory": "1Mi"}}),
    "a field of pods that is not known yet": _pod(letsEverybodyIn=True),
    "another runtime": _pod(runtimeClassName="runc"),
    "no runtime": _pod(runtimeClassName=None),
    "another priority": _pod(priorityClassName="system-node-critical"),
    "another priority by a field of the spec": {"scheduling": {"priorityClassName": "system-node-critical"}},
    "the sidecar's Secret by a variable": _in(
        "worker", env=[{"name": "T", "valueFrom": {"secretKeyRef": {"name": "mesh-token", "key": "token"}}}]
    ),
    "the sidecar's Secret by all variables": _in("worker", envFrom=[{"secretRef": {"name": "mesh-token"}}]),
    "the sidecar's Secret by a volume": _pod(volumes=[{"name": "s", "secret": {"secretName": "mesh-token"}}]),
    "the sidecar's Secret by a projected volume": _pod(
        volumes=[{"name": "s", "projected": {"sources": [{"secret": {"name": "mesh-token"}}]}}]
    ),
    "the registry's Secret": _pod(volumes=[{"name": "s", "secret": {"secretName": "registry"}}]),
    "the registry's Secret taken away": _pod(imagePullSecrets=[{"name": "registry", "$patch": "delete"}]),
}

_AGAINST_THE_NODE = {
    "hostPath": _pod(volumes=[{"name": "x", "hostPath": {"path": "/"}}]),
    "hostPath as the run volume": _role({"spec": {"volumes": [{"name": "run", "hostPath": {"path": "/"}}]}}, "actor"),
    "hostPath as shared memory": _pod(volumes=[{"name": "shm", "hostPath": {"path": "/"}}]),
    "a node name, past all taints": _pod(nodeName="control-plane"),
    "privileged": _mine(securityContext={**_DROPPED, "privileged": True}),
    "a mount that the node sees": _in("worker", volumeMounts=_mount("tmp", "/mine", mountPropagation="Bidirectional")),
    "a mount over /proc": _mine(volumes=_SCRATCH, volumeMounts=_mount("scratch", "/proc")),
    "a mount below /sys": _mine(volumes=_SCRATCH, volumeMounts=_mount("scratch", "/sys/fs")),
    "a file of the node over /proc": _in("worker", terminationMessagePath="/proc/sysrq-trigger"),
    "a mount over /dev by a way back": _mine(volumes=_SCRATCH, volumeMounts=_mount("scratch", "/tmp/../dev")),
    "the kubelet as a messenger, by a probe": _in("worker", livenessProbe=_HOST_PROBE),
    "the kubelet as a messenger, by a hook": _mine(lifecycle={"postStart": _HOST_PROBE}),
    "the AppArmor annotation": _role({"metadata": {"annotations": {f"{_APPARMOR}/mine": "unconfined"}}}),
    "a device by an annotation": _role({"metadata": {"annotations": {"devices.nri.io/container.worker": "[]"}}}),
    "another sidecar by a label": _role({"metadata": {"labels": {"sidecar.istio.io/inject": "true"}}}),
    "an identity of the cloud by a label": _role({"metadata": {"labels": {"azure.workload.identity/use": "true"}}}),
    "the seccomp annotation": _role(
        {"metadata": {"annotations": {"container.seccomp.security.alpha.kubernetes.io/mine": "unconfined"}}}
    ),
    "the AppArmor field": _mine(securityContext={**_DROPPED, "appArmorProfile": {"type": "Unconfined"}}),
    "another seccomp profile": _mine(securityContext={**_DROPPED, "seccompProfile": {"type": "Unconfined"}}),
    "SELinux": _mine(securityContext={**_DROPPED, "seLinuxOptions": {"type": "spc_t"}}),
    "an unmasked /proc": _mine(securityContext={**_DROPPED, "procMount": "Unmasked"}),
    "root in a sidecar": _mine(securityContext={**_DROPPED, "runAsUser": 0}),
    "a port of the node": _in("worker", ports=[{"containerPort": 1, "hostPort": 22}]),
    "a debug container": _pod(ephemeralContainers=[{"name": "d", "image": "i", "targetContainerName": "mesh"}]),
    "a priority in figures": _pod(priority=2_000_000_000),
}

ATTACKS = [
    *(Attack(name, spec, by_build=True) for name, spec in _AGAINST_THE_ADMINISTRATOR.items()),
    *(Attack(name, spec, by_build=False) for name, spec in _AGAINST_THE_NODE.items()),
]


def administrators_part(template: Json, own: str) -> str:
    """Of a pod template, as text: what `ADMINISTRATORS` brought into it."""
    brought, spec = ADMINISTRATORS["spec"], template["spec"]
    names = {key: [entry["name"] for entry in brought[key]] for key in ("containers", "initContainers", "volumes")}
    (its,) = (each for each in spec["containers"] if each["name"] == own)
    his: Json = next((each for each in brought["containers"] if each["name"] == own), {})
    paths = [mount["mountPath"] for mount in his.get("volumeMounts", [])]
    return json.dumps(
        {
            **{
                key: [entry for entry in spec[key] if entry["name"] in names[key] and entry["name"] not in OWN]
                for key in names
            },
            "mounts": [mount for mount in its.get("volumeMounts", []) if mount["mountPath"] in paths],
            "context": its["securityContext"] if "securityContext" in his else None,
            "pod": {key: spec[key] for key in ("priorityClassName", "runtimeClassName", "securityContext")},
            "labels": {key: template["metadata"]["labels"][key] for key in ADMINISTRATORS["metadata"]["labels"]},
        },
        sort_keys=True,
    )
