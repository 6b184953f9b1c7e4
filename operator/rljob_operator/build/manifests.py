"""All objects of a job, in the order in which they are applied: objects that others refer to come first. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from rljob_api import cluster
from rljob_api.cluster_rules import cluster_problems
from rljob_api.spec import RLJob
from rljob_api.status import RLJobStatus
from rljob_operator.build.containers import METRICS_PORT_NAME
from rljob_operator.build.deployments import coordinator, role_deployment
from rljob_operator.build.device_claims import claim_templates, without_api
from rljob_operator.build.foreign_objects import foreign_objects
from rljob_operator.build.mounted_objects import Found, claim, config
from rljob_operator.build.network import network_policies, services
from rljob_operator.build.parts import Manifest, Owner, Platform, Site, manifest, tracker_part, trackers
from rljob_operator.build.reach import reach_problems
from rljob_operator.build.redis import ClaimedBy, control, control_claims, storage
from rljob_operator.build.scheduling import MISSING_API, makes_claim, pod_group, shares_node
from rljob_operator.build.sizes import size_problems
from rljob_operator.build.template_protection import ProtectedFieldChanged
from rljob_operator.build.template_rules import template_problems
from rljob_operator.build.trackers import tracker_deployment
from rljob_operator.options import OperatorOptions


def disruption_budgets(site: Site) -> list[Manifest]:
    """The job's, named as it is. A tracker that does not run keeps no pod of the job on a node.

    Where the volume binds actor and coordinator to one node, a drain may not take the coordinator: without it the actor
    could not save when it goes. The operator deletes it once the actor has left (`cluster.actions`).
    """
    stays_last = shares_node(site.job)
    not_theirs = [tracker_part(tracker).component for tracker in trackers(site.job)]
    not_theirs += [cluster.COMPONENT_COORDINATOR] if stays_last else []
    selector: dict[str, Any] = {"matchLabels": {cluster.LABEL_JOB: site.name}}
    if not_theirs:
        selector["matchExpressions"] = [
            {"key": cluster.LABEL_COMPONENT, "operator": "NotIn", "values": not_theirs},
        ]
    budgets = [_budget(site, site.name, 1, selector)]
    if stays_last:
        of_coordinator = {cluster.LABEL_JOB: site.name, cluster.LABEL_COMPONENT: cluster.COMPONENT_COORDINATOR}
        name = cluster.coordinator_budget_name(site.name)
        budgets.append(_budget(site, name, 0, {"matchLabels": of_coordinator}))
    return budgets


def _budget(site: Site, name: str, most_away: int, selector: dict[str, Any]) -> Manifest:
    spec = {"maxUnavailable": most_away, "unhealthyPodEvictionPolicy": "AlwaysAllow", "selector": selector}
    return manifest(site, ("policy/v1", "PodDisruptionBudget"), name, {"spec": spec})


_EARLIER_PORT_NAME = "http"
"""Name of the metrics port in worker pods of releases before 0.3.0. A pod stays as it is when the operator is
upgraded, and in a coordinator's pod another port has this name."""
_LABELS = [cluster.LABEL_JOB, cluster.LABEL_COMPONENT, cluster.LABEL_ROLE]


def pod_monitor(site: Site) -> Manifest:
    """Named as the job is. Redis pods have no port of this name, and so no target."""
    # Else the label `job`, by which each series names its job, would be the scraper's own name of this monitor.
    endpoint = {"path": "/metrics", "honorLabels": True}
    is_metrics = {
        "sourceLabels": ["__meta_kubernetes_pod_container_port_number"],
        "regex": str(cluster.METRICS_PORT),
        "action": "keep",
    }
    spec = {
        "selector": {"matchLabels": {cluster.LABEL_JOB: site.name}},
        "podTargetLabels": _LABELS,
        "podMetricsEndpoints": [
            {"port": METRICS_PORT_NAME, **endpoint},
            {"port": _EARLIER_PORT_NAME, **endpoint, "relabelings": [is_metrics]},
        ],
    }
    kind = ("monitoring.coreos.com/v1", "PodMonitor")
    return manifest(site, kind, site.name, {"spec": spec}, labels=site.workloads.monitor_labels)


class MissingApi(ValueError):
    """The job is right, and the cluster lacks what it needs."""


@dataclass(frozen=True, slots=True)
class FoundClaims:
    """Claims that a job has before they are built."""

    checkpoints: Found = Found.NOTHING
    control: ClaimedBy = ClaimedBy.JOB


def manifests(
    job: RLJob,
    owner: Owner,
    status: RLJobStatus,
    options: OperatorOptions,
    platform: Platform,
    found: FoundClaims = FoundClaims(),
    *,
    was_accepted: bool = False,
) -> list[Manifest]:
    """Every object but the Secret, which is made once.

    A job that has begun by a spec that `was_accepted` goes on by it, whatever the options, or rules of a newer release,
    refuse of it: no operator would care for its pods otherwise. What the administrator's template sets is protected all
    the same. ValueError with sentences for what a cluster cannot do, MissingApi for what this one cannot.
    """
    has_begun = status.restart.epoch > 0
    goes_on = was_accepted and has_begun
    if not goes_on and (problems := _problems(job, options, has_begun=has_begun)):
        raise ValueError("\n".join(problems))
    if job.spec.scheduling.gang is not None and not platform.pod_groups:
        raise MissingApi(MISSING_API)
    site = Site.of(job, owner, options, status.queue)
    if not platform.device_claims and (sentence := without_api(site)) is not None:
        raise MissingApi(sentence)
    with_pods = _with_pods(site, status, found.control)
    made = [
        config(site),
        *([claim(site, found.checkpoints)] if makes_claim(job) else []),
        *control_claims(site, found.control),
        *network_policies(site),
        *services(site),
        *disruption_budgets(site),
        *pod_group(site, status, with_pods),
        *claim_templates(site),
        *with_pods,
        *([pod_monitor(site)] if platform.pod_monitors else []),
    ]
    if not goes_on and (problems := size_problems(job, made)):
        raise ValueError("\n".join(problems))
    return made


def _problems(job: RLJob, options: OperatorOptions, *, has_begun: bool) -> list[str]:
    """Sentences for what is known before anything is built; of foreign objects only where templates can be read."""
    of_templates = template_problems(job) or [
        *foreign_objects(job, options.workloads),
        *reach_problems(job, options.workloads.reach),
    ]
    return [*of_templates, *cluster_problems(job.spec, has_begun=has_begun)]


def _with_pods(site: Site, status: RLJobStatus, control_claimed_by: ClaimedBy) -> list[Manifest]:
    """ValueError with all sentences of all parts, not of the first alone."""
    roles = site.job.spec.roles.present().items()
    makers: list[Callable[[], Manifest]] = [partial(control, site, status, control_claimed_by)]
    makers += [partial(make, site, status) for make in (storage, coordinator)]
    makers += [partial(role_deployment, site, status, role, spec) for role, spec in roles]
    makers += [partial(tracker_deployment, site, status, tracker) for tracker in trackers(site.job)]
    made, problems = [], dict[str, None]()
    for make in makers:
        try:
            made.append(make())
        except ProtectedFieldChanged as refused:
            problems |= dict.fromkeys(refused.sentences)
    if problems:
        raise ValueError("\n".join(problems))
    return made
