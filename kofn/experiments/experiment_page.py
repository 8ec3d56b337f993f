"""OUT/report.html of an experiment: the answer, claims with their numbers, figures and tables; OUT/figures."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from kofn.experiments import claims
from kofn.experiments.answer import answer, has_results, shown_columns
from kofn.experiments.claims import Verdict
from kofn.experiments.experiment_file import HOOKS, FigureSection
from kofn.experiments.reader import EXPERIMENT, Experiment
from kofn.experiments.tables import TextTable
from kofn.report.drawings import Drawing
from kofn.report.frames import named
from kofn.report.page import FIGURES, render
from kofn_common.config.errors import ConfigError
from kofn_common.results.provenance import Provenance

MOST_AXES = 2
"""The most axes of the figure that is drawn if the file has none."""

EXPLANATION = (
    "Means over the seeds, and in brackets 95 % intervals by Student's t: of positive figures geometric means and"
    " intervals of the logarithms. A ratio to the baseline is taken seed by seed. If a contender misses the target with"
    " a seed, it has no mean."
)


def write_page(
    experiment: Experiment,
    tables: Sequence[TextTable],
    verdicts: Sequence[Verdict],
    failures: Sequence[str],
    provenance: Provenance,
) -> None:
    """Write the report and its figures."""
    section, folder = experiment.file.section, experiment.folder
    heading = section.question or section.name
    into = folder / FIGURES
    seeds = len(set(experiment.rows()["seed"]))
    text = render(
        "experiment.html",
        "kofn.experiments",
        title=section.name,
        heading=heading,
        failures=failures,
        answer=answer(experiment),
        notes=section.notes,
        explanation=f"{EXPLANATION} Seeds: {seeds}.",
        verdicts=claims.table(verdicts) if verdicts else None,
        remarks=claims.explanation(verdicts),
        tables=tables,
        figures=[
            {"svg": drawing.write(into), "caption": drawing.caption, "file": f"{FIGURES}/{drawing.name}"}
            for drawing in _drawings(experiment)
        ],
        provenance=provenance.rows(),
        file=(folder / EXPERIMENT).read_text(),
    )
    (folder / "report.html").write_text(text)


def _drawings(experiment: Experiment) -> Iterator[Drawing]:
    """Yield those of the file's figures that have results; a figure of the first shown column if the file has none."""
    default = (FigureSection(y=shown_columns(experiment)[0]),) if len(experiment.axes) <= MOST_AXES else ()
    asked = experiment.file.document.figure or default
    for number, section in enumerate(asked, 1):
        if not has_results(experiment, section):
            continue
        try:
            yield _drawing(experiment, section, number)
        except ConfigError as error:
            raise ConfigError(f"figure[{number - 1}]: {error}") from None


def _drawing(experiment: Experiment, section: FigureSection, number: int) -> Drawing:
    if section.function is not None:
        return Drawing(
            name=f"figure-{number}",
            caption=section.title,
            draw=partial(HOOKS.load(section.function), experiment),
            headings=(),
            rows=[],
        )
    found = (
        experiment.ratio(section.y, where=section.where)
        if section.relative
        else experiment.table(section.y, where=section.where)
    )
    ratio = f"; its ratio to that of {experiment.baseline} with the same seed" if section.relative else ""
    return Drawing(
        name=f"figure-{number}",
        caption=f"{section.title or named(section.y).capitalize()}{ratio}. Means over the seeds, with 95 % intervals.",
        draw=partial(_figure, experiment, section),
        headings=list(found.columns),
        rows=[tuple(row) for row in found.itertuples(index=False)],
    )


def _figure(experiment: Experiment, section: FigureSection) -> Figure:
    axes: Any = experiment.plot(
        section.x, section.y, lines=section.lines, panels=section.panels, relative=section.relative, where=section.where
    )
    figure: Figure = (axes[0] if isinstance(axes, list) else axes).figure
    return figure
