"""All objects of a job, in the order in which they are applied: what others refer to comes first."""

from collections.abc import Callable
from functools import partial

from rljob_api.cluster_rules import cluster_problems
from rljob_api.spec import RLJob
from rljob_api.status import RLJobStatus
from rljob_operator.build.checkpoint_claim import Found, claim
from rljob_operator.build.config import config
from rljob_operator.build.coordinator import coordinator
from rljob_operator.build.disruption import disruption_budget
from rljob_operator.build.monitor import pod_monitor
from rljob_operator.build.network import network_policies
from rljob_operator.build.parts import Manifest, Owner, Platform, Site
from rljob_operator.build.placement import makes_claim
from rljob_operator.build.pod_group import MISSING_API, pod_group
from rljob_operator.build.redis import control, storage
from rljob_operator.build.roles import role_deployment
from rljob_operator.build.services import services
from rljob_operator.build.template_rules import template_problems
from rljob_operator.build.trespasses import Trespass
from rljob_operator.options import OperatorOptions


class MissingApi(ValueError):
    """The job is right, and the cluster lacks what it needs."""


def manifests(
    job: RLJob,
    owner: Owner,
    status: RLJobStatus,
    options: OperatorOptions,
    platform: Platform,
    found: Found = Found.NOTHING,
) -> list[Manifest]:
    """Every object but the Secret, which is made once.

    `found` is what there is of the checkpoint claim. ValueError with sentences for what a cluster cannot do, MissingApi
    for what this one cannot.
    """
    broken = cluster_problems(job.spec, has_begun=status.restart.epoch > 0)
    if problems := [*template_problems(job), *broken]:
        raise ValueError("\n".join(problems))
    if job.spec.scheduling.gang is not None and not platform.pod_groups:
        raise MissingApi(MISSING_API)
    site = Site.of(job, owner, options)
    with_pods = _with_pods(site, status)
    return [
        config(site),
        *([claim(site, found)] if makes_claim(site) else []),
        *network_policies(site),
        *services(site),
        disruption_budget(site),
        *pod_group(site, status, with_pods),
        *with_pods,
        *([pod_monitor(site)] if platform.pod_monitors else []),
    ]


def _with_pods(site: Site, status: RLJobStatus) -> list[Manifest]:
    """ValueError with all sentences of all parts, not of the first alone."""
    roles = site.job.spec.roles.present().items()
    makers: list[Callable[[], Manifest]] = [partial(make, site, status) for make in (control, storage, coordinator)]
    makers += [partial(role_deployment, site, status, role, spec) for role, spec in roles]
    made, problems = [], dict[str, None]()
    for make in makers:
        try:
            made.append(make())
        except Trespass as refused:
            problems |= dict.fromkeys(refused.sentences)
    if problems:
        raise ValueError("\n".join(problems))
    return made
