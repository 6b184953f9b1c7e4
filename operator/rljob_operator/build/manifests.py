"""All objects of a job, in the order in which they are applied: what others refer to comes first."""

from rljob_api.cluster_rules import cluster_problems
from rljob_api.spec import RLJob
from rljob_api.status import RLJobStatus
from rljob_operator.build.config import config
from rljob_operator.build.coordinator import coordinator
from rljob_operator.build.disruption import disruption_budget
from rljob_operator.build.monitor import pod_monitor
from rljob_operator.build.network import network_policies
from rljob_operator.build.parts import Manifest, Owner, Platform, Site
from rljob_operator.build.placement import makes_claim
from rljob_operator.build.redis import control, storage
from rljob_operator.build.roles import role_deployment
from rljob_operator.build.services import services
from rljob_operator.build.template_rules import options_problems, template_problems
from rljob_operator.build.volumes import claim
from rljob_operator.options import OperatorOptions


def manifests(
    job: RLJob, owner: Owner, status: RLJobStatus, options: OperatorOptions, platform: Platform
) -> list[Manifest]:
    """Every object but the Secret, which is made once. ValueError with sentences for what a cluster cannot do."""
    broken = cluster_problems(job.spec, has_begun=status.restart.epoch > 0)
    if problems := [*options_problems(options.workloads), *template_problems(job), *broken]:
        raise ValueError("\n".join(problems))
    site = Site.of(job, owner, options)
    return [
        config(site),
        *([claim(site)] if makes_claim(site) else []),
        *network_policies(site),
        *services(site),
        disruption_budget(site),
        control(site, status),
        storage(site, status),
        coordinator(site, status),
        *(role_deployment(site, status, role, spec) for role, spec in job.spec.roles.present().items()),
        *([pod_monitor(site)] if platform.pod_monitors else []),
    ]
