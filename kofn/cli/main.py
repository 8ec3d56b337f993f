"""`kofn`: run experiments, and look at a running controller.

A command is imported when it is used: a simulation must not wait for gRPC, nor a look at a controller for SciPy.
"""

import contextlib
import gc
import importlib
import importlib.util
import sys
from collections.abc import Iterator

import click

from kofn_common.config.suggestion import did_you_mean

LAZY = {
    "run": ("kofn.run.runner", "command"),
    "simulate": ("kofn.sim.runner", "command"),
    "report": ("kofn.cli.report", "command"),
    "runs": ("kofn.cli.runs", "command"),
    "stop": ("kofn.run.clean", "stop"),
    "clean": ("kofn.run.clean", "command"),
    "doctor": ("kofn.doctor.command", "command"),
    "chaos": ("kofn.experiments.chaos.command", "command"),
    "experiment": ("kofn.experiments.command", "command"),
    "compare": ("kofn.experiments.compare.command", "command"),
    "certs": ("kofn.run.certs", "command"),
    "jobs": ("kofn.cli.jobs", "jobs"),
    "switch": ("kofn.cli.machines", "switch"),
    "controller": ("kofn.cli.machines", "controller"),
    "worker": ("kofn.cli.machines", "worker"),
    "link": ("kofn.cli.machines", "link"),
    "slots": ("kofn.cli.slots", "command"),
    "hosts": ("kofn.cli.hosts", "hosts"),
    "exec": ("kofn.cli.hosts", "command"),
    "shell": ("kofn.cli.hosts", "shell"),
    "schedule": ("kofn.cli.schedule", "command"),
    "export": ("kofn.cli.export", "command"),
    "k": ("kofn.cli.query_commands", "k"),
    "lambda": ("kofn.cli.query_commands", "lambda_"),
    "set-k": ("kofn.cli.query_commands", "set_k"),
    "status": ("kofn.cli.query_commands", "status"),
    "watch": ("kofn.cli.query_commands", "watch"),
}
"""Commands: module and name of the click command.  A command without its package is not listed."""


class LazyGroup(click.Group):
    """A group that imports its commands when they are used."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Everything, in the order in which a newcomer needs it."""
        return [name for name in LAZY if _there(name)]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """The command; None where it is not installed, or there is none of this name."""
        if not _there(name):
            return None
        module, attribute = LAZY[name]
        with _kept():
            command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, context: click.Context) -> object:
        """Run the command; 130 where Ctrl-C comes before it handles signals, or it handles none."""
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            sys.exit(130)

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of these words; of a misspelt one, what it may have been."""
        if args[0] not in LAZY and (meant := did_you_mean(args[0], LAZY)):
            context.fail(f"no command {args[0]!r}{meant}")
        return super().resolve_command(context, args)


@contextlib.contextmanager
def _kept() -> Iterator[None]:
    """Keep everything that is loaded inside out of later garbage collections."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _there(name: str) -> bool:
    """Whether there is such a command, and what it is in is installed."""
    return name in LAZY and importlib.util.find_spec(LAZY[name][0]) is not None


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kofn", message="%(prog)s %(version)s")
def main() -> None:
    """In-network gradient aggregation from the fastest k of n workers.

    \b
    Examples:
      kofn doctor                 check this machine
      kofn run                    the default experiment
      kofn experiment k           compare the chosen k with every fixed one, on several seeds
      kofn experiment codecs      compare codecs: bytes, iterations, time
      kofn compare --quick        compare parameter server, ring and switch
      kofn status                 show what a running controller sees
      kofn k                      show why this k is in force
      kofn slots                  show which workers are missing from open slots
      kofn set-k fixed:3          set k by hand
      kofn exec h1 tcpdump ...    run a command inside a host

    \b
    Exit codes of commands that ask a controller: 0 answered, 2 refused or the command line is wrong,
    3 no controller answers. Those of the others: kofn COMMAND --help.
    """
