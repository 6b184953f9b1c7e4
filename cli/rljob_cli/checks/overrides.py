"""The option `--set FIELD=VALUE` of commands that read a manifest: its text for help, its values, completion of fields.

@set_option
def run(*, overrides: tuple[str, ...], ...): ... parsed_or_exit(overrides)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rljob_api.manifest import ManifestError
from rljob_api.overrides import Override, known_paths
from rljob_cli.checks.manifests import refuse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from click.shell_completion import CompletionItem

SET_HELP = """\b
--set FIELD=VALUE, as often as you like; of the same field the last one holds:
  FIELD   as in the manifest, without spec.: training.optimizer.learningRate, or metadata.name
          an item of a list by its index: rollout.reward.sum[0].weight; the index after the last adds one
          a name with dots in quotes: 'metadata.labels["example.com/team"]=rl'
  VALUE   read as the field's type wants it. A text is taken as it is (model.path=1e-6 is a folder); numbers, true,
          [lists] and {objects} as YAML has them: 'rollout.sampling.stopTokenIds=[1, 2]'
          null takes the field out, so that its default holds; '"null"' is that text (double quotes, JSON's rules)
"""


def _completed(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001 - click's
    from click.shell_completion import CompletionItem

    return [CompletionItem(f"{path}=") for path in known_paths() if path.startswith(incomplete)]


set_option = click.option(
    "--set",
    "overrides",
    metavar="FIELD=VALUE",
    multiple=True,
    shell_complete=_completed,
    help="Set a field of the manifest, as training.optimizer.learningRate=1e-6. May be repeated; see below.",
)


def parsed_or_exit(given: Sequence[str]) -> list[Override]:
    """Overrides of `--set`; texts of another form end the process with a sentence for each and exit code 64."""
    parsed: list[Override] = []
    problems: list[str] = []
    for text in given:
        try:
            parsed.append(Override.parse(text))
        except ManifestError as error:
            problems += error.problems
    if problems:
        refuse(problems)
    return parsed
