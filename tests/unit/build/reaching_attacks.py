"""What a tenant tries who may only make RLJobs: to name the administrator's objects, to reach others' pods and nodes.

`attacks` has the administrator and what is tried against what his template brings. Where `by_build` is False the
chart's admission policy alone refuses it.
"""

from typing import Any

from tests.unit.build.attacks import Attack, Json

_DROPPED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_CENTURY = 2**31 - 1


def _role(template: Json, role: str = "rollout") -> Json:
    return {"roles": {role: {"template": template}}}


def _pod(**fields: Any) -> Json:
    return _role({"spec": fields})


def _infrastructure(**fields: Any) -> Json:
    return {"infrastructure": {"template": {"spec": fields}}}


def _worker(**fields: Any) -> Json:
    return _pod(containers=[{"name": "worker", **fields}])


def _mine(key: str = "containers", **fields: Any) -> Json:
    return _pod(**{key: [{"name": "mine", "image": "i", "securityContext": _DROPPED, **fields}]})


def _volume(**source: Any) -> Json:
    return _pod(volumes=[{"name": "mine", **source}])


def _variable(kind: str, name: str) -> list[Json]:
    return [{"name": "PLAIN", "value": "x"}, {"name": "T", "valueFrom": {kind: {"name": name, "key": "k"}}}]


def _all_variables(kind: str, name: str) -> list[Json]:
    return [{kind: {"name": "mine"}}, {kind: {"name": name}}]


def _keys(name: str) -> Json:
    return {
        "telemetry": {"reportTo": ["wandb"], "keysFrom": {"secretName": name}},
        "checkpoint": {"volume": {"accessMode": "ReadWriteMany"}},
    }


def _claim_of_pod(**fields: Any) -> Json:
    return _volume(ephemeral={"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"], **fields}}})


def _annotated_claim(key: str, value: str) -> Json:
    spec = {"accessModes": ["ReadWriteOnce"]}
    return _volume(ephemeral={"volumeClaimTemplate": {"metadata": {"annotations": {key: value}}, "spec": spec}})


def _apart(*terms: Json) -> Json:
    rule = "requiredDuringSchedulingIgnoredDuringExecution"
    return {"affinity": {"podAntiAffinity": {rule: [{"topologyKey": "kubernetes.io/hostname", **t} for t in terms]}}}


