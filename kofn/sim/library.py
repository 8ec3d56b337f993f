"""`kofn.simulate`: a simulation for a script or a notebook."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Unpack

from kofn.report.reader import Run
from kofn.run.conclusion import conclude, conclude_early
from kofn.run.library import Progress, ended_in_order, line_console, listener, planned
from kofn.sim.costs import Costs
from kofn.sim.machine_costs import machine_costs
from kofn.sim.runner import execute
from kofn_common.config.given import Given, Sections


def simulate(
    config: Given | None = None,
    *,
    trials: Sequence[str] = (),
    costs: Path | str | None = None,
    out: Path | str | None = None,
    progress: Progress = True,
    **sections: Unpack[Sections],
) -> Run:
    """Carry out an experiment in virtual time, as the command `kofn simulate` does, and read the results.

    The arguments are those of kofn.run, and `costs`: the costs.json of an earlier simulation, whose results it
    reproduces.
    The call needs no root. It raises KofnError for settings that are not simulated.
    """
    with (
        planned([] if config is None else [config], sections, trials=trials, out=out) as plan,
        listener(progress) as tell,
        ended_in_order(),
    ):
        console = line_console(tell)
        loaded = None if costs is None else Costs.load(Path(costs), plan.shared.job.collective)
        known = partial(machine_costs, plan.shared) if loaded is None else lambda: loaded
        folder = execute(plan, console, known, conclude_early(console, as_json=False, errors=console))
        conclude(folder, plan.configs, console, as_json=False, errors=console)
        return Run(plan.folder)
