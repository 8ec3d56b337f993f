"""Command line options that several commands share."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Command = Callable[..., None]

set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Another value for a key of the configuration, model.learning_rate=0.05 for example; repeat it for more.",
)
"""An option for commands that read a configuration."""

record_option = click.option(
    "--record-stragglers",
    "record",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the measured blocking of each worker of the last trial to FILE: a CSV for model.trace.",
)
"""An option for commands that train."""


def lab_options(command: Command) -> Command:
    """Add the options of commands that make a network; laboratory() in kofn/run/lab/choice.py takes their values."""
    slurm = click.option("--slurm", is_flag=True, help="Run on the nodes of the Slurm allocation of this process.")
    lab = click.option(
        "--lab",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Run on the machines of the laboratory in FILE (docs/howto/machines.md).  [default: on this machine]",
    )
    return lab(slurm(command))


class FiniteRange(click.FloatRange):
    """A finite number within bounds. click's own type accepts NaN, and infinity where there is no upper bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found: float = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is not finite.", param, ctx)
        return found