def _spread(**fields: Any) -> Json:
    return _pod(topologySpreadConstraints=[{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", **fields}])


def _label(key: str, value: str | None = "other") -> Json:
    return _role({"metadata": {"labels": {key: value}}})


def _annotation(key: str) -> Json:
    return _role({"metadata": {"annotations": {key: "x"}}})


_BY_JOB = {"matchLabels": {"rljob.dev/job": "other"}}
_WEB = {"matchLabels": {"app": "web"}}
_LOGS_IN = {"secretRef": {"name": "mesh-token"}}

OBJECTS: dict[str, Json] = {
    "the sidecar's Secret as a tracker's keys": _keys("mesh-token"),
    "a pull secret as a tracker's keys": _keys("site-pull"),
    "the template's pull secret as a tracker's keys": _keys("registry"),
    "a reserved Secret as a tracker's keys": _keys("site-tls"),
    "a reserved Secret as a tracker's keys by the end of its name": _keys("wandb-of-site"),
    "a pull secret by a variable": _worker(env=_variable("secretKeyRef", "site-pull")),
    "a pull secret by a variable of the tenant's sidecar": _mine(env=_variable("secretKeyRef", "site-pull")),
    "a pull secret by all variables of an init container": _mine(
        "initContainers", envFrom=_all_variables("secretRef", "site-pull")
    ),
    "a pull secret by a volume": _volume(secret={"secretName": "site-pull"}),
    "a reserved Secret by the second source of a projected volume": _volume(
        projected={"sources": [{"secret": {"name": "mine"}}, {"secret": {"name": "site-tls"}}]}
    ),
    "a reserved Secret in the place of a volume of the operator's": _pod(
        volumes=[{"name": "tmp", "secret": {"secretName": "site-tls"}}]
    ),
    "the sidecar's Secret as shared memory": _pod(volumes=[{"name": "shm", "secret": {"secretName": "mesh-token"}}]),
    "a reserved Secret as the run volume": _role(
        {"spec": {"volumes": [{"name": "run", "secret": {"secretName": "site-tls"}}]}}, "actor"
    ),
    "images by a reserved Secret": _pod(imagePullSecrets=[{"name": "site-tls"}]),
    "images by the sidecar's Secret": _pod(imagePullSecrets=[{"name": "mesh-token"}]),
    "a reserved Secret by the coordinator": _infrastructure(
        containers=[{"name": "coordinator", "env": _variable("secretKeyRef", "site-tls")}]
    ),
    "a reserved Secret by Redis": _infrastructure(
        containers=[{"name": "redis", "envFrom": _all_variables("secretRef", "site-tls")}]
    ),
    "a reserved Secret by a tracker's container": _infrastructure(
        containers=[{"name": "tracker", "envFrom": _all_variables("secretRef", "site-tls")}]
    ),
    "a reserved Secret by a volume of the infrastructure": _infrastructure(
        volumes=[{"name": "mine", "projected": {"sources": [{"secret": {"name": "site-tls"}}]}}]
    ),
    "the sidecar's Secret by a driver of volumes": _volume(
        csi={"driver": "mine.example.org", "nodePublishSecretRef": {"name": "mesh-token"}}
    ),
    "the sidecar's Secret by an Azure share": _volume(azureFile={"secretName": "mesh-token", "shareName": "s"}),
    "the sidecar's Secret by CephFS": _volume(cephfs={"monitors": ["m"], **_LOGS_IN}),
    "the sidecar's Secret by Cinder": _volume(cinder={"volumeID": "v", **_LOGS_IN}),
    "the sidecar's Secret by RBD": _volume(rbd={"monitors": ["m"], "image": "i", **_LOGS_IN}),
    "the sidecar's Secret by iSCSI": _volume(iscsi={"targetPortal": "t", "iqn": "i", "lun": 0, **_LOGS_IN}),
    "the sidecar's Secret by a flexible volume": _volume(flexVolume={"driver": "a/b", **_LOGS_IN}),
    "the sidecar's ConfigMap by a variable": _worker(env=_variable("configMapKeyRef", "mesh-config")),
    "the sidecar's ConfigMap by all variables": _worker(envFrom=_all_variables("configMapRef", "mesh-config")),
    "the sidecar's ConfigMap by a volume": _volume(configMap={"name": "mesh-config"}),
    "the sidecar's ConfigMap by a projected volume": _volume(
        projected={"sources": [{"configMap": {"name": "mesh-config"}}]}
    ),
    "a reserved ConfigMap by an init container": _mine(
        "initContainers", envFrom=_all_variables("configMapRef", "site-config")
    ),
    "a reserved claim by a volume": _volume(persistentVolumeClaim={"claimName": "site-data"}),
    "a reserved claim as the checkpoint volume": {"checkpoint": {"volume": {"claimName": "site-data"}}},
    "a reserved claim as the run volume": _role(
        {"spec": {"volumes": [{"name": "run", "persistentVolumeClaim": {"claimName": "site-data"}}]}}, "actor"
    ),
    "a copy of a reserved claim": _claim_of_pod(dataSource={"kind": "PersistentVolumeClaim", "name": "site-data"}),
    "a copy of a reserved claim by the newer field": _claim_of_pod(
        dataSourceRef={"kind": "PersistentVolumeClaim", "name": "site-data"}
    ),
    "a snapshot by a reserved claim's name": _claim_of_pod(
        dataSource={"kind": "VolumeSnapshot", "apiGroup": "snapshot.storage.k8s.io", "name": "site-data"}
    ),
    "a reserved device": _pod(resourceClaims=[{"name": "mine", "resourceClaimName": "site-card"}]),
    "the template's device by a template of claims": _pod(
        resourceClaims=[{"name": "mine", "resourceClaimTemplateName": "cards"}]
    ),
    "a reserved account": _pod(serviceAccountName="site-admin"),
    "a reserved account by its old name": _pod(serviceAccount="site-admin"),
}

REACHES: dict[str, Json] = {
    "no pod of any namespace beside mine": _pod(**_apart({"labelSelector": {}, "namespaceSelector": {}})),
    "no pod of a namespace beside mine": _pod(**_apart({"labelSelector": {}, "namespaces": ["team-b"]})),
    "no pod of my namespace beside mine": _pod(**_apart({"labelSelector": {}})),
    "no web server beside mine": _pod(**_apart({"labelSelector": _WEB})),
    "no web server in my zone": _pod(**_apart({"labelSelector": _WEB, "topologyKey": "topology.kubernetes.io/zone"})),
    "no pod of another job beside mine": _pod(**_apart({"labelSelector": _BY_JOB})),
    "no pod of any job beside mine": _pod(
        **_apart({"labelSelector": {"matchExpressions": [{"key": "rljob.dev/job", "operator": "Exists"}]}})
    ),
    "no pod of a job of my labels beside mine": _pod(
        **_apart({"labelSelector": {}, "matchLabelKeys": ["rljob.dev/component"]})
    ),
    "no other job's pod beside mine": _pod(**_apart({"labelSelector": {}, "mismatchLabelKeys": ["rljob.dev/job"]})),
    "a term of others behind a harmless one": _pod(
        **_apart({"labelSelector": _WEB, "namespaces": []}, {"labelSelector": {}, "namespaceSelector": {}})
    ),
    "no pod beside my coordinator": _infrastructure(**_apart({"labelSelector": {}, "namespaceSelector": {}})),
    "spread over pods of others": _spread(whenUnsatisfiable="DoNotSchedule", labelSelector=_WEB),
    "spread over all pods": _spread(whenUnsatisfiable="DoNotSchedule", labelSelector={}),
    "spread over another job, by default": _spread(labelSelector=_BY_JOB),
    "a grace period of 68 years": _pod(terminationGracePeriodSeconds=_CENTURY),
    "a second more than the longest grace period": _pod(terminationGracePeriodSeconds=3601),
    "a grace period beyond whole numbers": _pod(terminationGracePeriodSeconds=1e12),
    "a grace period of 68 years of the infrastructure": _infrastructure(terminationGracePeriodSeconds=_CENTURY),
    "a grace period of a probe": _worker(livenessProbe={"terminationGracePeriodSeconds": _CENTURY}),
    "a grace period of an init container's probe": _mine(
        "initContainers",
        restartPolicy="Always",
        startupProbe={"tcpSocket": {"port": 1}, "terminationGracePeriodSeconds": _CENTURY},
    ),
    "a sleep before the end": _mine(lifecycle={"preStop": {"sleep": {"seconds": _CENTURY}}}),
    "a sleep before the end of the worker, with the time for it": _pod(
        terminationGracePeriodSeconds=_CENTURY,
        containers=[{"name": "worker", "lifecycle": {"preStop": {"exec": {"command": ["sleep", "infinity"]}}}}],
    ),
    "another job's group": _label("scheduling.x-k8s.io/pod-group"),
    "another job's group by the older label": _label("pod-group.scheduling.sigs.k8s.io"),
    "another job's group of Volcano": _annotation("scheduling.k8s.io/group-name"),
    "another queue of Volcano": _annotation("scheduling.volcano.sh/queue-name"),
    "another group of Koordinator": _annotation("gang.scheduling.koordinator.sh/name"),
    "another group of YuniKorn": _annotation("yunikorn.apache.org/task-group-name"),
    "another group of Kueue": _label("kueue.x-k8s.io/pod-group-name"),
    "a priority of Kueue": _label("kueue.x-k8s.io/priority-class"),
    "another group by a field of the pod": _pod(workloadRef={"name": "other", "podGroup": "workers"}),
    "another group by a newer field of the pod": _pod(schedulingGroup={"podGroupName": "other"}),
    "an end point of another's Service": _label("app.kubernetes.io/name"),
    "an end point of another instance": _label("app.kubernetes.io/instance"),
    "an end point of another component": _label("app.kubernetes.io/component"),
    "a label of the operator's taken away": _label("app.kubernetes.io/name", None),
    "an end point of a pod of another StatefulSet": _label("statefulset.kubernetes.io/pod-name", "postgres-0"),
    "an end point of a pod of another set by its number": _label("apps.kubernetes.io/pod-index", "0"),
    "a pod of another JobSet": _label("jobset.sigs.k8s.io/jobset-name"),
    "a pod of another ReplicaSet": _label("pod-template-hash"),
    "a pod of another job": _label("rljob.dev/job"),
    "a coordinator of its own making": _label("rljob.dev/component", "coordinator"),
    "a pod of the run volume": _label("rljob.dev/run-volume"),
    "a digest of its own making": _annotation("rljob.dev/template"),
    "no pod template's spec": _role({"spec": None}),
    "no containers": _pod(containers=None),
    "no volumes": _pod(volumes=None),
    "no mounts": _worker(volumeMounts=None),
    "no variables": _worker(env=None),
    "no labels": _role({"metadata": {"labels": None}}),
    "nothing in the list of volumes": _pod(volumes=[None]),
}

BY_POLICY: dict[str, Json] = {
    "an account of Windows": _mine(
        securityContext={**_DROPPED, "windowsOptions": {"gmsaCredentialSpecName": "theirs"}}
    ),
    "a volume of others by its name": _claim_of_pod(volumeName="pv-of-others"),
    "a volume of others by its labels": _claim_of_pod(selector={"matchLabels": {"team": "b"}}),
    "a copy of a claim of another namespace by an annotation": _annotated_claim("k8s.io/CloneRequest", "team-b/data"),
    "a folder of a share by an annotation": _annotated_claim("nfs.io/storage-path", "../team-b"),
    "another sidecar of Kuma": _annotation("kuma.io/sidecar-injection"),
    "another sidecar of Kuma by a label": _label("kuma.io/sidecar-injection"),
    "a sidecar of Datadog": _annotation("admission.datadoghq.com/java-lib.version"),
    "checks of Datadog's agent": _annotation("ad.datadoghq.com/worker.checks"),
    "a collector of OpenTelemetry": _annotation("sidecar.opentelemetry.io/inject"),
    "code of OpenTelemetry in each process": _annotation("instrumentation.opentelemetry.io/inject-python"),
    "an address of another pod by Kube-OVN": _annotation("ovn.kubernetes.io/ip_address"),
    "a network of others by Kube-OVN": _annotation("net1.team-b.ovn.kubernetes.io/logical_switch"),
    "networks by OVN-Kubernetes": _annotation("k8s.ovn.org/pod-networks"),
    "a bucket of GKE": _annotation("gke-gcsfuse/volumes"),
    "an interface of GKE": _annotation("networking.gke.io/interfaces"),
    "an identity of AWS": _annotation("eks.amazonaws.com/role-arn"),
    "an address of AWS": _annotation("vpc.amazonaws.com/pod-ips"),
    "a machine of Alibaba's": _annotation("k8s.aliyun.com/eci-ram-role-name"),
    "a name in DNS": _annotation("external-dns.alpha.kubernetes.io/hostname"),
    "a proxy by Cilium": _annotation("policy.cilium.io/proxy-visibility"),
    "an address pool of Spiderpool": _annotation("ipam.spidernet.io/ippool"),
    "an agent of Dynatrace": _annotation("oneagent.dynatrace.com/inject"),
    "secrets of 1Password": _annotation("operator.1password.com/inject"),
    "a network by Multus": _annotation("k8s.v1.cni.cncf.io/networks"),
}

REACHING: list[Attack] = [
    *(Attack(name, spec, by_build=True) for name, spec in {**OBJECTS, **REACHES}.items()),
    *(Attack(name, spec, by_build=False) for name, spec in BY_POLICY.items()),
]
"""Each is refused by the admission policy, too."""
