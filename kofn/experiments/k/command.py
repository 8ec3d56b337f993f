"""`kofn experiment k`: the gain of choosing rule and k, against the best fixed rule and k in hindsight, over several
seeds."""

from collections.abc import Iterable, Sequence
from typing import Any

import click

from kofn.experiments.claims import judge
from kofn.experiments.conduct import Choices, conduct, experiment_options, known
from kofn.experiments.findings import Findings
from kofn.experiments.k.claims import CLAIMS
from kofn.experiments.k.columns import own_columns
from kofn.experiments.k.hindsight import failures, hindsights
from kofn.experiments.k.tables import LEGEND, scenario_document, scenario_table, summary_table, world_table
from kofn.experiments.k.worlds import RATES, WORKERS, WORLDS, scenario
from kofn.experiments.matrix import CellResult, Scenario
from kofn.experiments.trials import read_trials
from kofn.run.options import FiniteRange

QUESTION = "Is the choice of rule and k right?"

SEEDS = 5
"""The seeds of each scenario, by default."""

REAL_WORLDS, REAL_RATES, REAL_WORKERS = ("one-slow", "two-slow", "bursts", "owned"), (0.02, 0.1), (4,)
"""The default worlds, rates and numbers of workers on the real system, which take an hour or two."""

SHOWN = 6
"""The most scenarios that the terminal shows one by one; more are only in the report."""

STORIES = "\n".join(f"  {name:13} {world.story}" for name, world in WORLDS.items())

EXAMPLES = f"""
\b
Worlds (--scenario), with 4, 8 or 16 workers:
{STORIES}

\b
Examples:
  kofn experiment k --simulate --out runs/k                  everything, in virtual time: hours; again to continue
  kofn experiment k --simulate --scenario two-slow --workers 8 --rate 0.1     minutes
  kofn experiment k --scenario one-slow --rate 0.1 --seeds 1 on the real system
  kofn experiment k --simulate --scenario racks --objective progress --objective async:2 --objective all
  kofn experiment k --out runs/k --simulate --report-only    tables, claims and report of the finished runs
  kofn run runs/k/two-slow-8w-0.1/seed-1.toml                one scenario once, with the live table and a report

\b
Exit codes: 0 every training had identical replicas and every gradient conserved; 1 otherwise, or if a run failed; 2 the
command line is wrong; 130 stopped by a signal. Claims and missed targets are printed and do not count.
"""


@click.command(epilog=EXAMPLES)
@experiment_options(name="experiment-k", seeds=SEEDS)
@click.option(
    "--workers",
    type=click.IntRange(4, 64),
    multiple=True,
    metavar="N",
    help="Workers of each world; may be repeated.  [default: 4, 8, 16; real: 4]",
)
@click.option(
    "--rate",
    "rates",
    type=FiniteRange(min=0, min_open=True),
    multiple=True,
    metavar="RATE",
    help="Learning rate; may be repeated.  [default: 0.02, 0.1, 0.35; real: 0.02, 0.1]",
)
@click.option(
    "--objective",
    "objectives",
    multiple=True,
    help="RULE:K, all, or an objective that chooses; may be repeated.  [default: progress, throughput, fixed ones]",
)
def k(*, choices: Choices, workers: tuple[int, ...], rates: tuple[float, ...], objectives: tuple[str, ...]) -> None:
    """Compare the chosen rule and k with every fixed choice in hindsight: time to the target accuracy.

    Each world is run with several numbers of workers, learning rates and seeds. All objectives meet the same seeds and
    blocking events. On the real system the default worlds are one-slow, two-slow, bursts and owned.
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

    conduct("k", choices, scenarios, find, lean=True)


def find(results: Sequence[CellResult]) -> Findings:
    trials = read_trials("k", results, own_columns)
    found = hindsights(trials)
    choosing = list(dict.fromkeys(standing.objective for hindsight in found for standing in hindsight.adaptive))

    def elements() -> Iterable[Any]:
        from kofn.experiments.k import report  # noqa: PLC0415  # matplotlib takes half a second

        return report.elements(found, choosing, results)

    return Findings(
        question=QUESTION,
        trials=trials,
        tables=[
            *(scenario_table(hindsight) for hindsight in (found if len(found) <= SHOWN else ())),
            *(world_table(found, name) for name in choosing),
            *(summary_table(found, name) for name in choosing),
        ],
        legend=LEGEND,
        verdicts=judge(CLAIMS, found),
        failures=failures(found),
        document={"scenarios": [scenario_document(hindsight) for hindsight in found]},
        elements=elements,
    )
