"""`kofn experiment`: what the parts are worth, over many runs; a command for each question."""

import click

from run.choice.command import k
from run.codecs.command import codecs


@click.group()
def command() -> None:
    """Experiments over many runs."""


command.add_command(k)
command.add_command(codecs)
