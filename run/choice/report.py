"""OUT/report.html of `kofn experiment k`: claims, hindsight over all scenarios, and each scenario's table."""

import html
from collections.abc import Sequence
from pathlib import Path

from run.choice.evidence import Findings, constants
from run.choice.plots import hindsight_figure, times_figure
from run.choice.table import (
    LEGEND,
    SCENARIO_HEADINGS,
    SUMMARY_HEADINGS,
    WORLD_HEADINGS,
    scenario_cells,
    summary_cells,
    world_cells,
)
from run.claims import Verdict
from run.experiment_report import configuration, write_experiment
from run.matrix import Result, by_scenario
from run.report import html_table, svg

QUESTION = "Is the chosen rule and k the right one?"

FIGURES_MOST = 24
"""Scenarios of which each has a figure: of more, the tables say what there is to say."""


def write_choice(
    folder: Path,
    found: Sequence[Findings],
    verdicts: Sequence[Verdict],
    failures: Sequence[str],
    results: Sequence[Result],
) -> Path:
    """Write the report of runs that are finished; its path."""
    finished = by_scenario(results)
    parts = [f"<p>{html.escape(LEGEND)}</p>"]
    for objective in dict.fromkeys(row.objective for one in found for row in one.adaptive):
        parts += [
            f"<h2>{html.escape(objective)}</h2>",
            html_table(SUMMARY_HEADINGS, list(summary_cells(found, objective))),
            svg(hindsight_figure(found, objective)),
            html_table(WORLD_HEADINGS, list(world_cells(found, objective))),
        ]
    fixed = sorted(constants(found).items(), key=lambda item: item[1])
    parts += ["<h2>Rules and parts of n that never change</h2>"]
    parts += [html_table(("rule:k", "mean over the scenarios"), [[name, f"{mean:.2f}"] for name, mean in fixed])]
    for one in found:
        parts += [
            f"<h2>{html.escape(one.scenario)}</h2>",
            html_table(SCENARIO_HEADINGS, scenario_cells(one)),
            *([svg(times_figure(one))] if len(found) <= FIGURES_MOST else []),
            configuration(finished[one.scenario][0]),
        ]
    return write_experiment(folder, "experiment k", QUESTION, verdicts, failures, *parts)
