"""`kofn`: run experiments, and inspect a running controller.

A command is imported when it is used: a simulation must not wait for gRPC, and a call to a controller must not wait for
SciPy.
"""

import contextlib
import gc
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from typing import NamedTuple

import click

from kofn_common.config.suggestion import did_you_mean


class Lazy(NamedTuple):
    """A command that is not imported yet."""

    module: str
    attribute: str
    text: str
    """The command's line in `kofn --help`, which imports no command."""


LAZY = {
    "run": Lazy("kofn.run.runner", "command", "train through the switch, once for each trial"),
    "simulate": Lazy("kofn.sim.runner", "command", "train in virtual time, without a network"),
    "report": Lazy("kofn.cli.report", "command", "write the summary and the page of a run again"),
    "runs": Lazy("kofn.cli.runs", "command", "list the runs and experiments in runs/"),
    "stop": Lazy("kofn.run.clean", "stop", "end the run that is going on"),
    "clean": Lazy("kofn.run.clean", "command", "remove what crashed runs left behind"),
    "doctor": Lazy("kofn.doctor.command", "command", "check this machine, from root's rights to exact sums"),
    "lab": Lazy("kofn.run.lab.setup", "lab", "prepare the machines on which kofn run --lab runs"),
    "chaos": Lazy("kofn.experiments.chaos.command", "command", "train under every kind of fault"),
    "experiment": Lazy("kofn.experiments.experiment_command", "command", "answer a question by many trainings"),
    "compare": Lazy(
        "kofn.experiments.compare_command", "command", "measure switch, server, ring, gloo and MPI side by side"
    ),
    "certs": Lazy("kofn.run.certs", "command", "make certificates for controller, workers and commands"),
    "jobs": Lazy("kofn.cli.jobs", "jobs", "submit training requests to a Kubernetes cluster"),
    "switch": Lazy("kofn.cli.machines", "switch", "run the switch of a job on several machines"),
    "controller": Lazy("kofn.cli.machines", "controller", "run the controller of a job on several machines"),
    "worker": Lazy("kofn.cli.machines", "worker", "run a worker of a job on this machine"),
    "link": Lazy("kofn.cli.machines", "link", "make a worker's interface to a switch on another machine"),
    "slots": Lazy("kofn.cli.slots", "command", "show which workers are missing from open slots"),
    "hosts": Lazy("kofn.cli.hosts", "hosts", "show the hosts of the current run"),
    "exec": Lazy("kofn.cli.hosts", "command", "run a command inside a host of the current run"),
    "shell": Lazy("kofn.cli.hosts", "shell", "open a shell inside a host of the current run"),
    "schedule": Lazy("kofn.cli.schedule", "command", "show the schedules of a run"),
    "export": Lazy("kofn.cli.export", "command", "write the data frames of a run as files"),
    "k": Lazy("kofn.cli.query_commands", "k", "show the expected and measured iteration time of each k"),
    "lambda": Lazy("kofn.cli.query_commands", "lambda_", "show the workers' mean blocking times and intervals"),
    "set-k": Lazy("kofn.cli.query_commands", "set_k", "set k: a number, all workers, or by an objective"),
    "status": Lazy("kofn.cli.query_commands", "status", "show k, workers and the latest decisions once"),
    "watch": Lazy("kofn.cli.query_commands", "watch", "show the status live"),
}
"""The commands by name.  A command whose package is not installed is not listed."""


UNMAPPED = "failed to map segment"
"""The dynamic linker's words for a library for which there is not enough memory."""


class LazyGroup(click.Group):
    """A group that imports its commands when they are used."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the names of all commands, in the order in which a newcomer needs them."""
        return [name for name in LAZY if _there(name)]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Return the command; None if the command is not installed, or no command has this name."""
        if not _there(name):
            return None
        with _without_collection():
            command = getattr(importlib.import_module(LAZY[name].module), LAZY[name].attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, without importing a command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, LAZY[name].text) for name in self.list_commands(context)])

    def invoke(self, context: click.Context) -> object:
        """Run the command; end with 130 after a Ctrl-C that the command does not handle, and with 1 and one line if
        there is not enough memory."""
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            sys.exit(130)
        except (ImportError, MemoryError) as error:
            if isinstance(error, ImportError) and UNMAPPED not in str(error):
                raise
            click.echo(f"kofn: out of memory, see `ulimit -v` and the container's limit ({error})", err=True)
            sys.exit(1)

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of these words; suggest a command for a misspelt word."""
        if args[0] not in LAZY and (meant := did_you_mean(args[0], LAZY)):
            context.fail(f"no command {args[0]!r}{meant}")
        return super().resolve_command(context, args)


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Suspend garbage collection within the block: imports allocate much and free little."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _there(name: str) -> bool:
    """Return whether a command has this name and its module is installed."""
    return name in LAZY and importlib.util.find_spec(LAZY[name].module) is not None


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kofn", message="%(prog)s %(version)s")
def main() -> None:
    """In-network gradient aggregation from the fastest k of n workers.

    \b
    Examples:
      kofn doctor                 check this machine
      kofn run                    the default experiment
      kofn experiment FILE        compare contenders over several seeds: table, claims, figures
      kofn compare                compare parameter server, ring and switch: hours
      kofn status                 show what a running controller sees
      kofn k                      show why this k is in force
      kofn slots                  show which workers are missing from open slots
      kofn set-k fixed:3          set k by hand
      kofn exec h1 tcpdump ...    run a command inside a host

    \b
    Exit codes of commands that ask a controller: 0 answered, 2 refused or the command line is wrong,
    3 no controller answers. Exit codes of other commands: kofn COMMAND --help.
    """
