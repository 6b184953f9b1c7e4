"""How commands get their job: a manifest that was read, checked and resolved, or sentences on stderr and exit code 64.

examined = examine(path)                       all findings about the file, in one pass
job, lines = checked_job_or_exit(path)         warnings and problems go to stderr

`preflight` checks what the manifest names. Defaults of a run that is resumed stay as its job.json has them.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
import orjson
from pydantic import ValidationError

from rljob_api.cluster_rules import cluster_problems
from rljob_api.manifest import (
    ManifestError,
    absent_hub_names,
    document_of,
    job_of,
    other_problems,
    read_manifest,
    resolve_paths,
    salvaged,
)
from rljob_api.names import EXIT_BAD_MANIFEST
from rljob_api.open_defaults import (
    JobPlace,
    Resolution,
    ResolvedDefault,
    RetainedDefaults,
    resolve,
    retained_against_new,
)
from rljob_api.overrides import Override, overridden
from rljob_api.problems import sentences
from rljob_api.spec import RLJob, RLJobSpec
from rljob_api.spec.data import ReasoningGymSpec
from rljob_cli.checks.ends import end_findings
from rljob_cli.checks.engine_flags import engine_flag_findings
from rljob_cli.checks.evaluation_sets import evaluation_findings
from rljob_cli.checks.findings import ANY, Finding, Findings, Level, Lines, independent, problem, unchecked, warning
from rljob_cli.checks.machine import machine_findings
from rljob_cli.checks.models import model_findings
from rljob_cli.checks.named_folders import refused_model_findings
from rljob_cli.checks.paths import path_findings, with_nothing_at
from rljob_cli.checks.prompts import prompt_findings
from rljob_cli.checks.reward_models import reward_model_findings
from rljob_cli.checks.rewards import package_findings
from rljob_cli.checks.teachers import teacher_findings
from rljob_cli.checks.user_functions import function_problem, functions_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_MANIFEST = "job.json"


def run_folder(out: Path | None, name: str) -> Path:
    """Where a job of this name runs."""
    return out or Path("rljob-out") / name


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """An earlier run in the folder of this one, which may be none."""

    out: Path | None
    """As given by `--out`; None: the folder of the job's name."""

    def retained(self, name: str) -> RetainedDefaults | None:
        """Defaults that it began with. None, too, if its manifest cannot be read: the start refuses such a folder."""
        try:
            stored = orjson.loads((run_folder(self.out, name) / _MANIFEST).read_bytes())
            return RetainedDefaults.of(RLJobSpec.model_validate(stored["spec"]))
        except (OSError, ValueError, TypeError, KeyError, ValidationError):
            return None


def preflight(job: RLJob, place: JobPlace = JobPlace.MACHINE, refused: Collection[str] = ()) -> Findings:
    """Finds what is missing, unreadable, or not what was meant. For a cluster what is not here is not looked at.

    `refused`: paths of fields that the job was salvaged from.
    """
    spec, is_elsewhere = job.spec, place is JobPlace.CLUSTER
    findings = Findings()
    findings.add((unchecked if is_elsewhere else problem)(f"spec.{text}") for text in absent_hub_names(job))
    findings.add(model_findings(spec, is_elsewhere=is_elsewhere))
    findings.add(end_findings(spec))
    findings.add(engine_flag_findings(spec))
    findings.add(reward_model_findings(spec, is_elsewhere=is_elsewhere))
    findings.add(teacher_findings(spec, is_elsewhere=is_elsewhere))
    findings.add(package_findings(spec, is_elsewhere=is_elsewhere))
    for function in functions_of(spec):
        wrong = function_problem(function)
        if wrong is not None:
            findings.add([(unchecked if is_elsewhere else problem)(wrong, function.field)])
    if spec.data.reasoning_gym is not None:
        findings.add(_reasoning_gym_problems(spec.data.reasoning_gym))
    else:
        findings.add(prompt_findings(spec, is_elsewhere=is_elsewhere, refused=refused))
    findings.add(evaluation_findings(spec, is_elsewhere=is_elsewhere, refused=refused))
    return findings


def _reasoning_gym_problems(gym: ReasoningGymSpec) -> Iterator[Finding]:
    field = "spec.data.reasoningGym"
    try:
        import reasoning_gym  # here, since it takes a second to import and only such jobs need it
    except ImportError:
        yield unchecked(f"{field}.dataset: reasoning_gym is not installed here, so that its name was not looked up.")
        return
    try:
        reasoning_gym.create_dataset(gym.dataset, size=gym.size, seed=gym.seed, **gym.parameters)
    except (ValueError, TypeError, AssertionError) as error:
        if gym.dataset not in reasoning_gym.factory.DATASETS:
            near = difflib.get_close_matches(gym.dataset, reasoning_gym.factory.DATASETS, n=1)
            cure = f"Did you mean {near[0]}?" if near else "Give the name of one of its datasets."
            yield problem(f"{field}.dataset: {gym.dataset} is no dataset of reasoning_gym. {cure}")
            return
        shown = json.dumps(gym.parameters, default=str)
        text = f"{field}.parameters: {shown} do not fit the dataset {gym.dataset}: {error}. Correct them."
        yield problem(text, field)


