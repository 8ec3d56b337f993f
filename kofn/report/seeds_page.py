"""RUNDIR/report.html of a run with several seeds: means and intervals, pairs, and links to each seed's page."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from kofn.report.drawings import Drawing
from kofn.report.figures import SIZE_INCHES, STYLE, WORKER_COLOURS
from kofn.report.over_seeds import SeedsSummary
from kofn.report.page import FIGURES, render
from kofn_common.results.folder import RunFolder

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
        provenance=record.provenance.rows(),
        effective=[job.effective.read_text() for job in folder.jobs],
    )
    path = folder.path / "report.html"
    path.write_text(text)
    return path


def _drawings(summary: SeedsSummary) -> Iterator[Drawing]:
    """Yield a figure for each job: times to the target, with a line for each seed."""
    for number, job in enumerate(summary.jobs):
        rows = [
            (seed, entry.objective, place, entry.time_to_target_s)
            for seed, run in summary.summaries.items()
            for place, entry in enumerate(run.jobs[number].trials)
            if entry.time_to_target_s is not None and not entry.by_hand
        ]
        if rows:
            yield Drawing(
                name=f"times-{job.job}",
                caption="Time to the target of each trial, a line a seed: trials of one seed meet the same data and the"
                f" same stragglers. n = {len(summary.summaries)}.",
                draw=partial(_times_figure, rows, [entry.objective for entry in job.trials]),
                headings=("seed", "trial", "time_to_target_s"),
                rows=[(seed, objective, time_s) for seed, objective, _, time_s in rows],
            )


def _times_figure(rows: list[tuple[int, str, int, float]], names: list[str]) -> Figure:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(SIZE_INCHES[0], 0.8 * SIZE_INCHES[1]), layout="constrained")
        axes = figure.subplots()
        for number, seed in enumerate(dict.fromkeys(seed for seed, *_ in rows)):
            points = [(place, time_s) for other, _, place, time_s in rows if other == seed]
            colour = WORKER_COLOURS[number % len(WORKER_COLOURS)]
            axes.plot(*zip(*points, strict=True), "o-", color=colour, linewidth=1.2, label=f"seed {seed}")
        axes.set_xticks(range(len(names)), names)
        axes.set(title="Time to the target", ylabel="time [s]")
        axes.set_ylim(bottom=0)
        axes.set_xlim(-0.5, len(names) - 0.5)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return figure
