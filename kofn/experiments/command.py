"""`kofn experiment`: the gain of kofn's parts, over many runs; a command for each question."""

import click

from kofn.experiments.experiment_command import command as file_command
from kofn.experiments.zero.command import zero


class ExperimentGroup(click.Group):
    """Takes every first word that names no command as the path of an experiment file or folder."""

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in self.commands:
            return super().resolve_command(context, args)
        return "experiment", file_command, args


@click.group(cls=ExperimentGroup)
def command() -> None:
    """Experiments over many runs."""


command.add_command(zero)