_DEVICES = tuple(f"spec.roles.{ANY}.{name}" for name in ("gpus", "shareDevicesWith", "replicas", "ranksPerPod"))
"""Fields by which devices are dealt to roles that name none."""


@dataclass(frozen=True, slots=True)
class Examined:
    """A manifest, and what was found in it."""

    job: RLJob | None
    """With absolute paths and its defaults resolved, and without what was refused; None where too little is left."""
    findings: Findings
    lines: Lines
    refused: frozenset[str]
    """Paths of fields that were refused: there is a problem for each."""
    choices: tuple[ResolvedDefault, ...] = field(default=())
    """Defaults that depended on the rest of the job."""

    def sentences(self, level: Level) -> list[str]:
        """The sentences of one level, each with the line of its field."""
        return [self.lines.located(text) for text in self.findings.of(level)]


def examine(
    path: Path,
    place: JobPlace = JobPlace.MACHINE,
    earlier: EarlierRun | None = None,
    overrides: Sequence[Override] = (),
) -> Examined:
    """All problems at once. ManifestError where there is no YAML to check, or an override names no field.

    So too where a file is gone or refused between two looks at it. `earlier`: the run that may be gone on with, whose
    defaults stay.
    """
    try:
        return _examined(path, place, earlier, overrides)
    except OSError as error:
        at, reason = error.filename or path, error.strerror or type(error).__name__
        raise ManifestError(
            [f"{path}: {at} cannot be read any more ({reason}). Put it back, and try again."]
        ) from error


def _examined(path: Path, place: JobPlace, earlier: EarlierRun | None, overrides: Sequence[Override]) -> Examined:
    text = read_manifest(path)
    document, findings = overridden(document_of(text, str(path)), overrides), Findings()
    lines = Lines(str(path), text, [override.path for override in overrides])
    job: RLJob | None
    refused: frozenset[str] = frozenset()
    try:
        job = job_of(document)
    except ValidationError as error:
        findings.add(map(problem, sentences(error)))
        is_elsewhere = place is JobPlace.CLUSTER
        findings.add(refused_model_findings(document, path.resolve().parent, is_elsewhere=is_elsewhere))
        job, refused = salvaged(document, error)
        if job is None:
            return Examined(None, findings, lines, refused)
        findings.add(map(problem, other_problems(job, refused)))
    wrong = path_findings(job, path.resolve().parent, is_elsewhere=place is JobPlace.CLUSTER)
    if wrong:
        findings.add(wrong.values())
        job = with_nothing_at(job, wrong)
        refused |= {".".join(map(str, place)) for place in wrong}
    retained = earlier.retained(job.metadata.name) if earlier is not None else None
    resolution = resolve(job.spec, place, retained)
    if retained is not None:
        stays = retained_against_new(resolution, resolve(job.spec, place))
        findings.add(independent((warning(text, *_DEVICES) for text in stays), refused))
    job = resolve_paths(job.model_copy(update={"spec": resolution.spec}), path.resolve().parent)
    findings.add(independent(_found(job, resolution, place, refused), refused))
    return Examined(job, findings, lines, refused, resolution.choices)


def _found(job: RLJob, resolution: Resolution, place: JobPlace, refused: frozenset[str]) -> Iterator[Finding]:
    """Findings about a job whose defaults are resolved. `refused`: fields that it was salvaged from."""
    yield from (problem(text, *_DEVICES) for text in resolution.problems)
    if not refused:
        yield from map(problem, _broken_rules(job.spec))
    if place is JobPlace.CLUSTER:
        yield from map(problem, cluster_problems(job.spec, has_begun=False, refused=refused))
    else:
        yield from machine_findings(job.spec)
    yield from preflight(job, place, refused).found


def _broken_rules(spec: RLJobSpec) -> list[str]:
    """Rules that a spec with retained defaults may break, though every given value is right by itself."""
    try:
        type(spec).model_validate(spec.model_dump(mode="json"))
    except ValidationError as error:
        return [f"spec.{text}" for text in sentences(error)]
    return []


def checked_job(
    path: Path, earlier: EarlierRun | None = None, overrides: Sequence[Override] = ()
) -> tuple[RLJob, Examined]:
    """The job in `path` and what else was found; ManifestError, with a line for each problem, where there is any."""
    examined = examine(path, earlier=earlier, overrides=overrides)
    problems = examined.sentences(Level.PROBLEM)
    if problems or examined.job is None:
        raise ManifestError(problems)
    return examined.job, examined


def checked_job_or_exit(
    path: Path, earlier: EarlierRun | None = None, overrides: Sequence[Override] = ()
) -> tuple[RLJob, Lines]:
    """As `checked_job`; a bad manifest ends the process with its sentences and exit code 64, warnings go to stderr."""
    try:
        job, examined = checked_job(path, earlier, overrides)
    except ManifestError as error:
        refuse(error.problems)
    for text in examined.sentences(Level.WARNING):
        click.echo(f"warning: {text}", err=True)
    return job, examined.lines


def refuse(problems: Iterable[str]) -> NoReturn:
    """Prints the problems of a manifest and ends the process."""
    for text in problems:
        click.echo(text, err=True)
    raise click.exceptions.Exit(EXIT_BAD_MANIFEST)
