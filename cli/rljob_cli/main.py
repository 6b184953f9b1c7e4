"""The `rljob` command: the list of its subcommands and what becomes of their errors.

Subcommands are imported when they are called, so that `--help` is instant and no command loads what it does not use.
"""

import importlib
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import click

_INTERRUPTED = 130
"""As `rljob_api.names.EXIT_INTERRUPTED`, which is not imported: it would cost `--help` its instant."""

_EPILOG = """\b
Try it:
  rljob init quickstart                       a first job: its manifest and its data
  rljob validate examples/quickstart.yaml     is the manifest right?
  rljob render examples/quickstart.yaml       what do I get where I wrote nothing?
  rljob reward examples/quickstart.yaml       what are answers worth to it?
  rljob run examples/quickstart.yaml          train it on this machine
  rljob run job.yaml --audit                  log every trained sample ...
  rljob audit rljob-out/job                   ... and prove that each was trained once, fresh enough
  rljob logs rljob-out/job --role actor       what did its processes write? --previous: before they died
  rljob samples rljob-out/job                 what was generated, and what was it worth?
  rljob queue stats rljob-out/job             what waits for whom while it runs?
  rljob evaluate job.yaml --checkpoint rljob-out/job    what are its evaluation sets worth with what it has saved?
  rljob checkpoint show rljob-out/job         what was saved last, and is it whole?
  rljob checkpoint export rljob-out/job --to policy     its weights as a folder for transformers

\b
On a cluster (by your kubeconfig):
  kubectl apply --server-side -f job.yaml     the same manifest
  rljob restart job --reason "..." --wait     all of it from its checkpoint, or --role reference alone
  rljob logs job                              also when it has ended
  rljob clone job --from-checkpoint           a new manifest that goes on from its weights

\b
Exit codes: 0 succeeded, 1 failed, 2 wrong use of this command, 64 bad manifest, 130 interrupted."""


@dataclass(frozen=True, slots=True)
class Subcommand:
    """A command that is known by name until it is called."""

    target: str
    """`module:attribute` of the click command."""
    summary: str
    """Its line in `rljob --help`."""


SUBCOMMANDS = {
    "init": Subcommand("rljob_cli.commands.init:init", "Write a job to begin with: its manifest and its data."),
    "run": Subcommand("rljob_cli.commands.run:run", "Train a job on this machine: every role a process, a real Redis."),
    "evaluate": Subcommand(
        "rljob_cli.commands.evaluate:evaluate", "Score the evaluation sets of a manifest with a checkpoint."
    ),
    "validate": Subcommand("rljob_cli.commands.validate:validate", "Check a manifest and what it names."),
    "render": Subcommand("rljob_cli.commands.render:render", "Print a manifest with all defaults filled in."),
    "reward": Subcommand("rljob_cli.commands.reward:reward", "Try the reward of a manifest on its first rows."),
    "logs": Subcommand(
        "rljob_cli.commands.logs:logs", "Show what a job's processes have written, also when it has ended."
    ),
    "samples": Subcommand("rljob_cli.commands.samples:samples", "Show what was generated: prompts, answers, rewards."),
    "audit": Subcommand("rljob_cli.commands.audit:audit", "Prove that a run trained every sample exactly once."),
    "checkpoint": Subcommand(
        "rljob_cli.commands.checkpoint:checkpoint", "Say what a checkpoint has in it, or export its weights."
    ),
    "queue": Subcommand("rljob_cli.commands.queue:queue", "Look at the queue of a running job, check it, drain it."),
    "restart": Subcommand("rljob_cli.commands.restart:restart", "Restart a job on a cluster, or one role of it."),
    "clone": Subcommand("rljob_cli.commands.clone:clone_command", "Print a new manifest made from a job on a cluster."),
    "crd": Subcommand("rljob_cli.commands.render:crd", "Print the Kubernetes CustomResourceDefinition."),
    "docs": Subcommand("rljob_cli.commands.render:docs", "Write the reference of the spec as Markdown pages."),
}


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        """The names, in the order of the table."""
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        """The command itself; None if there is none."""
        if cmd_name not in SUBCOMMANDS:
            return None
        module, attribute = SUBCOMMANDS[cmd_name].target.split(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        """Lists the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in SUBCOMMANDS.items()])


@click.group(cls=LazyGroup, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rljob")
def cli() -> None:
    """Disaggregated reinforcement learning for language models.

    One manifest describes a job: its model, prompts, reward, roles and what to do when something fails. `rljob run`
    runs it on this machine, every role a process of its own; the operator runs it on Kubernetes.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the installed command. Ctrl-C has one exit code at any moment; `run` takes it over to drain."""
    signal.signal(signal.SIGINT, lambda *_: sys.exit(_INTERRUPTED))
    sys.exit(cli.main(args=None if arguments is None else list(arguments), prog_name="rljob", standalone_mode=True))
