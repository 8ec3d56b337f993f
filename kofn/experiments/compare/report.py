"""OUT/report.html of a comparison: tables and figures of each setting, and the commands that regenerate them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kofn.experiments.compare.arms import Rivals, setting_of
from kofn.experiments.compare.plots import accuracy_figure, setting_figure
from kofn.experiments.compare.tables import LEGEND, setting_table
from kofn.experiments.matrix import CellResult, by_scenario
from kofn.experiments.page import Element, Folded, Heading, series


def elements(found: Sequence[Rivals], notes: Sequence[str], results: Iterable[CellResult]) -> Iterator[Element]:
    yield from notes
    yield LEGEND
    first = {name: several[0] for name, several in by_scenario(results).items()}
    for rivals in found:
        yield from _setting(rivals, first)


def _setting(rivals: Rivals, first: Mapping[str, CellResult]) -> Iterator[Element]:
    """Yield table and figures of one setting; `first` has the results of the first seed by scenario."""
    arms = list(rivals.values())
    yield Heading(setting_of(rivals).title)
    yield setting_table(rivals)
    yield setting_figure(arms)
    yield _commands([command for arm in arms for command in arm.column("command")])
    if setting_of(rivals).trained:
        curves = {name: series(first[arm.point.name]).accuracy for name, arm in rivals.items()}
        yield accuracy_figure(curves, arms[0].fact("target"))
        yield _commands([arm.column("command")[0] for arm in arms])


def _commands(commands: Sequence[str]) -> Folded:
    return Folded(f"regenerate this figure ({len(commands)} runs)", "\n".join(commands))
