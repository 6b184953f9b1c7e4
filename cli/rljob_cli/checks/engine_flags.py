"""Flags of an engine that a job may have and that change how tokens are drawn.

For the checks of a manifest. They are warned of and not refused, since jobs that run may have them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rljob_cli.checks.findings import Finding, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rljob_api.spec import RLJobSpec


def engine_flag_findings(spec: RLJobSpec) -> Iterator[Finding]:
    """The server puts what the flag says into each request that does not say it itself, penalties above all."""
    engine = spec.roles.rollout.engine
    flag = engine.traits.sampling_flag
    if flag and any(arg.partition("=")[0] == flag for arg in engine.args):
        yield warning(
            f"spec.roles.rollout.engine.args: {flag} adds to each request what rollout.sampling does not"
            " say, such as a penalty: tokens are then drawn from another distribution than the trainer's. Remove it,"
            " and say in rollout.sampling how tokens are drawn.",
            "spec.roles.rollout.engine.kind",
        )
