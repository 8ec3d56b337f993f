"""OUT/report.html of `kofn experiment k`: hindsight over all scenarios, and each scenario's table."""

from collections.abc import Iterator, Sequence

from kofn.experiments.k.hindsight import Hindsight
from kofn.experiments.k.plots import hindsight_figure, times_figure
from kofn.experiments.k.tables import LEGEND, constants_table, scenario_table, summary_table, world_table
from kofn.experiments.matrix import CellResult, by_scenario
from kofn.experiments.page import Element, Heading, configuration

FIGURES_MOST = 24
"""The most scenarios with figures; for more, only tables are shown."""


def elements(found: Sequence[Hindsight], objectives: Sequence[str], results: Sequence[CellResult]) -> Iterator[Element]:
    """Yield the elements after the claims; `objectives` are the objectives that choose."""
    yield LEGEND
    for objective in objectives:
        yield Heading(objective)
        yield summary_table(found, objective)
        yield hindsight_figure(found, objective)
        yield world_table(found, objective)
    yield Heading("Rules and parts of n that never change")
    yield constants_table(found)
    finished = by_scenario(results)
    for hindsight in found:
        yield Heading(hindsight.scenario)
        yield scenario_table(hindsight)
        if len(found) <= FIGURES_MOST:
            yield times_figure(hindsight)
        yield configuration(finished[hindsight.scenario][0])
