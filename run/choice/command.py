"""`kofn experiment k`: what the choice of rule and k is worth against fixed ones in hindsight, over several seeds."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from run.choice.evidence import Findings, Row
from run.choice.table import (
    LEGEND,
    SCENARIO_HEADINGS,
    SUMMARY_HEADINGS,
    WORLD_HEADINGS,
    scenario_cells,
    summary_cells,
    world_cells,
)
from run.choice.verdicts import verdicts
from run.choice.worlds import RATES, WORKERS, WORLDS, scenario, world_of
from run.conduct import Choices, Told, conduct, experiment_options, known
from run.matrix import Result, Scenario, by_scenario
from run.summary import PassSummary
from run.table import plain_table

SEEDS = 5
"""How often each scenario is run, where the command line does not say."""

REAL_WORLDS, REAL_RATES, REAL_WORKERS = ("one-slow", "two-slow", "bursts", "owned"), (0.02, 0.1), (4,)
"""What is run on the real system, where the command line does not say: as much as takes an hour or two."""

SHOWN = 6
"""Scenarios that are shown one by one; of more, the report has them."""

STORIES = "\n".join(f"  {name:13} {world.story}" for name, world in WORLDS.items())

EXAMPLES = f"""
\b
Worlds (--scenario), with 4, 8 or 16 workers:
{STORIES}

\b
Examples:
  kofn experiment k --simulate --out runs/k                  everything, in virtual time: hours; again to go on
  kofn experiment k --simulate --scenario two-slow --workers 8 --rate 0.1     minutes
  kofn experiment k --scenario one-slow --rate 0.1 --seeds 1 on the real system
  kofn experiment k --simulate --scenario racks --objective accuracy --objective async:2 --objective all
  kofn experiment k --out runs/k --simulate --report-only    tables, claims and report of what is there
  kofn run runs/k/two-slow-8w-0.1/seed-1.toml                one scenario once, with the live table and a report

\b
Exit codes: 0 every training had identical replicas and every gradient conserved; 1 not so, or a run failed; 2 the
command line is wrong; 130 stopped by a signal. Claims do not count, nor do targets that are missed: they are said.
"""


@click.command(epilog=EXAMPLES)
@experiment_options(name="experiment-k", seeds=SEEDS)
@click.option(
    "--workers",
    type=click.IntRange(4, 64),
    multiple=True,
    metavar="N",
    help="May be repeated.  [default: 4, 8, 16; real: 4]",
)
@click.option(
    "--rate",
    "rates",
    type=click.FloatRange(min=0, min_open=True),
    multiple=True,
    metavar="RATE",
    help="Learning rate; may be repeated.  [default: 0.02, 0.1, 0.35; real: 0.02, 0.1]",
)
@click.option(
    "--objective",
    "objectives",
    multiple=True,
    help="May be repeated: RULE:K, all or one that chooses.  [default: accuracy, round, the fixed ones]",
)
def k(*, choices: Choices, workers: tuple[int, ...], rates: tuple[float, ...], objectives: tuple[str, ...]) -> None:
    """Is the chosen rule and k the right one? Time to the target accuracy against every fixed one in hindsight.

    Each world is run with several numbers of workers, learning rates and seeds, all objectives on the same seed and
    blocking events. On the real system the default is a part of it: one-slow, two-slow, bursts and owned.
    """
    simulated = choices.simulated
    sizes = dict.fromkeys(workers or (WORKERS if simulated else REAL_WORKERS))
    wanted = dict.fromkeys(rates or (RATES if simulated else REAL_RATES))

    def scenarios() -> list[Scenario]:
        given = choices.chosen or (() if simulated else REAL_WORLDS)
        return [
            scenario(name, number, rate, choices.settings).overridden(target=choices.target, objectives=objectives)
            for number in sizes
            for rate in wanted
            for name in known(given, list(WORLDS))
        ]

    conduct("k", choices, scenarios, tell, lean=True)


def tell(results: Sequence[Result]) -> Told:
    """What finished runs show."""
    found = findings(results)
    said = verdicts(found)
    choosing = list(dict.fromkeys(row.objective for one in found for row in one.adaptive))

    def write_report(folder: Path, failures: Sequence[str]) -> Path:
        from run.choice.report import write_choice  # noqa: PLC0415  # matplotlib takes half a second

        return write_choice(folder, found, said, failures, results)

    return Told(
        tables=[
            *(
                plain_table(SCENARIO_HEADINGS, scenario_cells(one), title=one.scenario)
                for one in (found if len(found) <= SHOWN else ())
            ),
            *(plain_table(WORLD_HEADINGS, world_cells(found, name), title=name) for name in choosing),
            *(
                plain_table(SUMMARY_HEADINGS, summary_cells(found, name), title=f"{name}, over the scenarios")
                for name in choosing
            ),
        ],
        legend=LEGEND,
        verdicts=said,
        failures=[reason for one in found for reason in one.failures()],
        document={"scenarios": [_document(one) for one in found]},
        write_report=write_report,
    )


def findings(results: Sequence[Result]) -> list[Findings]:
    """Scenario by scenario, in the order of the results, of which each has passes."""
    return [_findings(several) for several in by_scenario(results).values()]


def _findings(results: Sequence[Result]) -> Findings:
    """One scenario's."""
    scenario = results[0].cell.scenario
    world = world_of(scenario)
    passes: dict[str, list[PassSummary]] = defaultdict(list)
    for entry in (entry for result in results for entry in result.passes):
        passes[entry.objective].append(entry)
    return Findings(
        scenario=scenario.name,
        world=world,
        kind=WORLDS[world].kind,
        workers=scenario.config.job.workers,
        rate=scenario.config.model.learning_rate,
        target_accuracy=scenario.config.run.target_accuracy,
        rows=tuple(Row.of(objective, several) for objective, several in passes.items()),
    )


def _document(found: Findings) -> dict[str, object]:
    """For JSON."""
    best = found.best
    rows = [asdict(row) | {"against_best": (ratios := found.ratios(row)) and asdict(ratios)} for row in found.rows]
    return asdict(found) | {"best": None if best is None else best.objective, "rows": rows}
