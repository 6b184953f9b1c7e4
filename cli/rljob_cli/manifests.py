"""How commands get their job: a manifest that was read and checked, or sentences on stderr and exit code 64."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from rljob_api.manifest import ManifestError, load_manifest, resolve_paths
from rljob_api.names import EXIT_BAD_MANIFEST
from rljob_cli.preflight import preflight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rljob_api.spec import RLJob


def checked_job(path: Path) -> RLJob:
    """The job in `path` with absolute paths, whose data, model and reward are there; ManifestError otherwise."""
    job = resolve_paths(load_manifest(path), path.resolve().parent)
    problems = preflight(job)
    if problems:
        raise ManifestError(problems)
    return job


def checked_job_or_exit(path: Path) -> RLJob:
    """As `checked_job`; a bad manifest ends the process with its sentences and exit code 64."""
    try:
        return checked_job(path)
    except ManifestError as error:
        refuse(error.problems)


def refuse(problems: Sequence[str]) -> NoReturn:
    """Prints the problems of a manifest and ends the process."""
    for problem in problems:
        click.echo(problem, err=True)
    raise click.exceptions.Exit(EXIT_BAD_MANIFEST)
