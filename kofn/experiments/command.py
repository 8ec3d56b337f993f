"""`kofn experiment`: the gain of kofn's parts, over many runs; a command for each question."""

import click

from kofn.experiments.codecs.command import codecs
from kofn.experiments.k.command import k
from kofn.experiments.protocols.command import protocols
from kofn.experiments.scale.command import scale
from kofn.experiments.schedule.command import schedule
from kofn.experiments.zero.command import zero


@click.group()
def command() -> None:
    """Experiments over many runs."""


command.add_command(k)
command.add_command(codecs)
command.add_command(protocols)
command.add_command(schedule)
command.add_command(scale)
command.add_command(zero)
