"""How commands get their job: a manifest that was read, checked and resolved, or sentences on stderr and exit code 64.

examined = examine(path)                       everything that can be said of the file, in one pass
job = checked_job_or_exit(path)                the job alone; warnings and problems go to stderr
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

import click
from pydantic import ValidationError

from rljob_api.cluster_rules import cluster_problems
from rljob_api.manifest import ManifestError, document_of, job_of, read_manifest, resolve_paths
from rljob_api.names import EXIT_BAD_MANIFEST
from rljob_api.open_defaults import Choice, Place, resolve
from rljob_api.problems import sentences
from rljob_api.salvage import other_problems, salvaged
from rljob_cli.findings import Findings, Level, Lines, problem
from rljob_cli.kept_defaults import EarlierRun
from rljob_cli.machine_checks import machine_findings
from rljob_cli.preflight import preflight

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rljob_api.spec import RLJob, RLJobSpec


@dataclass(frozen=True, slots=True)
class Examined:
    """What there is to say of a manifest."""

    job: RLJob | None
    """With absolute paths and its defaults resolved; None where fields of it were refused."""
    findings: Findings
    lines: Lines
    choices: tuple[Choice, ...] = field(default=())
    """Defaults that depended on the rest of the job."""

    def told(self, level: Level) -> list[str]:
        """The sentences of one level, each with the line of its field."""
        return [self.lines.located(text) for text in self.findings.of(level)]


def examine(path: Path, place: Place = Place.MACHINE, earlier: EarlierRun | None = None) -> Examined:
    """All problems at once. ManifestError where there is no YAML to look at.

    `earlier`: the run that may be gone on with, whose defaults stay.
    """
    text = read_manifest(path)
    document, findings, lines = document_of(text, str(path)), Findings(), Lines(str(path), text)
    try:
        job = job_of(document)
    except ValidationError as error:
        findings.add(map(problem, sentences(error)))
        left, bad = salvaged(document, error)
        if left is not None:
            findings.add(map(problem, other_problems(left, bad)))
            _check_the_rest(resolve_paths(left, path.resolve().parent), place, bad, findings)
        return Examined(None, findings, lines)
    kept = earlier.kept(job.metadata.name) if earlier is not None else None
    resolution = resolve(job.spec, place, kept)
    job = resolve_paths(job.model_copy(update={"spec": resolution.spec}), path.resolve().parent)
    findings.add(map(problem, resolution.problems))
    findings.add(map(problem, _broken_rules(job.spec)))
    if place is Place.CLUSTER:
        findings.add(map(problem, cluster_problems(job.spec, has_begun=False)))
    else:
        findings.add(machine_findings(job.spec))
    findings.add(preflight(job, place).found)
    return Examined(job, findings, lines, resolution.choices)


def _broken_rules(spec: RLJobSpec) -> list[str]:
    """Rules that a spec of kept defaults may break, though it said nothing wrong by itself."""
    try:
        type(spec).model_validate(spec.model_dump(mode="json"))
    except ValidationError as error:
        return [f"spec.{text}" for text in sentences(error)]
    return []


def _check_the_rest(job: RLJob, place: Place, bad: frozenset[str], findings: Findings) -> None:
    """Files that sections without a problem name; what is read of the model's is asked of data and roles, too."""
    sections = {".".join(path.split(".")[:2]) for path in bad}
    if "spec.roles" in sections:
        sections |= {"spec.model"}
    if "spec.model" in sections:
        sections |= {"spec.data"}
    job = job.model_copy(update={"spec": resolve(job.spec, place).spec})
    rest = preflight(job, place).found
    findings.add(one for one in rest if ".".join(one.text.split(":")[0].split(".")[:2]) not in sections)


def checked_job(path: Path, earlier: EarlierRun | None = None) -> tuple[RLJob, Examined]:
    """The job in `path` and what else was found; ManifestError, with a line for each problem, where there is any."""
    examined = examine(path, earlier=earlier)
    problems = examined.told(Level.PROBLEM)
    if problems or examined.job is None:
        raise ManifestError(problems)
    return examined.job, examined


def checked_job_or_exit(path: Path, earlier: EarlierRun | None = None) -> RLJob:
    """As `checked_job`; a bad manifest ends the process with its sentences and exit code 64, warnings go to stderr."""
    try:
        job, examined = checked_job(path, earlier)
    except ManifestError as error:
        refuse(error.problems)
    for text in examined.told(Level.WARNING):
        click.echo(f"warning: {text}", err=True)
    return job


def refuse(problems: Sequence[str]) -> NoReturn:
    """Prints the problems of a manifest and ends the process."""
    for text in problems:
        click.echo(text, err=True)
    raise click.exceptions.Exit(EXIT_BAD_MANIFEST)
