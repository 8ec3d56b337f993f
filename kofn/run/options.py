"""Command line options that several commands share."""

import math
from pathlib import Path
from typing import Any

import click

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


lab_option = click.option(
    "--lab",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Run on the machines of the laboratory in FILE (docs/howto/machines.md).  [default: on this machine]",
)
"""An option for commands that make a network."""


class FiniteRange(click.FloatRange):
    """A finite number within bounds. click's own type accepts NaN, and infinity where there is no upper bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found: float = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is not finite.", param, ctx)
        return found
