"""RUNDIR/report.html of a run with several seeds: means and intervals, pairs, and links to each seed's page."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from kofn.report.drawings import Drawing
from kofn.report.over_seeds import SeedsSummary
from kofn.report.page import FIGURES, render
from kofn.report.plots import draw
from kofn_common.results.folder import RunFolder

HEADINGS = ("seed", "trial", "time_to_target_s")

EXPLANATION = (
    "Geometric means over the seeds, and in brackets 95 % intervals by Student's t of the logarithms; the ratio to the"
    " baseline is taken seed by seed. Trials that did not end, or that were changed by hand, are in"
    " no mean. Two seeds give wide intervals; three or more are needed to claim a difference."
)


def write_seeds_page(folder: RunFolder, summary: SeedsSummary) -> Path:
    """Write the report and its figures; return its path."""
    record = folder.record()
    title = folder.configs()[0].run.name
    into = folder.path / FIGURES
    text = render(
        "seeds.html",
        title=title,
        heading=title,
        failures=summary.failures,
        notes=summary.notes,
        record=record,
        explanation=EXPLANATION,
        seeds=[seed for seed in summary.summaries if (folder.path / f"seed-{seed}" / "report.html").exists()],
        n=len(summary.summaries),
        jobs=summary.jobs,
        figures=[
            {"svg": drawing.write(into), "caption": drawing.caption, "file": f"{FIGURES}/{drawing.name}"}
            for drawing in _drawings(summary)
        ],
        provenance=record.rows,
        effective=[job.effective.read_text() for job in folder.jobs],
    )
    path = folder.path / "report.html"
    path.write_text(text)
    return path


def _drawings(summary: SeedsSummary) -> Iterator[Drawing]:
    """Yield a figure for each job: times to the target."""
    for number, job in enumerate(summary.jobs):
        rows = [
            (seed, entry.objective, entry.time_to_target_s)
            for seed, run in summary.summaries.items()
            for entry in run.jobs[number].trials
            if entry.time_to_target_s is not None and not entry.by_hand
        ]
        if rows:
            yield Drawing(
                name=f"times-{job.job}",
                caption="Time to the target of each trial: the mean over the seeds that reached it, with its 95 %"
                f" interval. n = {len(summary.summaries)}.",
                draw=partial(_times_figure, rows),
                headings=HEADINGS,
                rows=rows,
            )


def _times_figure(rows: Sequence[tuple[int, str, float]]) -> Figure:
    axes = draw(pd.DataFrame(rows, columns=HEADINGS), "trial", HEADINGS[-1], label=HEADINGS[-1])
    figure: Figure = axes.figure  # type: ignore[union-attr,assignment]  # one panel of one figure
    return figure
