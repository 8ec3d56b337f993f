"""Command line options that several commands have."""

import click

set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Another value for a key of the configuration, model.learning_rate=0.05 for example; repeat it for more.",
)
"""For commands that read a configuration."""
